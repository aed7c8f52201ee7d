"""Settling a gang: its message, its outcome and its kept result, in one transaction."""

from __future__ import annotations

import random

import msgspec

from penstock.client.aio import AsyncFabric
from penstock.client.aio_messages import AsyncMessage
from penstock.client.gangs import GangSeat
from penstock.tasks.envelope import Failure, Status, TaskOutcome, encode, read_outcome
from penstock.tasks.gangs.envelope import GangCall, Verdict, decide
from penstock.tasks.gangs.parts import Ending, EndKind
from penstock.tasks.names import NOBODY
from penstock.tasks.streams import OpenStreams
from penstock.tasks.worker.running import wall_us

pack = msgspec.msgpack.Encoder().encode
LOST_KIND = "penstock.tasks.gangs.MemberLost"


class Settling:
    """What the manager of a gang does in the end."""

    def __init__(
        self, fabric: AsyncFabric, streams: OpenStreams, worker: str
    ) -> None:
        self._fabric = fabric
        self._streams = streams
        self._worker = worker

    async def settle(
        self, seat: GangSeat[AsyncMessage], gang: GangCall, ending: Ending
    ) -> Verdict:
        """Commits the outcome together with the end of the message, or gives the message back.
        LeaseLostError if the gang was granted to others meanwhile: then nothing is committed."""
        verdict, delay_ms = decide(gang, seat.attempt, ending, random.random())
        if verdict is Verdict.AGAIN:
            await seat.message.nack(delay_ms / 1000)
            return verdict
        call, outcome = gang.call, encode(self._outcome(gang, seat.attempt, ending))
        transaction = self._fabric.transaction()
        if verdict is Verdict.FINISH:
            transaction.ack(seat.message)
        else:
            transaction.dead(seat.message)
        if call.reply != NOBODY:
            replies = self._streams.replies
            transaction.publish(replies, outcome, key=call.task, partition=call.reply)
        if call.keep_ms:
            transaction.put(self._streams.results, call.task, outcome, ttl=call.keep_ms / 1000)
        await transaction.commit()
        return verdict

    def _outcome(self, gang: GangCall, attempt: int, ending: Ending) -> TaskOutcome:
        """Of all members: results by rank; or the failure of the first that failed."""
        function = gang.call.function
        if ending.kind == EndKind.DONE:
            members = [read_outcome(each) for each in ending.outcomes]
            # A list of packed values is packed as they are: their classes need not be known here.
            results = pack([msgspec.Raw(member.result) for member in members])
            return TaskOutcome(
                Status.DONE, results, attempt, self._worker,
                min(member.popped_us for member in members),
                min(member.started_us for member in members),
                max(member.ended_us for member in members), function,
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
