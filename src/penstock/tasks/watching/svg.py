"""A timeline as a picture that any browser shows. No I/O here."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from xml.sax.saxutils import escape

from penstock.tasks.watching.timeline import Bar, Lane, Timeline
from penstock.wire.durations import duration_text, span_text

WIDTH = 1000  # of the lanes
LEFT, TOP, LANE, GAP = 220, 60, 18, 4
SMALLEST = 3  # a bar that is narrower is shown as part of how busy its column is
MAX_BARS = 20_000  # drawn by themselves; the others as columns
_TICKS = 10
_COLOURS = ("#4c78a8", "#72b7b2", "#54a24b", "#b279a2", "#9d755d", "#79706e", "#eeca3b", "#ff9da6")
_FAILED = "#e45756"


def drawn(timeline: Timeline, title: str) -> str:
    """The whole picture: a lane for each executor, a bar for each task; where tasks are too short
    to be seen, how busy the executor was."""
    height = TOP + len(timeline.lanes) * (LANE + GAP) + 30
    functions = sorted({bar.function for lane in timeline.lanes for bar in lane.bars})
    colours = {name: _COLOURS[at % len(_COLOURS)] for at, name in enumerate(functions)}
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 80}" height="{height}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{LEFT + WIDTH + 80}" height="{height}" fill="white"/>',
        f'<text x="10" y="20" font-size="14">{escape(title)}</text>',
        f'<text x="10" y="38" fill="#555">{escape(_summary(timeline))}</text>',
        *_axis(timeline, height),
    ]
    left = MAX_BARS
    for number, lane in enumerate(timeline.lanes):
        wide = [bar for bar in lane.bars if (bar.end - bar.begin) * WIDTH >= SMALLEST][:left]
        left -= len(wide)
        parts += _lane(lane, TOP + number * (LANE + GAP), wide, colours)
    return "\n".join([*parts, "</svg>\n"])


def _summary(timeline: Timeline) -> str:
    began = datetime.fromtimestamp(timeline.begin_us / 1e6, UTC).isoformat(timespec="seconds")
    return (
        f"{timeline.tasks:,} tasks, {timeline.failed:,} failed, on {len(timeline.lanes):,} "
        f"executors in {duration_text(timeline.seconds)} from {began}; "
        f"{timeline.utilisation:.1%} busy"
    )


def _axis(timeline: Timeline, height: int) -> Iterator[str]:
    for tick in range(_TICKS + 1):
        x = LEFT + WIDTH * tick / _TICKS
        at = duration_text(timeline.seconds * tick / _TICKS)
        yield f'<line x1="{x}" x2="{x}" y1="{TOP - 6}" y2="{height - 24}" stroke="#ddd"/>'
        yield f'<text x="{x}" y="{height - 8}" text-anchor="middle" fill="#555">{at}</text>'


def _lane(lane: Lane, y: int, wide: list[Bar], colours: dict[str, str]) -> Iterator[str]:
    text = y + LANE - 5
    yield f'<text x="{LEFT - 8}" y="{text}" text-anchor="end">{escape(lane.worker[-36:])}</text>'
    yield f'<rect x="{LEFT}" y="{y}" width="{WIDTH}" height="{LANE}" fill="#f4f4f4"/>'
    seen = set(wide)
    narrow = Lane(lane.worker, [bar for bar in lane.bars if bar not in seen])
    if narrow.bars:
        yield from _columns(narrow, y)
    for bar in wide:
        colour = _FAILED if bar.failed else colours[bar.function]
        told = f"{bar.function} {span_text(bar.took_us)}"
        yield (
            f'<rect x="{LEFT + bar.begin * WIDTH:.1f}" y="{y + 1}" '
            f'width="{(bar.end - bar.begin) * WIDTH - 0.5:.1f}" height="{LANE - 2}" '
            f'fill="{colour}"><title>{escape(told)}</title></rect>'
        )
    yield f'<text x="{LEFT + WIDTH + 8}" y="{text}">{lane.busy:.1%}</text>'


def _columns(lane: Lane, y: int) -> Iterator[str]:
    """Neighbouring columns that are equally busy are one rectangle."""
    shares = [round(float(share), 1) for share in lane.columns(WIDTH)]
    begin = 0
    for at in range(1, WIDTH + 1):
        if at < WIDTH and shares[at] == shares[begin]:
            continue
        if shares[begin]:
            yield (
                f'<rect x="{LEFT + begin}" y="{y + 1}" width="{at - begin}" height="{LANE - 2}" '
                f'fill="{_COLOURS[0]}" fill-opacity="{shares[begin]}"/>'
            )
        begin = at
