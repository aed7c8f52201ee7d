"""Plots of scenarios; needs matplotlib, which is in the extra `plot`."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from penstock.errors import InvalidError, StorageError
from penstock.sim.scenarios.outcome import Chart


def check_plot(path: Path) -> None:
    """InvalidError if a plot cannot be written there: to be told before a run, not after."""
    if find_spec("matplotlib") is None:
        raise InvalidError(
            "--plot needs matplotlib, which is not installed",
            advice="Install it with `pip install 'penstock[plot]'`, or leave --plot out.",
        )
    if path.suffix.lower() != ".png":
        raise InvalidError(f"a plot is a .png file, not {path.name!r}")
    if not path.parent.is_dir():
        raise InvalidError(f"there is no directory {str(path.parent)!r} for the plot")


def plot(chart: Chart, path: Path) -> None:
    """Writes a PNG; StorageError if that fails."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    for name, values in chart.series.items():
        axes.plot(chart.x, values, marker=".", label=name)
    if chart.logarithmic:
        axes.set_xscale("log")
    if chart.logarithmic_y:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.set_title(chart.title)
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)
    axes.legend()
    try:
        figure.savefig(path, format="png", dpi=120)
    except OSError as error:
        raise StorageError(str(error), advice="Choose another file for --plot.") from error
