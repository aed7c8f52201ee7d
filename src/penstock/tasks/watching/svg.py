"""A timeline as a picture that any browser shows. No I/O here."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime
from xml.sax.saxutils import escape

from penstock.tasks.watching.timeline import Bar, Lane, Timeline
from penstock.wire.durations import duration_text, span_text

WIDTH = 1000  # of the lanes
LEFT, TOP, LANE, GAP = 220, 76, 18, 4
SMALLEST = 3  # a bar that is narrower is shown as part of how busy its column is
MAX_BARS = 20_000  # drawn by themselves; the others as columns
MAX_NAMED = 12  # functions in the legend
_TICKS = 10  # at most; at round times
_CLOCK_S = (60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0, 7200.0, 21600.0, 86400.0)
_LEGEND, _LETTER = 54, 6.6  # where it stands, and about how wide a letter is
_COLOURS = ("#4c78a8", "#72b7b2", "#54a24b", "#b279a2", "#9d755d", "#79706e", "#eeca3b", "#ff9da6")
_FAILED = "#e45756"
_SHORT = "#777777"


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
        *_legend(colours),
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


def _legend(colours: dict[str, str]) -> Iterator[str]:
    """What the colours mean, as far as there is room for it."""
    named = list(colours.items())
    more = len(named) - MAX_NAMED
    told = [*named[:MAX_NAMED], ("failed", _FAILED), ("many short tasks", _SHORT)]
    if more > 0:
        told.append((f"and {more:,} more functions", "none"))
    x = 10.0
    for name, colour in told:
        if x > LEFT + WIDTH:
            return
        yield f'<rect x="{x:.0f}" y="{_LEGEND - 9}" width="10" height="10" fill="{colour}"/>'
        yield f'<text x="{x + 14:.0f}" y="{_LEGEND}">{escape(name)}</text>'
        x += 14 + len(name) * _LETTER + 18


def _axis(timeline: Timeline, height: int) -> Iterator[str]:
    step_s = _round_step(timeline.seconds / _TICKS)
    for tick in range(int(timeline.seconds / step_s + 1e-6) + 1):
        x = LEFT + WIDTH * tick * step_s / timeline.seconds
        at_us = round(tick * step_s * 1e6)
        at = duration_text(at_us / 1e6) if at_us % 1000 == 0 else span_text(at_us)
        told = at if tick else "0"
        yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 6}" y2="{height - 24}" stroke="#ddd"/>'
        yield f'<text x="{x:.1f}" y="{height - 8}" text-anchor="middle" fill="#555">{told}</text>'


def _round_step(least_s: float) -> float:
    """The shortest time that is so long, and that people count in: 1, 2 or 5 times a power of ten;
    from a minute on, as clocks are divided."""
    if least_s > _CLOCK_S[0] / 2:
        return next((each for each in _CLOCK_S if each >= least_s), _CLOCK_S[-1])
    power = 10.0 ** math.floor(math.log10(least_s))
    return next(power * each for each in (1, 2, 5, 10) if power * each >= least_s * 0.999999)


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
    """Neighbouring columns that are equally busy are one rectangle; those in which a task failed
    have a mark."""
    shares = [round(float(share), 1) for share in lane.columns(WIDTH)]
    begin = 0
    for at in range(1, WIDTH + 1):
        if at < WIDTH and shares[at] == shares[begin]:
            continue
        if shares[begin]:
            yield (
                f'<rect x="{LEFT + begin}" y="{y + 1}" width="{at - begin}" height="{LANE - 2}" '
                f'fill="{_SHORT}" fill-opacity="{shares[begin]}"/>'
            )
        begin = at
    for column in sorted({int(bar.begin * (WIDTH - 1)) for bar in lane.bars if bar.failed}):
        yield f'<rect x="{LEFT + column}" y="{y + 1}" width="1.5" height="{LANE - 2}" ' + (
            f'fill="{_FAILED}"/>'
        )
