"""Sessions go on over the growth of a topic, each partition with its own time, as by a consumer."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyarrow")

import pyarrow as pa

from penstock.consumers.assembler import Assembler
from penstock.consumers.fragments import Fragments
from penstock.consumers.generator import is_end
from penstock.consumers.moved import Moved
from penstock.consumers.sessions import Sessionizer
from penstock.errors import ProtocolError
from penstock.spark.engines import InColumns, OneByOne
from penstock.spark.families import Family, Lot
from penstock.spark.lineage import Handed, Lineage, held_back, lineages
from penstock.wire.growth import PartitionFamily, Split, hash_of

TOP, MIDDLE = 1 << 32, 1 << 31
SECOND = 1_000_000
KEYS = [b"a", b"b", b"c", b"d", b"e"]

FAMILIES = [
    PartitionFamily(0, 0, None, 0, MIDDLE, 0, [Split(1, 10, [2], [MIDDLE])]),
    PartitionFamily(1, 0, None, TOP, TOP, 0, []),
    PartitionFamily(2, 1, 0, MIDDLE, 3 << 30, 10, [Split(2, 25, [3], [3 << 30])]),
    PartitionFamily(3, 2, 2, 3 << 30, TOP, 25, []),
]


def test_lineages_tell_whose_keys_a_partition_has() -> None:
    lines = lineages(FAMILIES)
    assert [lines[each].root for each in range(4)] == [0, 1, 0, 0]
    assert lines[0].handed == [Handed(10, 2, MIDDLE, TOP)], "with what that handed on later"
    assert lines[2].birth == Handed(10, 2, MIDDLE, TOP)
    assert lines[3].birth == Handed(25, 3, 3 << 30, TOP)
    assert Lineage.decode(lines[2].encode()) == lines[2]


def test_children_are_read_when_their_parents_are_read_that_far() -> None:
    lines = lineages(FAMILIES)
    end = {0: 9, 1: 5, 2: 30, 3: 40}
    assert held_back(lines, {0: 3}, end) == {0: 9, 1: 5}
    assert held_back(lines, {0: 3, 2: 11}, end) == {0: 9, 1: 5, 2: 11}
    assert held_back(lines, {}, end | {0: 10, 2: 24}) == {0: 10, 1: 5, 2: 24}
    assert held_back(lines, {}, end | {0: 10}) == end | {0: 10}


def sessionizer() -> Sessionizer:
    return Sessionizer(end=is_end, timeout=300.0, delay=100.0, fragment_id=bytes)


def batch(rows: list[tuple[bytes, bytes, int]], first: int) -> Any:
    keys, values, times = zip(*rows, strict=True) if rows else ((), (), ())
    return pa.RecordBatch.from_pydict(
        {
            "key": pa.array(keys, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "time_us": pa.array(times, pa.int64()),
            "place": np.arange(first, first + len(rows)),
        }
    )


def values_of(found: list[Any]) -> list[bytes]:
    return [value for each in found for value in each.column("value").to_pylist()]


Rows = list[tuple[bytes, bytes, int]]


def by_consumer(before: Rows, parent: Rows, child: Rows, moved: Moved) -> list[bytes]:
    """What members do: the parent up to the split, then both of them."""
    one = Assembler(sessionizer())
    found = one.take(Fragments.of(before), 0).results
    two = Assembler.load(sessionizer(), one.seed(moved.has))
    one.give_up(moved)
    for assembler, rows in ((one, parent), (two, child)):
        found += assembler.take(Fragments.of(rows, first_offset=len(before)), 0).results
    return sorted(each.value for each in found)


fragment = st.tuples(
    st.sampled_from(KEYS),
    st.sampled_from([b"x", b"y", b"z:END"]),
    st.integers(0, 60).map(lambda steps: steps * 30 * SECOND),
)
rows = st.lists(fragment, max_size=25)


@settings(max_examples=150, deadline=None)
@given(rows.filter(bool), rows, rows, st.sampled_from([InColumns, OneByOne]), st.integers(0, 3),
       st.booleans())  # fmt: skip
def test_a_child_goes_on_with_the_open_sessions_of_its_keys(
    before, parent, child, engine, cut, keeps
) -> None:
    border = sorted(map(hash_of, KEYS))[2]
    handed = Handed(len(before), 1, border, TOP)
    moved = handed.moved
    parent = [row for row in parent if not moved.has(row[0])]
    child = [row for row in child if moved.has(row[0])]
    old = Lineage(0, 0, handed=[handed])
    new = Lineage(1, 0, parent=0, birth=handed)
    whole = batch([*before, *parent], 0)
    stop = max(0, min(len(whole), len(before) + (-2, 0, 1, 5)[cut]))  # of the first micro-batch
    steps = [
        [Lot(old, whole.slice(0, stop))],
        [Lot(new, batch(child, len(before))), Lot(old, whole.slice(stop))],
    ]
    family = Family(partial(engine, sessionizer()), None, ())
    head: bytes | None = None
    chunks: list[bytes] = []
    found: list[bytes] = []
    for lots in steps:
        found += values_of(family.take([lot for lot in lots if len(lot.rows)], 0))
        saved = family.save()
        head, chunks = saved.head, [*chunks * (not saved.replaces), saved.chunk]
        if not keeps:
            family = Family(partial(engine, sessionizer()), head, chunks)
    assert sorted(found) == by_consumer(before, parent, child, moved)
    assert sorted(values_of(family.flush())) == sorted(
        values_of(Family(partial(engine, sessionizer()), head, chunks).flush())
    )


def test_damaged_state_is_refused() -> None:
    make = partial(InColumns, sessionizer())
    with pytest.raises(ProtocolError, match="damaged"):
        Family(make, b"\x01", ())
    family = Family(make, None, ())
    saved = family.save()
    with pytest.raises(ProtocolError, match="of version 4"):
        Family(make, saved.head.replace(b"\x93\x03", b"\x93\x04"), ())
