"""A partition that is split at any point gives the same objects as one that is not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.consumers.model import Part, Shows, fragments_of, grouped, is_end, resumed, shown
from tests.consumers.streams import KEYS, in_time

from penstock.consumers.assembler import Assembler
from penstock.consumers.moved import Moved
from penstock.consumers.stateful import Completion
from penstock.consumers.steps import Step
from penstock.errors import InvalidError
from penstock.wire.growth import hash_of

CLOSER = Part(b"~", b"closing", 10_000)
BORDERS = sorted(hash_of(key) for key in KEYS)  # above the first, and so on


def split(assembler: Assembler[Any], moved: Moved) -> Assembler[Any]:
    """The child; the assembler itself keeps the rest."""
    assembler.passed(moved.offset)
    child = Assembler.load(Shows(assembler._stateful.completion), assembler.seed(moved.has))
    assembler.give_up(moved)
    return child


@settings(max_examples=150)
@given(st.data(), st.sampled_from([0, 1, 2]), st.booleans(), st.sampled_from([1, 5, 15]))
def test_a_split_at_any_point_changes_no_object(data, border, crash, delay):
    """Fragments come within the delay, so objects follow from the set of fragments."""
    completion = Completion(is_end, timeout=8, delay=delay)
    parts = data.draw(in_time(delay))
    cut = data.draw(st.integers(0, len(parts)))
    whole = Assembler(Shows(completion))
    expected = shown([whole.take(fragments_of([*parts, CLOSER]), 0)])

    parent = Assembler(Shows(completion))
    steps: list[Step] = [parent.take(fragments_of(parts[:cut]), 0)]
    moved = Moved(cut, BORDERS[border], 1 << 32)
    child = split(parent, moved)
    if crash:  # what the parent commits does not bring the moved keys back
        progress = parent.progress()
        parent = resumed(completion, progress, moved=(moved,))
        again = fragments_of(parts[progress.offset : cut], progress.offset)
        steps += [parent.take(again, 0), parent.passed(cut)]
    for assembler, has in ((parent, False), (child, True)):
        rest = fragments_of([*parts[cut:], CLOSER], cut)
        kept = [at for at in range(len(rest)) if moved.has(rest.keys[at]) == has]
        if CLOSER.key not in [rest.keys[at] for at in kept]:
            kept.append(len(rest) - 1)
        steps += [assembler.take(rest.cut(at, at + 1), 0) for at in kept]
    assert grouped(shown(steps)) == grouped(expected)
    assert (parent.held_count, child.held_count) == (1, 1)  # the closers


def test_keys_of_objects_that_a_snapshot_has_leave_too():
    completion = Completion(is_end, timeout=100)
    parent = Assembler(Shows(completion))
    parent.take(fragments_of([Part(b"a", b"1", 0), Part(b"b", b"2", 1)]), 0)
    snapshot = parent.snapshot(b"ref")
    moved = Moved(2, hash_of(b"a"), hash_of(b"a") + 1)
    child = split(parent, moved)
    assert (parent.open_count, child.open_count) == (1, 1)
    assert child.progress().offset == 0  # below where its log begins: it needs a snapshot or a dump
    child.snapshot(b"own")
    assert child.progress().offset == 2
    objects = [packed for _, packed in snapshot.entries if packed is not None]
    again = resumed(completion, parent.progress(), objects, moved=(moved,))
    assert again.open_count == 1


def test_fragments_without_a_key_and_those_after_the_split_stay():
    moved = Moved(5, 0, 1 << 32)
    assert moved.has(b"a")
    assert not moved.has(b"")


def test_there_is_no_seed_while_fragments_are_read_again():
    completion = Completion(is_end)
    first = Assembler(Shows(completion))
    first.take(fragments_of([Part(b"a", b"1", 0), Part(b"a", b"2", 1)]), 0)
    second = resumed(completion, first.progress())
    with pytest.raises(InvalidError, match="read again"):
        second.seed(lambda key: True)
    second.passed(2)
    assert second.seed(lambda key: True)
