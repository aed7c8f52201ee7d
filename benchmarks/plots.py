"""Plots of a report, if matplotlib is there (extra: `plot`)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from benchmarks.report import Report

_BAR_INCHES = 0.32
_WIDTH_INCHES = 9.0
_BASE_COLOUR, _COLOUR = "#c1440e", "#4a6fa5"


def draw(report: Report, folder: Path, tell: Callable[[str], None]) -> list[Path]:
    """One picture for each table, a panel of bars for each column; which files were written."""
    try:
        import matplotlib
    except ImportError:
        tell("no plots: matplotlib is not installed (extra: plot)")
        return []
    matplotlib.use("Agg")
    return [
        _picture(report, title, columns, folder / f"{report.layout.stem}-{number:02}.png")
        for number, (title, columns) in enumerate(report.tables(), 1)
    ]


def _picture(report: Report, title: str, columns: list[str], path: Path) -> Path:
    from matplotlib import pyplot

    height = _BAR_INCHES * (len(report.measured) + 3) * len(columns)
    figure, panels = pyplot.subplots(
        len(columns), 1, figsize=(_WIDTH_INCHES, height), squeeze=False, layout="constrained"
    )
    figure.suptitle(title, fontsize=10)
    for panel, column in zip(panels[:, 0], columns, strict=True):
        found = {
            name: measured.series[column]
            for name, measured in report.measured.items()
            if column in measured.series
        }
        medians = [series.median for series in found.values()]
        errors = [
            [series.median - min(series.values) for series in found.values()],
            [max(series.values) - series.median for series in found.values()],
        ]
        colours = [_BASE_COLOUR if name.startswith("penstock") else _COLOUR for name in found]
        panel.barh(list(found), medians, xerr=errors, color=colours, height=0.7)
        panel.invert_yaxis()
        panel.set_title(column, fontsize=9, loc="left")
        panel.tick_params(labelsize=7)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return path
