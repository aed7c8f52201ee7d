"""What the manager of a gang commits in the end, and what it does if nobody takes that."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.client.aio import AsyncFabric
from penstock.client.aio_messages import AsyncMessage
from penstock.client.gangs import GangSeat
from penstock.errors import InvalidError, LeaseLostError, PenstockError, UnavailableError
from penstock.tasks.blobs.blob import new_blob
from penstock.tasks.blobs.store import BlobStore
from penstock.tasks.codec import Codec, pack_blob
from penstock.tasks.envelope import (
    Failure,
    Status,
    TaskCall,
    TaskOutcome,
    encode,
)
from penstock.tasks.gangs import settling as settling_module
from penstock.tasks.gangs.envelope import GangCall, Verdict
from penstock.tasks.gangs.parts import Ending, EndKind
from penstock.tasks.gangs.settling import Settling, _together
from penstock.tasks.streams import OpenStreams

TASK = bytes(16)
CODEC = Codec(lambda _: False)


class Fabric:
    """Commits what it is given, unless there are errors left to be raised."""

    def __init__(self, *errors: PenstockError) -> None:
        self.errors = [*errors]
        self.committed: list[Transaction] = []
        self._connection = SimpleNamespace(closed=False)

    def transaction(self) -> Transaction:
        return Transaction(self)


class Transaction:
    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric
        self.ended = ""
        self.put_: tuple[bytes, str] = b"", ""

    def ack(self, message: object) -> None:
        self.ended = "ack"

    def dead(self, message: object) -> None:
        self.ended = "dead"

    def put(self, table: object, key: bytes, value: bytes, *, ttl: float, mark: str = "ok") -> None:
        self.put_ = value, mark

    async def commit(self) -> None:
        if self._fabric.errors:
            raise self._fabric.errors.pop(0)
        self._fabric.committed.append(self)


class Message:
    def __init__(self) -> None:
        self.buried = False

    async def dead(self) -> None:
        self.buried = True


def settled(fabric: Fabric, ending: Ending) -> tuple[Verdict, Message]:
    message = Message()
    seat = cast("GangSeat[AsyncMessage]", SimpleNamespace(message=message, attempt=1))
    streams = cast("OpenStreams", SimpleNamespace(results=None))
    gang = GangCall(TaskCall("f", b"", TASK, keep_ms=1000))
    store = cast("BlobStore", None)  # nothing here is large
    settling = Settling(cast("AsyncFabric", fabric), streams, "here", store)
    work = settling.settle(seat, gang, ending)
    return asyncio.run(cast("Any", work)), message


def done() -> Ending:
    """Two members have returned something."""
    outcome = encode(TaskOutcome(Status.DONE, b"\xc4\x01x"))
    return Ending(EndKind.DONE, outcomes=[outcome, outcome])


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settling_module, "PAUSE_S", 0.001)


def test_what_depends_on_a_gang_hears_how_it_ended() -> None:
    failed = encode(TaskOutcome(Status.FAILED, encode(Failure("E", "no luck"))))
    for ending, how in ((done(), "ok"), (Ending(EndKind.FAILED, 0, "", [failed]), "failed")):
        fabric = Fabric()
        settled(fabric, ending)
        assert fabric.committed[0].put_[1] == how


def test_an_outcome_that_nobody_takes_is_a_dead_letter() -> None:
    """The manager would end over it, and so would the next, until no worker is left."""
    fabric = Fabric(InvalidError("no such partition"))
    verdict, message = settled(fabric, done())
    assert (verdict, message.buried, fabric.committed) == (Verdict.GIVE_UP, True, [])
    verdict, message = settled(fabric, Ending(EndKind.DONE, outcomes=[b"", b"no outcome"]))
    assert (verdict, message.buried, fabric.committed) == (Verdict.GIVE_UP, True, [])


def test_a_node_that_is_away_for_a_moment_does_not_make_it_run_again() -> None:
    fabric = Fabric(UnavailableError("not now"), UnavailableError("nor now"))
    assert settled(fabric, done())[0] is Verdict.FINISH
    assert len(fabric.committed) == 1


def test_a_lease_that_is_lost_is_told() -> None:
    with pytest.raises(LeaseLostError):
        settled(Fabric(LeaseLostError("late")), done())


def test_small_and_large_results_come_back_by_rank() -> None:
    """As they were packed, large values by reference."""
    values = [7, (1, 2), "x", {"deep": [3.5]}]
    large = {1, 3}
    members: list[TaskOutcome] = []
    for rank, value in enumerate(values):
        packed = CODEC.pack(value)
        if rank in large:
            blob = new_blob(bytes([rank] * 16), len(packed), 0.0, False, "x")
            members.append(TaskOutcome(0, pack_blob(0), blobs=[blob]))
        else:
            members.append(TaskOutcome(0, packed))
    result, blobs = _together(members)
    assert [blob.task[0] for blob in blobs] == [1, 3]
    stored = [CODEC.pack(values[blob.task[0]]) for blob in blobs]
    assert CODEC.unpack(result, stored) == values
