"""Bytes that must never change: built by hand from the documented layout, not by our code."""

from __future__ import annotations

import struct

import pytest
import xxhash

from penstock.wire import frames
from penstock.wire.batch import HEADER_BYTES, Batch, stamp
from penstock.wire.encode import encode_batch
from penstock.wire.frames import Flag, PopMode, Settle, Verb

pytestmark = pytest.mark.usefixtures("version")

# magic, length 112 | base | epoch, node flags | arrived | checksum
PLAIN_NODE_PART = "50534231 70000000 0000000000000000 00000000 00000000 0000000000000000"
# version, codec, priority, columns | count | producer | sequence | timestamp | due
# | ttl, generation | instance, raw length
PLAIN_CHECKED = (
    "01 00 03 00 01000000 0700000000000000 2a00000000000000 40420f0000000000 0000000000000000"
    "e8030000 00000000 00000000 10000000"
)
PLAIN_BODY = "00000000 05000000 68656c6c6f 000000"  # offsets 0 and 5, "hello", padding

RICH_CHECKED = (
    "01 00 00 2f 03000000 0000000000000000 0000000000000000 0100000000000000 ffffffffffffffff"
    "00000000 02000000 05000000 80000000"
)
RICH_BODY = (
    "0900000000000000 0a00000000000000 0b00000000000000"  # origin: cluster, offset, hops
    "00000000 01000000 01000000 04000000 61 626364 00000000"  # values: "a", "", "bcd"
    "05 00000000000000"  # which keys are there: the first and the third
    "00000000 02000000 02000000 02000000 6b31 000000000000"  # keys: "k1", null, ""
    "0100000000000000 feffffffffffffff 0300000000000000"  # timestamps 1, -2, 3
    "00000000 00000000 06000000 06000000 81 a1 78 c4 01 ff 0000"  # headers: {"x": ff}
)


def sealed(checked: str, body: str) -> bytes:
    rest = bytes.fromhex(checked) + bytes.fromhex(body)
    front = b"PSB1" + struct.pack("<I", 40 + len(rest)) + bytes(24)
    return front + struct.pack("<Q", xxhash.xxh3_64_intdigest(rest)) + rest


def test_plain_batch() -> None:
    made = encode_batch(
        [b"hello"], timestamp_us=1_000_000, producer=7, sequence=42, priority=3, ttl_ms=1000
    )
    golden = sealed(PLAIN_CHECKED, PLAIN_BODY)
    assert made.hex() == golden.hex()
    assert golden[:32] == bytes.fromhex(PLAIN_NODE_PART)
    assert golden[32:40] == bytes.fromhex("4e2bf97777845148")


def test_rich_batch() -> None:
    # The third row has no headers, the second has one.
    golden = sealed(RICH_CHECKED, RICH_BODY)
    batch = Batch.parse(golden)
    assert batch.values == [b"a", b"", b"bcd"]
    assert batch.keys == [b"k1", None, b""]
    assert batch.timestamps.tolist() == [1, -2, 3]
    assert batch.headers == [{}, {"x": b"\xff"}, {}]
    assert batch.origin == (9, 10, 11)
    assert (batch.header.generation, batch.header.instance, batch.header.due_us) == (2, 5, -1)
    made = encode_batch(
        batch.values, keys=batch.keys, timestamps_us=[1, -2, 3], headers=batch.headers,
        timestamp_us=1, due_us=-1, generation=2, instance=5, origin=batch.origin,
    )  # fmt: skip
    assert made.hex() == golden.hex()


def test_row_offsets() -> None:
    golden = sealed(
        "01 00 00 10 02000000 0000000000000000 0000000000000000 0000000000000000"
        "0000000000000000 00000000 00000000 00000000 20000000",
        "00000000 01000000 02000000 00000000 7879 000000000000 01000000 04000000",
    )
    batch = Batch.parse(golden)
    assert batch.offsets.tolist() == [1, 4]
    whole = Batch.parse(encode_batch([b"a", b"x", b"b", b"c", b"y"], timestamp_us=0))
    taken = whole.take(whole.rows_at(batch.offsets))
    assert taken[HEADER_BYTES:].hex() == golden[HEADER_BYTES:].hex()


def test_stamp_is_outside_the_checksum() -> None:
    made = encode_batch([b"hello"], timestamp_us=0)
    stamp(made, base=0x0102030405060708, epoch=9, arrived_us=-1)
    assert made[8:32].hex() == "08070605040302010900000000000000ffffffffffffffff"
    assert Batch.parse(made).offsets.tolist() == [0x0102030405060708]


@pytest.mark.parametrize(
    ("made", "golden"),
    [
        (frames.frame(Verb.CREDIT, 5, 0, frames.CREDIT.pack(100)),
         "14000000 07 00 0000 0500000000000000 64000000"),
        (frames.frame(Verb.CANCEL, 1 << 63), "10000000 0a 00 0000 0000000000000080"),
        (frames.frame_head(Verb.DELIVER, 2, Flag.RESPONSE, 16),
         "20000000 08 01 0000 0200000000000000"),
        (frames.PUSH.pack(*frames.PushBody(1, 2, 3, 4, 5)), "01000000 02000000 0300 0400 05000000"),
        (frames.RECEIPT.pack(*frames.Receipt(1, 2, 3, 2, 1)),
         "0100000000000000 02000000 0300 02 01"),
        (frames.POP.pack(*frames.PopBody(1, 2, 3, 4, 5, PopMode.PEEK_DEAD)),
         "01000000 02000000 03000000 04000000 05000000 02000000"),
        (frames.COUNT.pack(1, 2), "01000000 02000000"),
        (frames.GRANT.pack(*frames.GrantHead(1, 2, 3, 4, 5, 6)),
         "0100000000000000 0200000000000000 03000000 0400 0500 06000000 00000000"),
        (frames.SETTLE_HEAD.pack(1, 2), "01000000 02000000"),
        (frames.pack_settle(9, [frames.SettleItem(Settle.DEAD, 1, 2, 3, 4, 5)])[8:],
         "04 00 0100 02000000 0300000000000000 0400000000000000 0500000000000000"),
        (frames.pack_settle(7, [frames.SettleItem(Settle.ACK, 1, 3, 3, 4, 0, 0b101)]),
         "07000000 01000000"
         "81 00 0100 03000000 0300000000000000 0400000000000000 0000000000000000 0500000000000000"),
        (frames.REFUSED.pack(1, 31), "01000000 1f000000"),
        (frames.FETCH.pack(*frames.FetchBody(1, 2, 3, 4, 5)),
         "01000000 02000000 0300000000000000 04000000 05000000"),
        (frames.FETCH_HEAD.pack(*frames.FetchHead(1, 2, 3)),
         "0100000000000000 0200000000000000 03000000 00000000"),
    ],
)  # fmt: skip
def test_frames(made: bytes, golden: str) -> None:
    assert made.hex() == bytes.fromhex(golden).hex()


def test_numbers_of_verbs_never_change() -> None:
    assert {verb.name: verb.value for verb in Verb} == {
        "HELLO": 1, "PUSH": 2, "POP": 3, "SETTLE": 4, "FETCH": 5, "SUBSCRIBE": 6, "CREDIT": 7,
        "DELIVER": 8, "CALL": 9, "CANCEL": 10, "EVENT": 11, "PEER": 12, "COMING": 13,
    }  # fmt: skip
    assert [Settle.ACK, Settle.NACK, Settle.EXTEND, Settle.DEAD] == [1, 2, 3, 4]
    assert [PopMode.LEASE, PopMode.PEEK, PopMode.PEEK_DEAD] == [0, 1, 2]
