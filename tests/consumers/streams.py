"""Strategies: fragments in many orders, and ways to complete objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st
from tests.consumers.model import Part, is_end

from penstock.consumers.stateful import Completion

KEYS = (b"a", b"b", b"c")


def _named(rows: Sequence[tuple[bytes, int, bool]]) -> list[Part]:
    return [
        Part(key, f"{number}{'*' if end else ''}".encode(), second)
        for number, (key, second, end) in enumerate(rows)
    ]


@st.composite
def in_time(
    draw: Any, delay: int, *, distinct: bool = False, of: Sequence[Part] | None = None
) -> list[Part]:
    """Fragments none of which comes `delay` or more behind another; or these in another order."""
    if of is None:
        row = st.tuples(st.sampled_from(KEYS), st.integers(0, 60), st.integers(0, 4).map(bool))
        unique = (lambda each: each[1]) if distinct else None
        rows = draw(st.lists(row, max_size=30, unique_by=unique))
        of = _named([(key, second, not other) for key, second, other in rows])
    waits = draw(st.lists(st.integers(0, delay - 1), min_size=len(of), max_size=len(of)))
    order = sorted(range(len(of)), key=lambda i: (of[i].second + waits[i], waits[i]))
    return [of[i] for i in order]


@st.composite
def disordered(draw: Any, least: int = 0, most: int = 30) -> list[Part]:
    """Fragments whose time mostly goes on, and sometimes far back."""
    row = st.tuples(st.sampled_from(KEYS), st.integers(-12, 6), st.integers(0, 4))
    rows = draw(st.lists(row, min_size=least, max_size=most))
    second, named = 20, []
    for key, move, end in rows:
        named.append((key, second + move, end == 0))
        second += max(0, move)
    return _named(named)


@st.composite
def completions(draw: Any, bulk: bool = False) -> Completion:
    """Any way to complete objects that makes sense; with `bulk`, those that have a fast way."""
    timeout = draw(st.sampled_from([None, 3, 8]))
    return Completion(
        marker=is_end if bulk else draw(st.sampled_from([is_end, None])) or _needed(timeout),
        timeout=timeout,
        count=None if bulk else draw(st.sampled_from([None, None, 1, 3])),
        delay=draw(st.sampled_from([0, 0, 1, 5, 15])),
        period=None if bulk or timeout is None else draw(st.sampled_from([None, 1.5])),
        late=draw(st.sampled_from(["ignore", "side", "reopen"])),
    )


def _needed(timeout: int | None) -> Any:
    return is_end if timeout is None else None
