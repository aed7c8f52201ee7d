"""Tasks that are over: their messages, outcomes and kept results are settled in one transaction.

What ends while transactions are under way goes with the next one: a single task is settled at
once, and many tasks share a record of the journal.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from penstock.client.aio import AsyncFabric, AsyncTransaction
from penstock.client.aio_messages import AsyncDelivery
from penstock.errors import ConflictError, InvalidError, PenstockError
from penstock.tasks.envelope import Status, mark_of, stamp_of, stamped
from penstock.tasks.names import NOBODY, cancel_key, client_of, shown
from penstock.tasks.streams import OpenStreams
from penstock.tasks.worker.figures import Figures
from penstock.tasks.worker.jobs import Job
from penstock.tasks.worker.running import wall_us

MAX_UNDER_WAY = 4
MAX_TASKS = 1_000  # of one transaction
MAX_BYTES = 4 << 20
PAUSE_S = 0.05  # after an error that may pass; doubles
MAX_PAUSE_S = 2.0

_log = logging.getLogger("penstock.worker")


class Over:
    """A task that is over, with its outcome and the delivery it came in."""

    __slots__ = ("delivery", "job", "marked", "outcome", "status")

    def __init__(self, job: Job, delivery: AsyncDelivery, status: Status, outcome: bytes) -> None:
        self.job = job
        self.delivery = delivery
        self.status = status
        self.outcome = outcome
        self.marked = status is not Status.DONE and job.call.keep_ms > 0
        """Whether those who depend on it are told, by its entry, how it ended."""


class Completer:
    """Commits what is over. `settled` is told of jobs whose lease is of no use any more: their
    transaction is committed, or was refused. `committed` is told of the former."""

    def __init__(
        self,
        fabric: AsyncFabric,
        streams: OpenStreams,
        figures: Figures,
        settled: Callable[[Sequence[Job]], None],
        committed: Callable[[Sequence[Over]], None] = lambda _: None,
    ) -> None:
        self._fabric = fabric
        self._streams = streams
        self._figures = figures
        self._settled = settled
        self._committed = committed
        self._waiting: dict[int, deque[Over]] = {}  # by shard
        self._under_way: set[asyncio.Task[None]] = set()

    def add(self, over: Sequence[Over]) -> None:
        """Takes tasks that are over; they are committed as soon as may be."""
        for each in over:
            self._waiting.setdefault(each.job.shard, deque()).append(each)
        self._start()

    async def finish(self) -> None:
        """Waits until everything that was added is settled."""
        while self._under_way:
            await asyncio.wait(set(self._under_way))

    def _start(self) -> None:
        while self._waiting and len(self._under_way) < MAX_UNDER_WAY:
            task = asyncio.get_running_loop().create_task(self._settle(self._next()))
            self._under_way.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("outcomes were not committed; their tasks will be run again: %s", error)
        self._start()

    def _next(self) -> list[Over]:
        """The oldest of a shard, if jobs have shards: leases are checked in one place then. Shards
        take turns."""
        shard, waiting = next(iter(self._waiting.items()))
        taken, size = list[Over](), 0
        while waiting and len(taken) < MAX_TASKS and size < MAX_BYTES:
            taken.append(waiting.popleft())
            size += len(taken[-1].outcome)
        del self._waiting[shard]
        if waiting:
            self._waiting[shard] = waiting
        return taken

    async def _settle(self, over: list[Over]) -> None:
        """Commits them together; if one of them cannot be, the others without it."""
        pause_s = PAUSE_S
        while True:
            try:
                await self._transaction(over).commit()
            except Exception as error:  # of whatever kind: the others must not suffer for it
                if self._fabric._connection.closed:
                    self._settled([each.job for each in over])
                    raise
                if not isinstance(error, PenstockError) or not error.retriable:
                    await self._settle_apart(over, error)
                    return
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, MAX_PAUSE_S)
            else:
                self._count(over)
                self._committed(over)
                self._settled([each.job for each in over])
                return

    async def _settle_apart(self, over: list[Over], error: Exception) -> None:
        if len(over) > 1:
            half = len(over) // 2
            try:
                await self._settle(over[:half])
            finally:
                await self._settle(over[half:])
            return
        (only,) = over
        if only.marked and type(error) is ConflictError:
            # Older nodes of the cluster know of no marks, and so of nobody who depends on it.
            only.marked = False
            await self._settle(over)
            return
        if isinstance(error, ConflictError):
            self._figures.refused += 1
        elif isinstance(error, PenstockError) and not isinstance(error, InvalidError):
            _log.error("an outcome was not committed; its task will be run again: %s", error)
        else:
            self._bury(only, error)
        self._settled([only.job])

    def _bury(self, over: Over, error: Exception) -> None:
        """Nobody takes this outcome, and nobody would take the next: the task is not lost, but it
        is not run again and again."""
        name = shown(over.job.call.task)
        _log.error("no outcome of task %s is taken; it is a dead letter now: %s", name, error)
        with suppress(PenstockError):  # then its lease runs out, and this is found out once more
            over.delivery.dead([over.job.row])

    def _transaction(self, over: Sequence[Over]) -> AsyncTransaction:
        transaction = self._fabric.transaction()
        acked: defaultdict[AsyncDelivery, list[int]] = defaultdict(list)
        dead: defaultdict[AsyncDelivery, list[int]] = defaultdict(list)
        replies: defaultdict[tuple[int, bytes], list[Over]] = defaultdict(list)
        stamp = stamp_of(wall_us())
        for each in over:
            call, each.outcome = each.job.call, stamped(each.outcome, stamp)
            rows = dead if each.status is Status.FAILED else acked
            rows[each.delivery].append(each.job.row)
            if each.status is Status.CANCELLED:
                transaction.delete(self._streams.control, cancel_key(call.task))
            if call.reply != NOBODY:
                replies[call.reply, client_of(call.task)].append(each)
            if call.keep_ms:
                ttl_s, mark = call.keep_ms / 1000, mark_of(each.status if each.marked else 0)
                results = self._streams.results
                transaction.put(results, call.task, each.outcome, ttl=ttl_s, mark=mark)
        for delivery, rows_done in acked.items():
            transaction.ack(delivery, rows=_unless_all(rows_done, delivery))
        for delivery, rows_dead in dead.items():
            transaction.dead(delivery, rows=_unless_all(rows_dead, delivery))
        for (partition, _), told in replies.items():
            self._reply(transaction, partition, told)
        return transaction

    def _reply(self, transaction: AsyncTransaction, partition: int, told: list[Over]) -> None:
        """Outcomes for one client; a single one, which somebody may wait for, in the short way."""
        topic = self._streams.replies
        if len(told) == 1:
            task = told[0].job.call.task
            transaction.publish(topic, told[0].outcome, key=task, partition=partition)
            return
        values = [each.outcome for each in told]
        keys = [each.job.call.task for each in told]
        transaction.publish_many(topic, values, keys=keys, partition=partition)

    def _count(self, over: Sequence[Over]) -> None:
        for each in over:
            if each.status is Status.DONE:
                self._figures.done += 1
            elif each.status is Status.CANCELLED:
                self._figures.cancelled += 1
            else:
                self._figures.failed += 1


def _unless_all(rows: list[int], delivery: AsyncDelivery) -> list[int] | None:
    """None stands for all rows: they need not be looked for."""
    return None if len(rows) == len(delivery) else rows
