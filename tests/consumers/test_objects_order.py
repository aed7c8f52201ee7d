"""Which fragments belong together depends on the fragments alone, not on how they came."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.consumers.model import (
    SECOND_US,
    Part,
    assemble,
    closing,
    expected,
    fragments_of,
    grouped,
    is_end,
    shown,
)
from tests.consumers.streams import completions, disordered, in_time

from penstock.consumers.assembler import Assembler
from penstock.consumers.stateful import Completion
from penstock.consumers.steps import Result, Step

SIZES = st.lists(st.integers(1, 7), max_size=4)


@given(st.data(), st.integers(1, 12), st.integers(1, 9))
def test_any_order_within_the_delay_gives_the_objects_of_the_model(data, delay, timeout):
    parts = data.draw(in_time(delay))
    completion = Completion(marker=is_end, timeout=timeout, delay=delay)
    steps, _ = assemble(completion, closing(parts, timeout + delay + 1), data.draw(SIZES))
    assert grouped(shown(steps)) == expected(parts, timeout)
    assert sum(step.late_count for step in steps) == 0


@given(st.data(), st.integers(1, 12), st.integers(1, 9))
def test_two_orders_of_the_same_fragments_give_the_same_results(data, delay, timeout):
    parts = data.draw(in_time(delay, distinct=True))
    again = data.draw(in_time(delay, of=parts))
    for count, period in [(None, None), (3, None), (None, 2.0)]:
        completion = Completion(is_end, timeout, count, delay=delay, period=period)
        one, other = (
            shown(assemble(completion, closing(each, timeout + delay + 1))[0])
            for each in (parts, again)
        )
        assert one == other


@given(st.data(), completions())
def test_batching_changes_nothing(data, completion):
    parts = data.draw(disordered())
    whole, last = assemble(completion, parts)
    split, other = assemble(completion, parts, data.draw(SIZES), bulk=False)
    assert shown(split) == shown(whole)
    assert [result for step in split for result in step.results] == whole_results(whole)
    assert [late for step in split for late in step.late] == [x for s in whole for x in s.late]
    assert sum(s.late_count for s in split) == sum(s.late_count for s in whole)
    assert other.progress() == last.progress()._replace(ignore=other.progress().ignore)


def whole_results(steps: list[Step]) -> list[Result]:
    return [result for step in steps for result in step.results]


@given(st.data(), completions(bulk=True))
def test_the_fast_way_gives_what_the_plain_way_gives(data, completion):
    parts = data.draw(disordered(least=64, most=150))
    fast, last = assemble(completion, parts)
    plain, other = assemble(completion, parts, bulk=False)
    assert whole_results(fast) == whole_results(plain)
    assert snapshot_of(last) == snapshot_of(other)
    assert last.progress() == other.progress()


def snapshot_of(assembler: Assembler[list[bytes]]) -> list[tuple[bytes, bytes | None]]:
    return sorted(assembler.snapshot(b"x", full=True).entries)


def test_an_end_in_the_middle_splits_what_came_before_it():
    """Fragments 1 and 3 come first; the end at 2 shows that they are of different objects."""
    parts = [Part(b"a", b"one", 1), Part(b"a", b"three", 3), Part(b"a", b"two*", 2)]
    steps, _ = assemble(Completion(is_end, timeout=100, delay=10), closing(parts, 200))
    assert shown(steps) == [(b"a", "end", (b"one", b"two*")), (b"a", "timeout", (b"three",))]


def test_a_gap_of_the_timeout_joins_and_a_longer_one_splits():
    parts = [Part(b"a", b"one", 0), Part(b"a", b"two", 10), Part(b"a", b"three", 21)]
    for delay in (0, 5):
        steps, _ = assemble(Completion(timeout=10, delay=delay), closing(parts, 100))
        assert [each.values for each in shown(steps)] == [(b"one", b"two"), (b"three",)]


def test_the_watermark_is_the_delay_behind_and_never_falls():
    parts = [Part(b"a", b"x", 50), Part(b"a", b"y", 42), Part(b"a", b"z", 60)]
    _, assembler = assemble(Completion(timeout=100, delay=10), parts[:1])
    first_us = assembler.watermark_us
    assembler.take(fragments_of(parts[1:2], 1), 0)
    assert assembler.watermark_us == first_us
    assembler.take(fragments_of(parts[2:], 2), 0)
    assert assembler.watermark_us == first_us + 10 * SECOND_US
