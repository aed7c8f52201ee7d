"""Plots of text: bars under each other, and a line of blocks."""

from __future__ import annotations

from collections.abc import Sequence

BLOCKS = " ▁▂▃▄▅▆▇█"
_PARTS = " ▏▎▍▌▋▊▉█"
WIDTH = 50


def bars(labels: Sequence[str], values: Sequence[float], width: int = WIDTH) -> list[str]:
    """A bar for each value, with its label before and the value behind it."""
    most = max(values, default=0.0)
    wide = max(map(len, labels), default=0)
    return [
        f"{label:<{wide}}  {_bar(value / most if most > 0 else 0.0, width)} {value:,.10g}"
        for label, value in zip(labels, values, strict=True)
    ]


def _bar(share: float, width: int) -> str:
    whole, part = divmod(round(max(0.0, share) * width * 8), 8)
    return (_PARTS[-1] * whole + (_PARTS[part] if part else "")).ljust(width)


def blocks(values: Sequence[float | None], most: float | None = None) -> str:
    """A character for each value; a dot where there is none."""
    known = [value for value in values if value is not None]
    top = max(known, default=0.0) if most is None else most
    last = len(BLOCKS) - 1
    return "".join(
        "·" if value is None else BLOCKS[min(last, round(value / top * last)) if top > 0 else 0]
        for value in values
    )
