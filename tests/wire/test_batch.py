"""Batches: what goes in comes out, rows can be taken, and hostile bytes are refused."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import lz4.block
import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import DamagedError, InvalidError, PenstockError, ProtocolError, TooLargeError
from penstock.wire import codec as codecs
from penstock.wire.batch import HEADER, HEADER_BYTES, Batch, Columns, Origin, checksum_of
from penstock.wire.columns import BinaryColumn
from penstock.wire.encode import encode_batch
from penstock.wire.limits import MAX_BATCH_MESSAGES, MAX_RAW_BYTES

pytestmark = pytest.mark.usefixtures("version")

LONGS = st.integers(-(1 << 63), (1 << 63) - 1)
HEADERS = st.dictionaries(st.text(max_size=5), st.binary(max_size=8), max_size=3)


@st.composite
def batches(draw: Any) -> dict[str, Any]:
    count = draw(st.integers(1, 12))

    def column(items: Any) -> list[Any] | None:
        lists = st.lists(items, min_size=count, max_size=count)
        made: list[Any] | None = draw(st.none() | lists)
        return made

    value = draw(st.sampled_from([st.binary(max_size=40), st.binary(min_size=4, max_size=4)]))
    return {
        "values": draw(st.lists(value, min_size=count, max_size=count)),
        "keys": column(st.none() | st.binary(max_size=9)),
        "timestamps_us": column(LONGS),
        "headers": column(st.none() | HEADERS),
        "timestamp_us": draw(LONGS),
        "compression": draw(st.sampled_from(["none", "lz4", "zstd"])),
        "origin": draw(st.none() | st.builds(Origin, *[st.integers(0, (1 << 64) - 1)] * 3)),
    }


def rows_of(given: dict[str, Any]) -> list[tuple[Any, ...]]:
    count = len(given["values"])
    keys = given["keys"] or [None] * count
    times = given["timestamps_us"] or [given["timestamp_us"]] * count
    headers = [row or {} for row in given["headers"] or [None] * count]
    return list(zip(given["values"], keys, times, headers, range(count), strict=True))


def encode(given: dict[str, Any]) -> bytearray:
    rest = {name: value for name, value in given.items() if name != "values"}
    return encode_batch(given["values"], **rest)


def reseal(buffer: bytearray) -> bytearray:
    """Hostile bytes under a checksum that holds."""
    buffer[32:40] = struct.pack("<Q", checksum_of(buffer))
    return buffer


def use(batch: Batch) -> None:
    """Everything that reads the body."""
    batch.check()
    list(batch)
    batch.to_arrow().validate(full=True)
    batch.take(np.arange(batch.count, dtype=np.intp))
    for count in (1, batch.count):
        batch.span(batch.count - count, count)


# --- round trips ---------------------------------------------------------------------------


@given(given=batches())
def test_round_trip(given: dict[str, Any]) -> None:
    batch = Batch.parse(encode(given))
    assert len(batch.buffer) % 8 == 0
    assert list(map(tuple, batch)) == rows_of(given)
    assert batch.origin == given["origin"]


@given(given=batches(), data=st.data())
def test_take_keeps_rows_and_offsets(given: dict[str, Any], data: Any) -> None:
    rows, batch = rows_of(given), Batch.parse(encode(given))
    for _ in range(2):  # the second time from a batch that lacks rows already
        chosen = sorted(data.draw(st.sets(st.integers(0, batch.count - 1), min_size=1)))
        batch = Batch.parse(batch.take(np.asarray(chosen, np.intp)))
        rows = [rows[row] for row in chosen]
        assert list(map(tuple, batch)) == rows
        assert batch.origin == given["origin"]


@given(given=batches(), data=st.data())
def test_a_span_keeps_rows_and_offsets(given: dict[str, Any], data: Any) -> None:
    rows, batch = rows_of(given), Batch.parse(encode(given))
    for _ in range(2):  # the second time from one whose base is not that of the whole
        first = data.draw(st.integers(0, batch.count - 1))
        count = data.draw(st.integers(1, batch.count - first))
        batch = Batch.parse(batch.span(first, count))
        rows = rows[first : first + count]
        assert list(map(tuple, batch)) == rows
        assert batch.origin == given["origin"]


def test_a_span_of_many_rows() -> None:
    values = [b"%d" % number * (number % 5) for number in range(100)]
    batch = Batch.parse(encode_batch(values, keys=values, timestamp_us=7))
    assert Batch.parse(batch.span(30, 50)).values == values[30:80]
    assert Batch.parse(batch.span(30, 50)).keys == values[30:80]


@given(
    offsets=st.sets(st.integers(0, 30), min_size=1), wanted=st.sets(st.integers(0, 35)),
    base=st.integers(0, 1 << 60),
)  # fmt: skip
def test_rows_at(offsets: set[int], wanted: set[int], base: int) -> None:
    whole = Batch.parse(encode_batch([b"%d" % n for n in range(31)], timestamp_us=0))
    taken = whole.take(np.asarray(sorted(offsets), np.intp))
    struct.pack_into("<Q", taken, 8, base)
    batch = Batch.parse(taken)
    rows = batch.rows_at(np.asarray(sorted(wanted), np.int64) + base)
    assert [batch.values[row] for row in rows] == [b"%d" % n for n in sorted(offsets & wanted)]


@given(given=batches())
def test_arrow_holds_the_same(given: dict[str, Any]) -> None:
    batch = Batch.parse(encode(given))
    table = batch.to_arrow()
    table.validate(full=True)
    assert table.column("value").to_pylist() == batch.values
    assert table.column("key").to_pylist() == batch.keys
    assert table.column("timestamp").cast("int64").to_pylist() == batch.timestamps.tolist()
    assert table.column("offset").to_pylist() == batch.offsets.tolist()


def test_arrow_is_on_the_same_memory() -> None:
    buffer = encode_batch(
        [b"one", b"two"], keys=[b"k", None], timestamps_us=[1, 2], headers=[{"a": b"b"}, None],
        timestamp_us=0,
    )  # fmt: skip
    first = np.frombuffer(buffer, np.uint8).__array_interface__["data"][0]
    table = Batch.parse(buffer).to_arrow()
    for name in ("value", "key", "timestamp", "headers"):
        for part in table.column(name).buffers():
            assert part is None or first <= part.address < first + len(buffer), name


def test_compression_that_does_not_pay_is_left_out() -> None:
    assert Batch.parse(encode_batch([b"x"], timestamp_us=0, compression="zstd")).header.codec == 0


# --- what a producer may not do ------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "terms", "error"),
    [
        ([], {}, TooLargeError),
        ([b""] * (MAX_BATCH_MESSAGES + 1), {}, TooLargeError),
        ([bytes(17 << 20)], {}, TooLargeError),
        ([bytes(65 << 20)], {"compression": "zstd"}, TooLargeError),
        ([b"x"], {"priority": 16}, InvalidError),
        ([b"x"], {"keys": [b"a", b"b"]}, InvalidError),
        ([b"x"], {"compression": "gzip"}, InvalidError),
        (["text"], {}, InvalidError),
        ([b"x"], {"keys": [7]}, InvalidError),
    ],
)
def test_refused_when_encoded(values: Any, terms: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        encode_batch(values, timestamp_us=0, **terms)


# --- damage --------------------------------------------------------------------------------

SMALL: dict[str, Callable[[], bytearray]] = {
    compression: lambda compression=compression: encode_batch(  # type: ignore[misc]
        [b"value " * 8, b"value " * 7], keys=[b"k", None], timestamps_us=[1, 2],
        headers=[{"a": b"b"}, None], timestamp_us=5, compression=compression,
    )
    for compression in ("none", "lz4", "zstd")
}  # fmt: skip


@pytest.mark.parametrize("compression", SMALL)
def test_every_truncation_is_refused(compression: str) -> None:
    buffer = SMALL[compression]()
    for length in range(len(buffer)):
        with pytest.raises(PenstockError):
            Batch.parse(buffer[:length])
    with pytest.raises(ProtocolError):
        Batch.parse(buffer + bytes(8))


@pytest.mark.parametrize("compression", SMALL)
def test_every_bit_flip_is_found(compression: str) -> None:
    buffer = SMALL[compression]()
    for bit in range(len(buffer) * 8):
        flipped = bytearray(buffer)
        flipped[bit >> 3] ^= 1 << (bit & 7)
        if 64 <= bit < 256:  # the node's fields; whoever stores the batch checks them
            try:
                use(Batch.parse(flipped))
            except PenstockError:
                continue
        else:
            with pytest.raises((ProtocolError, DamagedError)):
                Batch.parse(flipped)


@pytest.mark.parametrize("compression", SMALL)
def test_hostile_bytes_under_a_good_checksum(compression: str) -> None:
    """Every byte set to extremes: a PenstockError or a readable batch, never anything else."""
    buffer = SMALL[compression]()
    for at in range(40, len(buffer)):
        for value in (0, 1, 0x7F, 0x80, 0xFF):
            hostile = bytearray(buffer)
            hostile[at] = value
            try:
                use(Batch.parse(reseal(hostile)))
            except PenstockError:
                continue


@settings(max_examples=200)
@given(
    columns=st.integers(0, 255), count=st.integers(1, 4), codec=st.integers(0, 4),
    raw_length=st.integers(0, 200), body=st.binary(max_size=160), data=st.data(),
)  # fmt: skip
def test_hostile_headers_and_bodies(
    columns: int, count: int, codec: int, raw_length: int, body: bytes, data: Any
) -> None:
    numbers = data.draw(st.lists(st.integers(-(1 << 31), (1 << 31) - 1), max_size=8))
    body = struct.pack(f"<{len(numbers)}i", *numbers) + body
    header = HEADER.pack(
        b"PSB1", HEADER_BYTES + len(body), 0, 0, 0, 0, 0, 1, codec, 0, columns, count, 0, 0, 0, 0,
        0, 0, 0, raw_length,
    )  # fmt: skip
    try:
        use(Batch.parse(reseal(bytearray(header + body))))
    except PenstockError:
        return


@given(offsets=st.lists(st.integers(-(1 << 31), (1 << 31) - 1), min_size=2, max_size=6))
def test_offsets_that_are_read_are_inside_and_ascending(offsets: list[int]) -> None:
    packed = struct.pack(f"<{len(offsets)}i", *offsets)
    body = memoryview(packed + bytes(-len(packed) % 8 + 64))
    fits = offsets[0] == 0 and offsets == sorted(offsets) and offsets[-1] <= 64
    try:
        column, _ = BinaryColumn.read(body, 0, len(offsets) - 1, False)
    except ProtocolError:
        assert not fits
    else:
        assert fits
        assert sum(map(len, column.tolist())) == offsets[-1]


@pytest.mark.parametrize("offsets", [[0, -1], [0, 0x7FFFFFFF, -0x80000000, -1, 5], [0, 8, 4, 8]])
def test_offsets_that_go_back_are_refused(offsets: list[int]) -> None:
    """The second list wraps around if neighbours are subtracted."""
    body = struct.pack(f"<{len(offsets)}i", *offsets)
    with pytest.raises(ProtocolError):
        BinaryColumn.read(memoryview(body + bytes(64)), 0, len(offsets) - 1, False)


def compressed(codec: int, data: bytes, raw_length: int) -> bytearray:
    body = len(data).to_bytes(8, "little") + data
    body += bytes(-len(body) % 8)
    header = HEADER.pack(
        b"PSB1", HEADER_BYTES + len(body), 0, 0, 0, 0, 0, 1, codec, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0,
        raw_length,
    )  # fmt: skip
    return reseal(bytearray(header + body))


@pytest.mark.parametrize(
    "raw_length", [0, 16, 1 << 20, MAX_RAW_BYTES, MAX_RAW_BYTES + 1, 0xFFFFFFFF]
)
@pytest.mark.parametrize("codec", [codecs.LZ4, codecs.ZSTD])
def test_decompression_bombs(codec: int, raw_length: int) -> None:
    """A body that opens to more, or to less, than its header states."""
    bomb = bytes(2 << 20)
    data = (
        lz4.block.compress(bomb, store_size=False)
        if codec == codecs.LZ4
        else zstandard.ZstdCompressor().compress(bomb)
    )
    with pytest.raises(ProtocolError):
        Batch.parse(compressed(codec, data, raw_length)).check()


def test_zstd_without_a_stated_size_is_refused() -> None:
    data = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(100))
    with pytest.raises(ProtocolError):
        Batch.parse(compressed(codecs.ZSTD, data, 100)).check()


def test_headers_that_are_no_map() -> None:
    buffer = encode_batch([b"v"], headers=[{"a": b"bcdefgh"}], timestamp_us=0)
    at = buffer.index(b"\x81\xa1a")
    for hostile in (b"\x91\xa1a", b"\x81\xa1\xff", b"\x81\x01a", b"\xc1\xa1a"):
        changed = bytearray(buffer)
        changed[at : at + 3] = hostile
        with pytest.raises(ProtocolError):
            _ = Batch.parse(reseal(changed)).headers


def test_keys_bit_without_a_column() -> None:
    buffer = encode_batch([b"v"], timestamp_us=0)
    buffer[43] = Columns.KEYS
    with pytest.raises(ProtocolError):
        Batch.parse(reseal(buffer)).check()
