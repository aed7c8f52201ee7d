"""Actors that build graphs of held messages, and that work them off, over a cluster."""

from __future__ import annotations

import asyncio

from penstock.client import ops_table
from penstock.client.aio import AsyncFabric
from penstock.client.aio_streams import AsyncQueue, AsyncTable
from penstock.errors import PenstockError, UnavailableError
from penstock.sim.cluster.consumers import Consumer, Taken
from penstock.sim.cluster.stage import RETRY_S, Actor, Stage
from penstock.sim.graphs import ENTRIES, Builder, finishing, settling, tasks_of, wrote
from penstock.sim.history import FinalTable, GraphTask

TRIES = 60
QUIET_S = 20.0  # by then all is carried out that nodes have to tell each other


class GraphBuilder(Actor):
    """Holds messages that wait for others, and sends again what it does not know the outcome of."""

    async def run(self) -> None:
        """Until the work is over."""
        queue = await self.open_queue()
        table = await Actor(self.stage, self.fabric, self.name, ENTRIES).open_table()
        builder = Builder(self.history, self.world, self.stream.name, self.name)
        while self.busy:
            await self.rest(1_500_000)
            tasks = builder.tasks(self.world.random.choice([1, 1, 2, 8]))
            while self.busy and not tasks[0].stored:
                await self._hold(queue, table, builder, tasks)

    async def _hold(
        self, queue: AsyncQueue, table: AsyncTable, builder: Builder, tasks: list[GraphTask]
    ) -> None:
        holds = [builder.hold(task, table, self.fabric.transaction()) for task in tasks]
        try:
            await queue.hold_many(holds)
        except UnavailableError:
            await asyncio.sleep(RETRY_S)
            return
        for task in tasks:
            task.stored = True


class GraphWorker(Consumer):
    """Finishes tasks: acks one and writes its entry, in one transaction."""

    table: AsyncTable | None = None

    async def treat(self, taken: Taken) -> None:
        """One task; some are finished too late, some not at all."""
        fate, lease_us = self.world.random.random(), self.stream.lease_us
        if fate < 0.05:
            return
        if fate < 0.15:
            await asyncio.sleep(self.world.between(0, lease_us * 3 // 2) / 1e6)
        if self.table is None:
            self.table = await Actor(self.stage, self.fabric, self.name, ENTRIES).open_table()
        each, delivery = taken
        task, mark = finishing(self.history, self.world, delivery)
        noted = settling(delivery, self.world)
        done = self.fabric.transaction()
        done.ack(each)
        done.put(self.table, task.name, b"done", mark=mark)
        try:
            await done.commit()
        except UnavailableError:
            return
        except PenstockError:
            noted.accepted = False
        else:
            noted.accepted = True
            task.done_us = task.done_us or self.world.now_us
        noted.done_us = self.world.now_us


async def end_graph(stage: Stage, fabric: AsyncFabric, name: str, queue: AsyncQueue) -> None:
    """In the last act: notes what tasks wait for. Then all entries are written that one may wait
    for, parents first; what is ready after that is for whoever pops, and what fell back is in the
    final table."""
    table = await Actor(stage, fabric, name, ENTRIES).open_table()
    await asyncio.sleep(QUIET_S)
    for task in tasks_of(stage.history, queue.name):
        task.left_us = stage.world.now_us
        task.left = await _left(queue, task.name)
    for task in tasks_of(stage.history, queue.name):
        wrote(task, stage.world, "ok")
        await _put(table, task.name)
    await asyncio.sleep(QUIET_S)
    sent_us = stage.world.now_us
    entries = await fabric._run(ops_table.scan_all(table, b""))
    found = {each.key: (each.value, each.version) for each in entries}
    stage.history.final_tables[table.name] = FinalTable(sent_us, stage.world.now_us, found)


async def _left(queue: AsyncQueue, name: bytes) -> list[bytes]:
    for _ in range(TRIES):
        try:
            found = await queue.held(name)
            return [] if found is None else [key for _, key in found.edges]
        except PenstockError:
            await asyncio.sleep(RETRY_S)
    return []


async def _put(table: AsyncTable, key: bytes) -> None:
    for _ in range(TRIES):
        try:
            await table.put(key, b"written at the end")
            return
        except PenstockError:
            await asyncio.sleep(RETRY_S)
