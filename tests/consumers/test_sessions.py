"""Sessions from fragments: the generator's known answer, through crashes, and the record itself."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from penstock.consumers.assembler import Assembler
from penstock.consumers.fragments import Fragment, Fragments
from penstock.consumers.generator import Clicks, is_end
from penstock.consumers.progress import Progress
from penstock.consumers.session_bench import measure_sessions, plain_loop
from penstock.consumers.sessions import (
    Sessionizer,
    SessionRecord,
    decode_session,
    session_order,
)

CLICKS = [
    Clicks(seed=11, blocks=5, chains=60, duplicates=0.1, late=0.1),
    Clicks(seed=12, blocks=5, chains=60, delay=0.0, duplicates=0.1, late=0.1),
    Clicks(seed=13, blocks=3, chains=20, mean_fragments=40, delay=7200.0, timeout=600.0),
]
NAMES = [f"seed-{each.seed}" for each in CLICKS]


def sessionizer(clicks: Clicks) -> Sessionizer:
    return Sessionizer(
        end=is_end,
        timeout=clicks.timeout,
        delay=clicks.delay,
        late="side",
        fragment_id=bytes,
    )


def ordered(packed: list[bytes]) -> list[SessionRecord]:
    return sorted(map(decode_session, packed), key=session_order)


@pytest.mark.parametrize("bulk", [True, False], ids=["bulk", "plain"])
@pytest.mark.parametrize("size", [7, 10_000])
@pytest.mark.parametrize("clicks", CLICKS, ids=NAMES)
def test_the_known_answer(clicks, size, bulk):
    assembler = Assembler(sessionizer(clicks), bulk=bulk)
    steps = [assembler.take(batch, 0) for batch in clicks.batches(size)]
    results = [result.value for step in steps for result in step.results]
    assert ordered(results) == sorted(clicks.answer(), key=session_order)
    late = [each.fragment.value for step in steps for each in step.late]
    assert late == [value for _, value, _ in clicks.fragments() if value.endswith(b":late")]


@pytest.mark.parametrize("clicks", CLICKS, ids=NAMES)
def test_the_known_answer_with_an_owner_that_crashes_all_the_time(clicks):
    """Exactly once: results and progress, with the snapshot if there is one, in one commit."""
    batches = list(clicks.batches(150))
    progress, table, results = Progress.start().encode(), dict[bytes, bytes](), list[bytes]()
    for number in range(0, len(batches), 4):
        owner = Assembler(sessionizer(clicks), Progress.decode(progress), list(table.values()))
        for batch in batches:
            if batch.offsets[-1] < owner.next_offset:
                continue
            step = owner.take(batch, 0)
            results += [result.value for result in step.results]
            if number % 12 == 0 and not owner.replaying:
                save(owner, table)
            progress = owner.progress().encode()
            if batch is batches[min(number + 3, len(batches) - 1)]:
                break
    assert ordered(results) == sorted(clicks.answer(), key=session_order)


def save(owner: Assembler, table: dict[bytes, bytes]) -> None:
    snapshot = owner.snapshot(b"table")
    if snapshot.full:
        table.clear()
    for name, packed in snapshot.entries:
        if packed is None:
            del table[name]
        else:
            table[name] = packed


def ticking(step: float = 1.0) -> Iterator[float]:
    return (number * step for number in count())


def test_the_benchmark_measures_the_same_sessions():
    clicks = Clicks(seed=1, blocks=2, chains=50, duplicates=0.0)
    clock = ticking()
    rates = measure_sessions(clicks, lambda: next(clock), batch=500)
    assert rates.sessions == len(list(clicks.answer()))
    assert rates.plain_loop == rates.in_bulk == rates.one_by_one == rates.fragments
    assert "plain loop" in str(rates)


def test_the_plain_loop_of_the_benchmark_is_right_for_ordered_input():
    clicks = Clicks(seed=2, blocks=2, chains=50, delay=0.0, duplicates=0.0)
    results = plain_loop(list(clicks.batches(500)), clicks.timeout_us)
    assert ordered(results) == sorted(clicks.answer(), key=session_order)


# --- the record -------------------------------------------------------------------------------

ROWS = [(b"u", b"b", 2), (b"u", b"a", 2), (b"u", b"\xff", 1), (b"u", b"a", 2), (b"u", b"END", 9)]


def finished(stateful: Sessionizer, bulk: bool = True) -> list[bytes]:
    padding = [(b"other%d" % (n % 3), b"x", 3) for n in range(70)]  # enough for the fast way
    rows = [*ROWS[:-1], *padding, ROWS[-1], (b"z", b"END", 2_000_000)]
    assembler = Assembler(stateful, bulk=bulk)
    results = assembler.take(Fragments.of(rows), 0).results
    return [result.value for result in results if result.key == b"u"]


@pytest.mark.parametrize("bulk", [True, False], ids=["bulk", "plain"])
def test_the_record_does_not_depend_on_the_order_of_equals(bulk):
    stateful = Sessionizer(end=b"END".__eq__, timeout=9, delay=1, fragment_id=bytes)
    assert finished(stateful, bulk) == [
        b'{"key":"u","start_us":1,"end_us":9,"count":4,"reason":"end",'
        b'"fragments":[[1,"\\\\xff"],[2,"a"],[2,"b"],[9,"END"]]}'
    ]


@pytest.mark.parametrize("bulk", [True, False], ids=["bulk", "plain"])
def test_a_fold_in_place_of_the_fragments(bulk):
    def longest(state: list[int], fragment: Fragment) -> list[int]:
        assert fragment.key
        return [*state, len(fragment.value)]

    stateful = Sessionizer(end=b"END".__eq__, timeout=9, delay=1, fold=longest, initial=[])
    (packed,) = finished(stateful, bulk)
    assert decode_session(packed) == SessionRecord("u", 1, 9, 5, "end", [], [1, 1, 1, 1, 3])


def test_an_open_session_survives_a_snapshot_with_the_ids_it_has_seen():
    stateful = Sessionizer(end=b"END".__eq__, timeout=9, fragment_id=bytes)
    first = Assembler(stateful)
    first.take(Fragments.of(sorted(ROWS[:4], key=lambda row: row[2])), 0)
    entries = first.snapshot(b"s").entries
    second = Assembler(stateful, first.progress(), [packed for _, packed in entries if packed])
    step = second.take(Fragments.of([(b"u", b"a", 3), (b"u", b"END", 9)], 4), 0)
    assert decode_session(step.results[0].value).count == 4
