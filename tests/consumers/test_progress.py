"""What is committed: its bytes, its size, its list."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.consumers.model import BASE_US, Part, Shows, fragments_of, is_end

from penstock.consumers.assembler import Assembler
from penstock.consumers.fragments import NEVER_US
from penstock.consumers.progress import Ignored, IgnoreList, Progress, SnapshotRef, name_of
from penstock.consumers.stateful import Completion
from penstock.errors import ProtocolError

OFFSETS = st.integers(0, 1 << 61)
TIMES = st.one_of(st.just(NEVER_US), st.integers(-(1 << 60), 1 << 60))
IGNORED = st.builds(Ignored, OFFSETS, TIMES, OFFSETS)
PROGRESS = st.builds(
    Progress,
    OFFSETS,
    OFFSETS,
    TIMES,
    st.lists(st.tuples(st.binary(max_size=32), IGNORED), max_size=5).map(tuple),
    st.lists(st.tuples(OFFSETS, TIMES), max_size=3).map(tuple),
    st.none() | st.builds(SnapshotRef, st.binary(max_size=20), OFFSETS, TIMES, TIMES),
    st.lists(st.binary(max_size=32), max_size=3).map(tuple),
)


@given(PROGRESS)
def test_bytes_and_back(progress):
    assert Progress.decode(progress.encode()) == progress


@pytest.mark.parametrize("packed", [b"", b"\x02\x90", b"\x01", b"\x01\x93\x01\x02\x03"])
def test_other_bytes_are_refused(packed):
    with pytest.raises(ProtocolError):
        Progress.decode(packed)


def test_the_bytes_of_version_one_stay_readable():
    packed = bytes.fromhex("01 98 05 04 0a 0e 91 94 c403 616263 03 00 01 91 92 02 0d c0 90")
    progress = Progress(5, 9, 10, ((b"abc", Ignored(8, 14, 7)),), ((7, 27),), None, ())
    assert progress.encode() == packed
    assert Progress.decode(packed) == progress


def test_a_hundred_finished_objects_take_a_few_kilobytes():
    long_one = [Part(b"first", b"0", 0)]
    others = [Part(b"session-%06d" % n, b"%d*" % n, n) for n in range(100)]
    assembler = Assembler(Shows(Completion(is_end, timeout=10_000)))
    assembler.take(fragments_of(long_one + others), 0)
    progress = assembler.progress()
    assert len(progress.ignore) == 100
    assert len(progress.encode()) < 3_000


def test_long_keys_are_named_by_a_hash_that_no_short_key_equals():
    assert name_of(b"short") == b"short"
    assert name_of(b"") == b""
    names = {name_of(bytes([n]) * 1000) for n in range(50)}
    assert len(names) == 50
    assert {len(name) for name in names} == {32}
    assert len(name_of(b"x" * 31)) == 31


def test_a_later_end_covers_earlier_ones_and_an_earlier_end_stays_beside_them():
    ignore = IgnoreList()
    ignore.add(b"k", Ignored(5, 100, 4))
    ignore.add(b"k", Ignored(9, 200, 8))
    assert ignore.entries() == ((b"k", Ignored(9, 200, 8)),)
    ignore.add(b"k", Ignored(12, 150, 11))
    assert len(ignore.entries()) == 2
    assert ignore.covers(b"k", 180, 8)
    assert not ignore.covers(b"k", 180, 9)
    assert ignore.covers(b"k", 150, 11)
    ignore.prune(11)
    assert len(ignore.entries()) == 2
    ignore.prune(12)
    assert ignore.entries() == ()


def test_nothing_read_is_where_a_reader_starts():
    progress = Progress.start(7)
    assert Assembler(Shows(Completion(is_end)), progress).progress() == progress
    assert progress.high_us < BASE_US
