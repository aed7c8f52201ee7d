"""The small parts of the core, each against the plainest model of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core import dedupe
from penstock.core import index as index_module
from penstock.core.dedupe import IDLE_US, NAMED_IDLE_US, RECENT_BATCHES, IdWindow, Producers
from penstock.core.index import BatchIndex
from penstock.core.leases import SETTLED_KEPT, Leases
from penstock.core.runs import Run, bits_of, cut, full, mask_of, rows_of, run_of, window
from penstock.core.table import Cell, TableShard
from penstock.core.waiting import Delayed, KeyQueues, Returned
from penstock.errors import ConflictError, FencedError, ForgottenError, InvalidError, LimitError
from penstock.wire.frames import Settle, SettleItem

SETS = st.sets(st.integers(0, 70))


def bits(rows: set[int]) -> int:
    return sum(1 << row for row in rows)


# --- runs ----------------------------------------------------------------------------------


@given(rows=SETS)
def test_masks_are_sets(rows: set[int]) -> None:
    mask = bits(rows)
    assert set(rows_of(mask).tolist()) == rows
    assert mask_of(np.asarray(sorted(rows), np.intp)) == mask


@given(rows=SETS, position=st.integers(0, 1 << 60))
def test_run_of(rows: set[int], position: int) -> None:
    run = run_of(position, bits(rows), 3)
    if not rows:
        assert run is None
        return
    assert run is not None
    assert {run.position + row for row in rows_of(run.mask).tolist()} == {
        position + row for row in rows
    }
    assert run.mask & 1
    assert (run.messages, run.deliveries) == (len(rows), 3)
    assert run.end == position + max(rows) + 1


@given(start=st.integers(0, 60), count=st.integers(0, 60), run=st.integers(0, 60))
def test_window(start: int, count: int, run: int) -> None:
    wanted = {place - run for place in range(start, start + count) if place >= run}
    assert window(start, count, run) == bits(wanted)


@given(rows=SETS, count=st.integers(0, 70), origin=st.integers(0, 50), after=st.integers(0, 50))
def test_bits_of(rows: set[int], count: int, origin: int, after: int) -> None:
    wanted = rows or set(range(count))
    assert bits_of(origin + after, count, bits(rows), origin) == bits({r + after for r in wanted})


@given(rows=SETS.filter(bool), messages=st.integers(1, 80))
def test_cut(rows: set[int], messages: int) -> None:
    run = run_of(100, bits(rows), 0)
    assert run is not None
    first, rest = cut(run, messages)
    ordered = sorted(row + 100 for row in rows)
    parts = [first] if rest is None else [first, rest]
    found = [[part.position + row for row in rows_of(part.mask).tolist()] for part in parts]
    assert found == [part for part in (ordered[:messages], ordered[messages:]) if part]


# --- the index -----------------------------------------------------------------------------


@given(data=st.data())
def test_index_is_a_dict(data: Any) -> None:
    trim = data.draw(st.sampled_from([1, 3, 1024]))
    kept, index_module._TRIM_FROM = index_module._TRIM_FROM, trim
    try:
        _check_index(data)
    finally:
        index_module._TRIM_FROM = kept


def _check_index(data: Any) -> None:
    index, model, end, freed = BatchIndex(), dict[int, list[int]](), 0, dict[int, int]()
    for step in range(data.draw(st.integers(1, 25))):
        action = data.draw(st.sampled_from(["append", "append", "finish", "move", "restore"]))
        if action == "append":
            base = end + data.draw(st.integers(0, 3))  # a gap: a damaged batch
            span, length = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 1000))
            index.append(base, span, step + 1, length, step)
            model[base] = [span, span, span, step + 1, length]
            end = base + span
        elif action == "restore":
            index = BatchIndex.restore(index.snapshot())
        elif model:
            base = data.draw(st.sampled_from(sorted(model)))
            span, _, live, location, length = model[base]
            if action == "move":
                assert index.move(base, location + 999, 1, 1, 1) is None
                before = index.move(base, location, step + 500, 77, live)
                assert before is not None
                assert (before.location, before.live) == (location, live)
                model[base] = [span, live, live, step + 500, 77]
                freed.pop(base, None)
                continue
            count = data.draw(st.integers(1, live))
            place, size = index.finish(base + data.draw(st.integers(0, span - 1)), count)
            assert place == location
            freed[base] = freed.get(base, 0) + size
            model[base][2] -= count
            if not model[base][2]:
                assert freed[base] == length, "all bytes are free in the end, and no more"
                del model[base]
        _compare_index(index, model, end)


def _compare_index(index: BatchIndex, model: dict[int, list[int]], end: int) -> None:
    rows = {s.base: [s.span, s.rows, s.live, s.location, s.length] for s in index.rows()}
    assert rows == model
    assert len(index) == len(model)
    first = index.first()
    assert (first.base if first else None) == (min(model) if model else None)
    for position in range(end + 2):
        found = index.find(position)
        holder = [base for base, row in model.items() if base <= position < base + row[0]]
        assert ([] if found is None else [found.base]) == holder


@given(times=st.lists(st.integers(0, 9), max_size=8), asked=st.integers(0, 10))
def test_base_at(times: list[int], asked: int) -> None:
    index = BatchIndex()
    for base, time_us in enumerate(sorted(times)):
        index.append(base, 1, 1, 1, time_us)
    expected = sum(time_us < asked for time_us in times)
    assert index.base_at(asked, len(times)) == expected


# --- leases --------------------------------------------------------------------------------


def ack_of(grant: int, position: int) -> SettleItem:
    return SettleItem(Settle.ACK, 0, 1, grant, position, 0)


@given(data=st.data())
def test_leases(data: Any) -> None:
    leases, model, acked = Leases(), dict[int, tuple[set[int], int]](), dict[int, set[int]]()
    now_us = 0
    for _ in range(data.draw(st.integers(1, 30))):
        action = data.draw(st.sampled_from(["give", "settle", "extend", "wait", "restore"]))
        if action == "give":
            number, lease_us = leases.next_number, data.draw(st.sampled_from([5, 9]))
            rows = data.draw(st.sets(st.integers(0, 5), min_size=1)) | {0}
            leases.give(number, Run(number * 10, bits(rows), 1), lease_us, now_us)
            model[number] = ({number * 10 + row for row in rows}, now_us + lease_us)
        elif action == "wait":
            now_us += data.draw(st.integers(0, 6))
            due = leases.next_due()
            over = sorted(grant.number for grant in leases.expired(now_us, 1000, 1000))
            assert over == [n for n, (_, deadline_us) in model.items() if deadline_us <= now_us]
            assert not over or (due is not None and due <= now_us)
            for number in over:
                grant = leases.grants[number]
                leases.settle(grant, grant.mask, False)
                del model[number]
        elif action == "restore":
            leases = Leases.restore(leases.snapshot())
            leases.restart(now_us, 1)
            model = {
                n: (rows, now_us + leases.grants[n].lease_us) for n, (rows, _) in model.items()
            }
        elif model:
            number = data.draw(st.sampled_from(sorted(model)))
            grant, (rows, _) = leases.grants[number], model[number]
            if action == "extend":
                lease_us = data.draw(st.sampled_from([5, 9]))
                leases.extend(grant, lease_us, now_us)
                model[number] = (rows, now_us + lease_us)
                continue
            chosen = data.draw(st.sets(st.sampled_from(sorted(rows)), min_size=1))
            ack = data.draw(st.booleans())
            leases.settle(grant, bits({row - number * 10 for row in chosen}), ack)
            if ack:
                acked.setdefault(number, set()).update(chosen)
            model[number] = (rows - chosen, model[number][1])
            if not model[number][0]:
                del model[number]
        assert set(leases.grants) == set(model)
        assert leases.messages == sum(len(rows) for rows, _ in model.values())
        for number in range(1, leases.next_number):
            for row in range(number * 10, number * 10 + 7):
                item = SettleItem(1, 0, 1, number, row, 0)
                assert leases.acked(item) == (row in acked.get(number, ()))


def test_only_so_many_settled_leases_are_remembered() -> None:
    leases = Leases()
    for number in range(1, SETTLED_KEPT + 2):
        leases.settle(leases.give(number, Run(number, 1), 5, 0), 1, True)
    for known in (leases, Leases.restore(leases.snapshot())):
        assert not known.acked(SettleItem(1, 0, 1, 1, 1, 0))
        assert known.acked(SettleItem(1, 0, 1, 2, 2, 0))
        assert known.acked(SettleItem(1, 0, 1, SETTLED_KEPT + 1, SETTLED_KEPT + 1, 0))


# --- producers and ids ---------------------------------------------------------------------


@given(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=40), restore=st.booleans())
def test_producers_know_what_they_have(sizes: list[int], restore: bool) -> None:
    producers, firsts, sequence = Producers(), list[tuple[int, int]](), 0
    for base, count in enumerate(sizes):
        assert producers.check(7, 0, sequence) is None
        producers.accept(7, 0, sequence, count, base * 100, 0)
        firsts.append((sequence, base * 100))
        sequence += count
        if restore:
            producers = Producers.restore(producers.snapshot())
    for first, base in firsts[-RECENT_BATCHES:]:
        assert producers.check(7, 0, first) == base
    for first, _ in firsts[:-RECENT_BATCHES]:
        assert producers.check(7, 0, first) == -1
    with pytest.raises(InvalidError):
        producers.check(7, 0, sequence + 1)
    with pytest.raises(ForgottenError):
        producers.check(8, 0, 5)


def test_a_new_instance_fences_older_ones() -> None:
    producers = Producers()
    producers.register(7, 1, 0)
    producers.accept(7, 1, 0, 3, 0, 0)
    assert producers.register(7, 2, 0) == 3
    with pytest.raises(FencedError):
        producers.check(7, 1, 3)
    assert producers.check(7, 2, 3) is None


def test_idle_producers_make_room_also_behind_named_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dedupe, "MAX_PRODUCERS", 3)
    producers = Producers()
    producers.register(1, 1, 0)
    for producer in (2, 3):
        producers.accept(producer, 0, 0, 1, 0, 0)
    with pytest.raises(LimitError):
        producers.has_room(IDLE_US - 1)
    producers.has_room(IDLE_US)
    producers.accept(4, 0, 0, 1, 0, IDLE_US)
    assert set(producers.windows) == {1, 4}, "the named one stays for a week"
    producers.accept(5, 0, 0, 1, 0, NAMED_IDLE_US)
    assert set(producers.windows) == {5}


@given(ages=st.lists(st.integers(0, 20), max_size=10), before_us=st.integers(0, 20))
def test_ids_are_kept_for_a_time(ages: list[int], before_us: int) -> None:
    window = IdWindow()
    for position, added_us in enumerate(sorted(ages)):
        window.add(b"%d" % position, position, added_us)
    window = IdWindow.restore(window.snapshot())
    window.expire(before_us)
    for position, added_us in enumerate(sorted(ages)):
        found = window.find(b"%d" % position)
        assert found == (position if added_us > before_us else None)


def test_ids_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dedupe, "MAX_IDS", 2)
    window = IdWindow()
    for key in (b"a", b"b"):
        window.has_room()
        window.add(key, 0, 0)
    with pytest.raises(LimitError):
        window.has_room()


# --- what waits ----------------------------------------------------------------------------


@given(
    rows=st.lists(SETS.filter(bool), max_size=4), start=st.integers(0, 400),
    span=st.integers(1, 200), delayed=st.booleans(),
)  # fmt: skip
def test_dropping_a_range(rows: list[set[int]], start: int, span: int, delayed: bool) -> None:
    waiting: Returned | Delayed = Delayed() if delayed else Returned()
    places: set[int] = set()
    for number, part in enumerate(rows):
        run = run_of(number * 100, bits(part), 0)
        assert run is not None
        places |= {number * 100 + row for row in part}
        if isinstance(waiting, Delayed):
            waiting.add(run, 50 + number)
        else:
            waiting.add(run)
    dropped = waiting.drop(start, span)
    found = {run.position + row for run in dropped for row in rows_of(run.mask).tolist()}
    assert found == {place for place in places if start <= place < start + span}
    left = {
        run.position + row for run in waiting.runs.values() for row in rows_of(run.mask).tolist()
    }
    assert left == places - found
    assert waiting.messages == len(left)
    if isinstance(waiting, Delayed):
        assert sum(run.messages for run in waiting.due(1000)) == len(left)


@given(data=st.data())
def test_lines_of_keys(data: Any) -> None:
    keys, lines, buried, place = KeyQueues(), dict[bytes, list[int]](), dict[int, bytes](), 0
    for _ in range(data.draw(st.integers(1, 30))):
        heads = sorted(line[0] for line in lines.values() if line)
        action = data.draw(st.sampled_from(["add", "finish", "bury", "redrive", "restore"]))
        if action == "add":
            key = data.draw(st.sampled_from([b"a", b"b"]))
            place += 1
            assert keys.add(place, key) == (not lines.get(key))
            lines.setdefault(key, []).append(place)
        elif action == "restore":
            keys = KeyQueues.restore(keys.snapshot())
        elif action == "redrive" and buried:
            old, key = buried.popitem()
            line = lines.setdefault(key, [])
            assert keys.first_of(old) == (line[0] if line else None)
            passes = not line or (old < line[0] and data.draw(st.booleans()))
            keys.redrive(old, passes_first=passes)
            if passes:
                lines[key] = [old, *sorted(line)]
            else:
                lines[key] = [line[0], *sorted([*line[1:], old])]
        elif heads:
            head = data.draw(st.sampled_from(heads))
            key = next(key for key, line in lines.items() if line and line[0] == head)
            lines[key].pop(0)
            following = lines[key][0] if lines[key] else None
            leave = keys.bury if action == "bury" else keys.finish
            assert leave(head) == following
            if action == "bury":
                buried[head] = key
        assert sorted(keys.behind()) == sorted(p for line in lines.values() for p in line[1:])


# --- tables --------------------------------------------------------------------------------


@given(data=st.data())
def test_table_is_a_dict(data: Any) -> None:
    table, model, now_us = TableShard(1), dict[bytes, tuple[bytes, int, int]](), 0
    keys = st.binary(min_size=1, max_size=2)
    for version in range(1, data.draw(st.integers(2, 25))):
        key = data.draw(keys)
        if data.draw(st.booleans()):
            expires_us = data.draw(st.sampled_from([0, now_us + 2, now_us + 9]))
            table.put(key, Cell(b"v", version, expires_us, version % 3))
            model[key] = (b"v", version, expires_us)
        else:
            assert table.remove(key) == (key in model)
            model.pop(key, None)
        now_us += data.draw(st.integers(0, 2))
        if data.draw(st.booleans()):
            table = TableShard.restore(1, table.snapshot())
        live = {k: v for k, v in model.items() if not v[2] or v[2] > now_us}
        prefix, after = data.draw(st.binary(max_size=1)), data.draw(st.none() | keys)
        wanted = [k for k in sorted(live) if k.startswith(prefix) and (after is None or k > after)]
        assert table.scan(prefix, after, 5, now_us) == wanted[:5]
        for known, (_, made, _) in live.items():
            table.check(known, made, now_us)
            with pytest.raises(ConflictError):
                table.check(known, 0, now_us)
        for session in (1, 2):
            bound = [k for k, cell in table.cells.items() if cell.session == session]
            assert table.keys_of(session) == sorted(bound)
        for gone in table.expired(now_us):
            assert gone not in live
            table.remove(gone)
            del model[gone]
    assert table.bytes == sum(len(k) + 1 + 160 for k in table.cells)


def test_full_mask() -> None:
    assert [full(count) for count in (0, 1, 3)] == [0, 1, 7]
