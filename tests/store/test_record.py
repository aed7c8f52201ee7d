"""The bytes of records and file headers never change by accident."""

from __future__ import annotations

import struct

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import DamagedError, VersionError
from penstock.store.record import (
    ASSIGNED_BYTES,
    FILE_HEADER_BYTES,
    FileHeader,
    frame,
    payload_of,
    record_length,
)
from penstock.wire.buffers import Buffer
from penstock.wire.entry import RECORD_HEADER_BYTES, Entry, payload_location

GOLDEN_RECORD = (
    "5053523150000000400000000c0000002000000007000000"
    "2a0003000500000009000000000000000300000010000000"
    "{checksum}6d65740000000000000102030405060708090a0b0c0d0e0f"
)


def framed(position: int, meta: bytes, payload: bytes | None) -> bytes:
    parts: list[Buffer] = []
    length = record_length(len(meta), len(payload or b""))
    frame(parts, length, position, 7 << 32 | 32, 42, 3, 5, 9, meta, payload)
    return b"".join(parts)


def test_record_golden_vector() -> None:
    data = framed(12 << 32 | 64, b"met", bytes(range(16)))
    checked = data[:48] + b"met"
    halves = [xxhash.xxh3_64_intdigest(each) & 0xFFFFFFFF for each in (checked, bytes(range(16)))]
    checksum = struct.pack("<II", *halves).hex()
    assert data.hex() == GOLDEN_RECORD.format(checksum=checksum)
    assert checksum == "50464196db7017f6"


def test_file_header_golden_vector() -> None:
    data = FileHeader("s", 0x22, 17, 0x0123456789ABCDEF, 5 << 32 | 640).pack()
    assert data[:56].hex() == (
        "505346310200730022000000"
        + "11000000"
        + "efcdab8967452301"
        + "8002000005000000"
        + "00" * 24
    )
    assert data[56:].hex() == "6061f0268c1c8dad"


def test_a_file_of_another_layout_is_refused_whole() -> None:
    body = FileHeader("j", 1, 2, 3, 4).pack()[:-8]
    older = body[:4] + b"\1\0" + body[6:]
    with pytest.raises(VersionError, match="layout 1; this release reads layout 2"):
        FileHeader.parse(older + struct.pack("<Q", xxhash.xxh3_64_intdigest(older)))


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 511, 512, 513, 5000])
def test_records_are_aligned_and_a_large_payload_is_not_copied(size: int) -> None:
    payload, meta = bytearray(size), b"abc"
    parts: list[Buffer] = []
    length = record_length(len(meta), size)
    frame(parts, length, 64, 0, 1, 1, 1, 1, meta, payload)
    assert length % 8 == 0
    assert sum(map(len, parts)) == length
    assert any(part is payload for part in parts) == (size > 512)


@given(st.integers(0, 300), st.integers(0, 300))
def test_payload_follows_the_padded_meta(meta_bytes: int, payload_bytes: int) -> None:
    payload = b"\xff" * payload_bytes
    data = framed(0, b"m" * meta_bytes, payload)
    at = payload_location(0, meta_bytes)
    assert at % 8 == 0
    assert data[at : at + payload_bytes] == payload
    assert data[RECORD_HEADER_BYTES + meta_bytes : at].strip(b"\0") == b""


@given(st.integers(0, 40), st.integers(0, 80 * 8 - 1))
def test_a_payload_is_taken_out_of_its_record(meta_bytes: int, bit: int) -> None:
    payload = bytes(range(60))
    data = framed(0, b"m" * meta_bytes, payload)
    assert payload_of(data) == payload
    damaged = bytearray(data)
    damaged[bit // 8] ^= 1 << bit % 8
    at, start = bit // 8, payload_location(0, meta_bytes)
    if at < RECORD_HEADER_BYTES + meta_bytes or start <= at < start + ASSIGNED_BYTES:
        for wrong in (damaged, data[:-8], data[:40], b"", framed(0, b"m", None)):
            with pytest.raises(DamagedError):
                payload_of(wrong)


def test_entry_knows_where_its_payload_is() -> None:
    entry = Entry(1, 1, 1, 1, b"12345", b"x", location=2 << 32 | 64)
    assert entry.payload_location == (2 << 32 | 64) + 56 + 8


@given(
    st.builds(
        FileHeader,
        st.sampled_from("js"),
        st.integers(0, 2**32 - 1),
        st.integers(0, 2**32 - 1),
        st.integers(0, 2**64 - 1),
        st.integers(0, 2**64 - 1),
    ),
    st.integers(0, FILE_HEADER_BYTES * 8 - 1),
)
def test_file_header_round_trip_and_every_bit_counts(header: FileHeader, bit: int) -> None:
    data = header.pack()
    assert FileHeader.parse(data) == header
    damaged = bytearray(data)
    damaged[bit // 8] ^= 1 << bit % 8
    assert FileHeader.parse(bytes(damaged)) is None
    assert FileHeader.parse(data[:63]) is None
