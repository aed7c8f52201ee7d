"""A new owner goes on from what was committed, at any point, as if nothing had happened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.consumers.model import SECOND_US, Part, Shows, fragments_of, is_end, resumed
from tests.consumers.streams import completions, disordered

from penstock.consumers import runs
from penstock.consumers.assembler import Assembler
from penstock.consumers.calls import ErrorPolicy
from penstock.consumers.fragments import Fragment
from penstock.consumers.stateful import Completion
from penstock.consumers.steps import Limits, Step
from penstock.errors import InvalidError, LimitError

IDLE = 4


class Owner:
    """An assembler, the table with its snapshot, and a log of everything that came out."""

    def __init__(self, completion: Completion, **settings: Any) -> None:
        self.completion, self.settings = completion, settings
        self.assembler = Assembler(Shows(completion), **settings)
        self.table: dict[bytes, bytes] = {}
        self.seen: list[Any] = []
        self.now_us = 0
        self.wants_snapshot = False

    def take(self, parts: Sequence[Part], offset: int) -> None:
        self._log(self.assembler.take(fragments_of(parts, offset), self.now_us))

    def rest(self, seconds: int) -> None:
        self.now_us += seconds * SECOND_US
        self._log(self.assembler.tick(self.now_us, at_end=True))

    def save(self, full: bool) -> None:
        snapshot = self.assembler.snapshot(b"ref", full=full)
        if snapshot.full:
            self.table.clear()
        for name, packed in snapshot.entries:
            if packed is None:
                del self.table[name]
            else:
                self.table[name] = packed

    def crash(self, parts: Sequence[Part], size: int) -> None:
        """Commits, loses all else, and reads again as far as the one before had read."""
        progress = self.assembler.progress()
        self.assembler = resumed(
            self.completion, progress, list(self.table.values()), **self.settings
        )
        for at in range(progress.offset, progress.through, size):
            assert self.assembler.progress() == progress
            self.take(parts[at : min(at + size, progress.through)], at)
        assert self.assembler.next_offset == progress.through
        assert self.assembler.progress() == progress

    def leave(self) -> tuple[list[Any], Any]:
        """Everything that came out, and what is still open."""
        return self.seen, sorted(self.assembler.snapshot(b"last", full=True).entries)

    def _log(self, step: Step) -> None:
        self.wants_snapshot = step.wants_snapshot
        self.seen += [*step.results, *step.late, *step.dead, *["late"] * step.late_count]


Action = tuple[str, int]
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.integers(1, 6)),
        st.tuples(st.just("rest"), st.integers(1, 12)),
        st.tuples(st.just("save"), st.integers(0, 1)),
    ),
    max_size=10,
)


def run(owner: Owner, parts: Sequence[Part], actions: Sequence[Action], crashes: set[int]) -> None:
    at = 0
    for number, (action, size) in enumerate(actions):
        if action == "take":
            owner.take(parts[at : at + size], at)
            at = min(at + size, len(parts))
        elif action == "rest":
            owner.rest(size)
        else:
            owner.save(bool(size))
        if number in crashes:
            owner.crash(parts[:at], max(1, size))
    owner.take(parts[at:], at)


@settings(max_examples=100)
@given(st.data(), completions())
def test_a_crash_at_any_point_changes_nothing(data, completion):
    parts = data.draw(disordered(most=40))
    actions = [action for action in data.draw(ACTIONS) if action[0] != "rest"]
    calm = Owner(completion)
    run(calm, parts, actions, set())
    expected = calm.leave()
    points = range(len(actions))
    for crashes in [*({point} for point in points), set(points)]:
        owner = Owner(completion)
        run(owner, parts, actions, crashes)
        assert owner.leave() == expected


@settings(max_examples=100)
@given(st.data(), completions(bulk=True))
def test_a_crash_changes_nothing_where_rows_are_folded_in_bulk(data, completion):
    parts = data.draw(disordered(most=60))
    actions = [action for action in data.draw(ACTIONS) if action[0] != "rest"]
    calm = Owner(completion, bulk=False)
    run(calm, parts, actions, set())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "_LEAST_ROWS", 1)
        patch.setattr(runs, "_LEAST_PER_KEY", 0)
        owner = Owner(completion)
        run(owner, parts, actions, set(range(len(actions))))
    assert owner.leave() == calm.leave()


@settings(max_examples=100)
@given(st.data(), completions(), st.booleans())
def test_a_crash_after_the_clock_moved_time_on_changes_nothing(data, completion, by_arrival):
    """Silence counts anew after a crash, so that the clock rests from there on, in both."""
    if by_arrival:
        completion = replace(completion, time="arrival", delay=0.0, late="ignore")
    else:
        completion = replace(completion, idle_after=float(IDLE))
    parts = data.draw(disordered(most=40))
    actions = data.draw(ACTIONS)
    for point in range(len(actions)):
        rest = [action for action in actions[point + 1 :] if action[0] != "rest"]
        script = [*actions[: point + 1], *rest]
        calm, owner = Owner(completion), Owner(completion)
        run(calm, parts, script, set())
        run(owner, parts, script, {point})
        assert owner.leave() == calm.leave()


def test_results_that_were_not_committed_are_made_again_and_are_the_same():
    """At least once: the crash comes after delivery and before the commit."""
    parts = [Part(b"a", b"1", 0), Part(b"b", b"2", 1), Part(b"a", b"3*", 2), Part(b"b", b"4*", 3)]
    completion = Completion(is_end, timeout=100)
    first = Assembler(Shows(completion))
    first.take(fragments_of(parts[:2]), 0)
    committed = first.progress()
    delivered = first.take(fragments_of(parts[2:], 2), 0).results

    second = resumed(completion, committed)
    again = second.take(fragments_of(parts[committed.offset :], committed.offset), 0).results
    assert again == delivered
    assert [result.id for result in again] == [result.id for result in delivered]
    assert len({result.id for result in again}) == 2


def test_a_key_whose_next_object_began_before_the_last_one_ended():
    """An offset per key would not do: offset 1 is of the open object, offset 2 of the finished."""
    parts = [Part(b"a", b"1", 1), Part(b"a", b"6", 6), Part(b"a", b"5*", 5), Part(b"b", b"x", 16)]
    completion = Completion(is_end, timeout=100, delay=10)
    assembler = Assembler(Shows(completion))
    step = assembler.take(fragments_of(parts), 0)
    assert [result.value for result in step.results] == [b"1 5*"]
    progress = assembler.progress()
    assert progress.offset == 1

    second = resumed(completion, progress)
    assert second.take(fragments_of(parts[1:], 1), 0).results == []
    (entry,) = [packed for _, packed in second.snapshot(b"x").entries]
    assert entry is not None
    assert b"6" in entry
    assert b"5*" not in entry


def test_a_timer_that_a_skipped_fragment_had_fired_is_fired_again_in_its_place():
    parts = [Part(b"a", b"0", 20), Part(b"b", b"1*", 22), Part(b"a", b"2", 21)]
    calm, owner = (Owner(Completion(is_end, timeout=3, period=1.5)) for _ in range(2))
    for each in (calm, owner):
        each.take(parts, 0)
    owner.crash(parts, 3)
    assert owner.leave() == calm.leave()


def test_a_count_that_is_reached_among_fragments_of_one_instant():
    """Two of the three are used up; the third is of the next object, at the same time."""
    parts = [*(Part(b"a", b"%d" % n, 5) for n in range(3)), Part(b"b", b"x", 30)]
    owner = Owner(Completion(timeout=100, count=2, delay=10))
    owner.take(parts, 0)
    assert [result.value for result in owner.seen] == [b"0 1"]
    owner.crash(parts, 4)
    owner.take([Part(b"a", b"3", 31), Part(b"c", b"y", 60)], 4)
    assert [result.value for result in owner.seen] == [b"0 1", b"2 3"]


def test_an_object_that_begins_in_the_instant_in_which_the_last_one_of_its_key_ended():
    """In bulk, and with no delay: only the offset tells what the first one has used up."""
    parts = [Part(b"a", b"1*", 0), Part(b"a", b"2", 0), *[Part(b"b", b"x", 1)] * 70]
    owner = Owner(Completion(is_end, timeout=100))
    owner.take(parts, 0)
    owner.crash(parts, 100)
    owner.take([Part(b"a", b"3*", 2)], len(parts))
    assert [result.value for result in owner.seen] == [b"1*", b"2 3*"]


def test_a_late_object_that_is_over_while_the_next_of_its_key_is_open():
    """Two ends of a key are to be remembered: the later one does not cover the earlier."""
    parts = [
        Part(b"a", b"next", 101),
        Part(b"a", b"end*", 100),
        Part(b"z", b"clock", 108),
        Part(b"a", b"back", 95),  # joins the open object, behind the end of the one before
        Part(b"a", b"alone", 80),  # too early even for that
    ]
    owner = Owner(Completion(is_end, timeout=10, delay=5, late="reopen"))
    owner.take(parts, 0)
    assert [result.value for result in owner.seen] == [b"end*", b"alone"]
    owner.crash(parts, 2)
    owner.take([Part(b"z", b"clock", 200)], 5)
    assert [result.value for result in owner.seen][2:] == [b"next back", b"clock"]


def test_a_late_object_does_not_keep_the_open_one_of_its_key_out_of_the_snapshot():
    parts = [Part(b"a", b"1", 100), Part(b"a", b"alone", 80)]
    owner = Owner(Completion(is_end, timeout=10, late="reopen"))
    owner.save(full=True)
    owner.take(parts, 0)
    owner.save(full=False)
    owner.crash(parts, 1)
    owner.take([Part(b"a", b"2*", 101)], 2)
    assert [result.value for result in owner.seen] == [b"alone", b"1 2*"]


def test_an_object_of_the_snapshot_that_is_over_since_does_not_come_back():
    parts = [Part(b"a", b"1", 0), Part(b"b", b"2", 1), Part(b"a", b"3*", 2), Part(b"a", b"4", 3)]
    owner = Owner(Completion(is_end, timeout=100))
    owner.take(parts[:2], 0)
    owner.save(full=False)
    owner.take(parts[2:3], 2)
    owner.crash(parts, 1)
    owner.take(parts[3:], 3)
    owner.crash(parts, 1)
    owner.save(full=False)
    assert sorted(owner.table) == [b"a", b"b"]
    owner.take([Part(b"a", b"5*", 4), Part(b"b", b"6*", 4)], 4)
    assert [result.value for result in owner.seen] == [b"1 3*", b"4 5*", b"2 6*"]
    owner.save(full=False)
    assert owner.table == {}


def test_a_snapshot_lets_the_safe_offset_go_on_and_empties_the_list():
    parts = [Part(b"long", b"0", 0), *(Part(b"k%d" % n, b"%d*" % n, n) for n in range(1, 30))]
    owner = Owner(Completion(is_end, timeout=1000), limits=Limits(ignored=10))
    owner.take(parts[:5], 0)
    assert not owner.wants_snapshot
    owner.take(parts[5:20], 5)
    assert owner.wants_snapshot
    assert owner.assembler.progress().offset == 0

    owner.save(full=False)
    progress = owner.assembler.progress()
    assert (progress.offset, progress.ignore) == (20, ())
    owner.take(parts[20:], 20)
    owner.crash(parts, 3)
    owner.take([Part(b"long", b"end*", 40)], 30)
    assert owner.seen[-1].value == b"0 end*"


def test_a_list_that_nobody_empties_is_refused_in_the_end():
    parts = [Part(b"long", b"0", 0), *(Part(b"k%d" % n, b"%d*" % n, n) for n in range(1, 70))]
    assembler = Assembler(Shows(Completion(is_end, timeout=1000)), limits=Limits(ignored=1))
    assembler.take(fragments_of(parts), 0)
    with pytest.raises(LimitError, match="snapshot"):
        assembler.take(fragments_of([Part(b"x", b"x", 99)], 70), 0)
    assembler.snapshot(b"now")
    assert assembler.take(fragments_of([Part(b"x", b"x", 99)], 70), 0).results == []


def test_a_snapshot_is_refused_while_fragments_are_read_again():
    parts = [Part(b"a", b"1", 0), Part(b"a", b"2", 1)]
    first = Assembler(Shows(Completion(is_end)))
    first.take(fragments_of(parts), 0)
    second = resumed(Completion(is_end), first.progress())
    second.take(fragments_of(parts[:1]), 0)
    with pytest.raises(InvalidError, match="read again"):
        second.snapshot(b"early")


def test_what_retention_removed_does_not_hold_a_new_owner_up():
    parts = [Part(b"a", b"1", 0), Part(b"a", b"2", 1), Part(b"a", b"3*", 2)]
    completion = Completion(is_end)
    first = Assembler(Shows(completion))
    first.take(fragments_of(parts[:2]), 0)
    second = resumed(completion, first.progress())
    second.tick(0, at_end=True)
    assert second.next_offset == 2
    assert [r.value for r in second.take(fragments_of(parts[2:], 2), 0).results] == [b"3*"]


def test_side_output_and_dead_letters_are_not_told_again():
    def refuse(state: list[bytes], fragment: Fragment) -> None:
        if fragment.value == b"bad":
            raise ValueError("bad")
        state.append(fragment.value)

    completion = Completion(timeout=5, late="side")
    parts = [Part(b"b", b"0", 0), Part(b"a", b"1", 20), Part(b"b", b"2", 1), Part(b"a", b"bad", 21)]
    shows = Shows(completion)
    shows.on_message = refuse  # type: ignore[method-assign]
    policy = ErrorPolicy("skip")
    first = Assembler(shows, on_error=policy)
    step = first.take(fragments_of(parts), 0)
    assert [late.fragment.value for late in step.late] == [b"2"]
    assert [letter.offset for letter in step.dead] == [3]

    second = Assembler(shows, first.progress(), on_error=policy)
    step = second.take(fragments_of(parts[1:], 1), 0)
    assert (step.late, step.dead, step.late_count) == ([], [], 0)
