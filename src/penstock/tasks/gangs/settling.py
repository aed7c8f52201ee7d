"""Settling a gang: its message, its outcome and its kept result, in one transaction."""

from __future__ import annotations

import asyncio
import logging
import random

import msgspec

from penstock.client.aio import AsyncFabric, AsyncTransaction
from penstock.client.aio_messages import AsyncMessage
from penstock.client.gangs import GangSeat
from penstock.errors import InvalidError, PenstockError
from penstock.tasks.blobs.blob import Blob
from penstock.tasks.blobs.store import BlobStore
from penstock.tasks.codec import pack_blob
from penstock.tasks.envelope import Failure, Status, TaskOutcome, encode, mark_of, read_outcome
from penstock.tasks.gangs.envelope import GangCall, Verdict, decide
from penstock.tasks.gangs.parts import Ending, EndKind
from penstock.tasks.names import NOBODY
from penstock.tasks.streams import OpenStreams
from penstock.tasks.worker.running import wall_us

PAUSE_S = 0.05  # after an error that may pass; doubles
MAX_PAUSE_S = 2.0
pack = msgspec.msgpack.Encoder().encode
LOST_KIND = "penstock.tasks.gangs.MemberLost"

_log = logging.getLogger("penstock.worker")


class Settling:
    """What the manager of a gang does in the end."""

    def __init__(
        self, fabric: AsyncFabric, streams: OpenStreams, worker: str, store: BlobStore
    ) -> None:
        self._fabric = fabric
        self._streams = streams
        self._worker = worker
        self._store = store

    async def settle(
        self, seat: GangSeat[AsyncMessage], gang: GangCall, ending: Ending
    ) -> Verdict:
        """Commits the outcome together with the end of the message, or gives the message back.
        LeaseLostError if the gang was granted to others meanwhile: then nothing is committed. An
        error that may pass is waited out, as long as the lease lasts; an outcome that nobody takes
        leaves a dead letter."""
        verdict, delay_ms = decide(gang, seat.attempt, ending, random.random())
        if verdict is Verdict.AGAIN:
            await seat.message.nack(delay_ms / 1000)
            return verdict
        try:
            return await self._commit(seat, gang, verdict, ending)
        except InvalidError as error:
            _log.error("no outcome of gang %s is taken; it is a dead letter: %s", gang.name, error)
            await seat.message.dead()
            return Verdict.GIVE_UP

    async def _commit(
        self, seat: GangSeat[AsyncMessage], gang: GangCall, verdict: Verdict, ending: Ending
    ) -> Verdict:
        outcome = self._outcome(gang, seat.attempt, ending)
        pause_s = PAUSE_S
        while True:
            try:
                await self._transaction(seat, gang, verdict, outcome).commit()
            except PenstockError as error:
                if not error.retriable or self._fabric._connection.closed:
                    raise
            else:
                break
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, MAX_PAUSE_S)
        if verdict is Verdict.FINISH and gang.call.large is not None:
            await self._store.remove([gang.call.large])
        return verdict

    def _transaction(
        self, seat: GangSeat[AsyncMessage], gang: GangCall, verdict: Verdict, outcome: TaskOutcome
    ) -> AsyncTransaction:
        call, packed = gang.call, encode(outcome)
        transaction = self._fabric.transaction()
        if verdict is Verdict.FINISH:
            transaction.ack(seat.message)
        else:
            transaction.dead(seat.message)
        if call.reply != NOBODY:
            replies = self._streams.replies
            transaction.publish(replies, packed, key=call.task, partition=call.reply)
        if call.keep_ms:
            ttl_s, mark = call.keep_ms / 1000, mark_of(outcome.status)
            transaction.put(self._streams.results, call.task, packed, ttl=ttl_s, mark=mark)
        return transaction

    def _outcome(self, gang: GangCall, attempt: int, ending: Ending) -> TaskOutcome:
        """Of all members: results by rank; or the failure of the first that failed."""
        function = gang.call.function
        if ending.kind == EndKind.DONE:
            members = [read_outcome(each) for each in ending.outcomes]
            results, blobs = _together(members)
            return TaskOutcome(
                Status.DONE, results, attempt, self._worker,
                min(member.popped_us for member in members),
                min(member.started_us for member in members),
                max(member.ended_us for member in members), function, blobs,
                gang.call.submitted_us, members[0].ready_us, settled_us=wall_us(),
            )  # fmt: skip
        if ending.outcomes:
            return read_outcome(ending.outcomes[0])
        return self.failure(gang, attempt, Failure(LOST_KIND, ending.reason))

    def failure(self, gang: GangCall, attempt: int, failure: Failure) -> TaskOutcome:
        """The outcome of a gang that no function of it has said a word about."""
        return TaskOutcome(
            Status.FAILED, encode(failure), attempt, self._worker, ended_us=wall_us(),
            function=gang.call.function, submitted_us=gang.call.submitted_us, settled_us=wall_us(),
        )  # fmt: skip


def _together(members: list[TaskOutcome]) -> tuple[bytes, list[Blob]]:
    """A list of packed values is packed as they are: their classes need not be known here."""
    results: list[msgspec.Raw] = []
    blobs: list[Blob] = []
    for member in members:
        results.append(msgspec.Raw(pack_blob(len(blobs)) if member.blobs else member.result))
        blobs += member.blobs
    return pack(results), blobs
