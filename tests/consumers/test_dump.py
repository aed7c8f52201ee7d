"""A dump at any point, and going on from it elsewhere, is as if nothing had happened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.consumers.model import Part, Shows, fragments_of, is_end, resumed
from tests.consumers.streams import completions, disordered
from tests.consumers.test_objects_crash import ACTIONS, IDLE, Owner

from penstock.consumers import dump as dumps
from penstock.consumers import runs
from penstock.consumers.assembler import Assembler
from penstock.consumers.stateful import Completion
from penstock.consumers.steps import Limits
from penstock.errors import LimitError, ProtocolError


class Mover(Owner):
    """An owner that hands over instead of crashing."""

    def move(self) -> None:
        parts = self.assembler.dump()
        before = self.assembler
        self.assembler = Assembler.load(Shows(self.completion), parts, **self.settings)
        assert self.assembler.dump() == parts
        assert self.assembler.next_offset == before.next_offset
        assert self.assembler.progress() == before.progress()


def run(owner: Mover, parts: Sequence[Part], actions: Any, moves: set[int]) -> None:
    at = 0
    for number, (action, size) in enumerate(actions):
        if action == "take":
            owner.take(parts[at : at + size], at)
            at = min(at + size, len(parts))
        elif action == "rest":
            owner.rest(size)
        else:
            owner.save(bool(size))
        if number in moves:
            owner.move()
    owner.take(parts[at:], at)


@settings(max_examples=100)
@given(st.data(), completions(), st.booleans())
def test_a_dump_at_any_point_changes_nothing(data, completion, by_clock):
    """Unlike a crash it keeps the clock too: silence goes on to count."""
    if by_clock:
        completion = replace(completion, idle_after=float(IDLE))
    parts = data.draw(disordered(most=40))
    actions = data.draw(ACTIONS)
    calm = Mover(completion)
    run(calm, parts, actions, set())
    expected = calm.leave()
    points = range(len(actions))
    for moves in [*({point} for point in points), set(points)]:
        owner = Mover(completion)
        run(owner, parts, actions, moves)
        assert owner.leave() == expected


@settings(max_examples=50)
@given(st.data(), completions(bulk=True))
def test_a_dump_changes_nothing_where_rows_are_folded_in_bulk(data, completion):
    parts = data.draw(disordered(most=60))
    actions = data.draw(ACTIONS)
    calm = Mover(completion, bulk=False)
    run(calm, parts, actions, set())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "_LEAST_ROWS", 1)
        patch.setattr(runs, "_LEAST_PER_KEY", 0)
        owner = Mover(completion)
        run(owner, parts, actions, set(range(len(actions))))
    assert owner.leave() == calm.leave()


@settings(max_examples=100)
@given(st.data(), completions())
def test_a_dump_and_then_a_crash_change_nothing(data, completion):
    """The new owner's own progress is good too, and a dump may be taken while it reads again."""
    parts = data.draw(disordered(least=4, most=40))
    cut = data.draw(st.integers(1, len(parts) - 1))
    completion = replace(completion, idle_after=float(IDLE))
    calm, owner = Mover(completion), Mover(completion)
    for each in (calm, owner):
        each.take(parts[:cut], 0)
        each.rest(IDLE + 1)
    owner.move()
    progress = owner.assembler.progress()
    owner.assembler = resumed(completion, progress, **owner.settings)
    for at in range(progress.offset, progress.through):
        owner.take(parts[at : at + 1], at)
        owner.move()
    for each in (calm, owner):
        each.take(parts[cut:], cut)
    assert owner.leave() == calm.leave()


def test_parts_are_bounded_whatever_waits(monkeypatch):
    monkeypatch.setattr(dumps, "PART_BYTES", 100)
    parts = [Part(b"k%d" % n, b"v" * 40, n) for n in range(50)]
    assembler = Assembler(Shows(Completion(is_end, timeout=100, delay=20)))
    assembler.take(fragments_of(parts), 0)
    assert assembler.held_count > 10
    found = assembler.dump()
    assert len(found) > 20
    assert max(map(len, found[1:])) < 400
    loaded = Assembler.load(Shows(Completion(is_end, timeout=100, delay=20)), found)
    assert (loaded.held_count, loaded.open_count) == (assembler.held_count, assembler.open_count)


def test_a_limit_on_states_counts_those_of_a_dump():
    completion, limits = Completion(is_end, timeout=100), Limits(state_bytes=100)
    assembler = Assembler(Shows(completion), limits=limits)
    assembler.take(fragments_of([Part(b"a", b"x" * 60, 0)]), 0)
    loaded = Assembler.load(Shows(completion), assembler.dump(), limits=limits)
    with pytest.raises(LimitError, match="bytes"):
        loaded.take(fragments_of([Part(b"b", b"x" * 60, 1)], 1), 0)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda parts: [],
        lambda parts: parts[:-1],
        lambda parts: [b"\x93", *parts[1:]],
        lambda parts: [parts[0], b"nonsense", *parts[2:]],
        lambda parts: [b"\x97\x63" + parts[0][2:], *parts[1:]],
    ],
)
def test_what_is_no_dump_is_refused(spoil):
    completion = Completion(is_end, timeout=100, delay=5)
    assembler = Assembler(Shows(completion))
    assembler.take(fragments_of([Part(b"a", b"1", 0), Part(b"a", b"2", 30)]), 0)
    with pytest.raises(ProtocolError):
        Assembler.load(Shows(completion), spoil(assembler.dump()))
