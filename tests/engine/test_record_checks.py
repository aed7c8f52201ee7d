"""What a broken or hostile owner may send: nothing of it is logged, and its link ends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cluster.members.world import World

from penstock.cluster.replication.messages import Record, Records, pack, unpack
from penstock.core.changes import Change, Given, Op, pack_changes, pack_grants
from penstock.core.holds import Fallback, Waits, pack_fallback, pack_waits
from penstock.core.records import (
    Forward,
    Kind,
    PushMeta,
    Registered,
    pack_forward,
    pack_note,
    pack_push,
)
from penstock.engine.record_checks import check_copied, check_records
from penstock.errors import ProtocolError
from penstock.wire.batch import stamp
from penstock.wire.encode import encode_batch
from penstock.wire.holds import TxnWrite

META = pack_push(PushMeta(1, 0, 40, 2, 0, 0, 0))


def held(waits: bytes) -> bytes:
    return pack_push(PushMeta(1, 0, 40, 2, 0, 0, 0, True, b"id", waits))


def waiting(*shards: int) -> bytes:
    """It waits for an entry, and falls back to a write in each of these shards."""
    write = TxnWrite(2, b"key", b"value")
    return pack_waits(Waits([(3, 2, b"key")], 0, pack_fallback(Fallback([*shards], [write], []))))


def batch(base: int = 40) -> bytearray:
    made = bytearray(encode_batch([b"a", b"b"], timestamp_us=5))
    stamp(made, base, 3, 7)
    return made


def record(number: int = 1, kind: int = Kind.PUSH, epoch: int = 3, **fields: object) -> Record:
    values = {"meta": META, "payload": batch()} | fields
    return Record(kind, epoch, number, **values)  # type: ignore[arg-type]


GOOD = [
    record(1, epoch=2),
    record(2, Kind.PUSH | Kind.FORWARDED, meta=pack_forward(Forward(2, 0, 9), META)),
    record(3, Kind.NOTE, meta=pack_note(Registered(5, 6)), payload=None),
    record(4, Kind.GRANT, meta=pack_grants(1, [Given(1, 40, 2, 5)]), payload=None),
    record(5, Kind.CHANGE, meta=pack_changes(1, [Change(Op.ACK, 2, 1, 40, 0, 0)]), payload=None),
    record(6, meta=held(waiting(1))),
]


def damaged() -> bytearray:
    flipped = batch()
    flipped[-1] ^= 1
    return flipped


def test_what_an_owner_logs_passes():
    check_records(Records(0, 3, 1, GOOD))
    check_records(Records(0, 3, 1, []))


@pytest.mark.parametrize(
    "wrong",
    [
        [record(0)],
        [record(1, epoch=4)],
        [record(1), record(3)],
        [record(2), record(1)],
        [record(1, epoch=3), record(2, epoch=2)],
        [record(1, kind=77, payload=None)],
        [record(1, kind=Kind.BARRIER, payload=None)],
        [record(1, kind=Kind.RESET, payload=None)],
        [record(1, kind=Kind.COPY)],
        [record(1, kind=Kind.CONSENSUS, payload=None)],
        [record(1, payload=None)],
        [record(1, payload=damaged())],
        [record(1, payload=batch(41))],
        [record(1, payload=b"short")],
        [record(1, meta=b"short")],
        [record(1, kind=Kind.PUSH | Kind.FORWARDED, meta=b"short")],
        [record(1, meta=held(b"\xc1"))],
        [record(1, meta=held(waiting(1, 2)))],
        [record(1, meta=held(pack_waits(Waits([], 0, b"\xc1"))))],
        [record(1, kind=Kind.NOTE, meta=b"\xc1", payload=None)],
        [record(1, kind=Kind.NOTE, meta=pack_note(Registered(5, 6)))],
        [record(1, kind=Kind.GRANT, meta=b"", payload=None)],
        [record(1, kind=Kind.CHANGE, meta=b"\1\0\0\0\5\0\0\0", payload=None)],
        [record(1, kind=Kind.TRANSACTION, meta=b"x", payload=None)],
        [record(1, kind=Kind.OUTGOING, meta=b"x", payload=None)],
    ],
)
def test_what_cannot_be_a_log_is_refused(wrong):
    with pytest.raises(ProtocolError):
        check_records(Records(0, 3, 1, wrong))


@given(st.integers(0, 255), st.binary(max_size=80), st.none() | st.binary(max_size=200))
def test_no_bytes_get_past_or_do_worse(kind, meta, payload):
    sent = unpack(memoryview(b"".join(pack(Records(0, 3, 1, [Record(kind, 3, 1, meta, payload)])))))
    assert isinstance(sent, Records)
    try:
        check_records(sent)
    except ProtocolError:
        return
    assert kind & ~Kind.FORWARDED in (Kind.GRANT, Kind.CHANGE, Kind.NOTE, Kind.TRANSACTION)


def test_batches_of_a_copy_are_looked_at():
    check_copied(META, bytes(batch()))
    for meta, payload in ((META, damaged()), (META, batch(41)), (b"", batch()), (META, b"")):
        with pytest.raises(ProtocolError):
            check_copied(meta, bytes(payload))


def test_a_follower_takes_nothing_of_it():
    world = World(1)
    place = world.map().shards[0]
    follower = next(node for node in place.in_sync if node != place.owner)
    member = world.hosts[follower].member
    assert member is not None
    shard = member.engine.fabric.kernel.shards[0]
    before = shard.last
    hostile = Records(0, place.epoch, 0, [record(before + 1, epoch=place.epoch, payload=damaged())])
    with pytest.raises(ProtocolError, match=f"record {before + 1} of shard 0"):
        member.receive(place.owner, [memoryview(b"r" + b"".join(pack(hostile)))], world.now_us)
    world.run(1_000_000)
    assert shard.last == before
