"""The last act: everything that is still there is taken out and looked at."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from penstock.client import ops_table
from penstock.client.aio import AsyncFabric
from penstock.client.aio_streams import AsyncQueue
from penstock.errors import PenstockError
from penstock.sim.actors import Stream
from penstock.sim.attempts import Holds
from penstock.sim.cluster.consumers import Consumer
from penstock.sim.cluster.graphs import end_graph
from penstock.sim.cluster.stage import RETRY_S, Actor, Stage
from penstock.sim.cluster.staged import end_reservations
from penstock.sim.graphs import tasks_of
from penstock.sim.history import FinalTable, Pass, name_of

MAX_ROUNDS = 5000
MAX_IDLE = 120
MAX_TRIES = 60
POP = 200


class Drain:
    """Takes out all messages, reads all topics and tables. `done` when nothing is left."""

    def __init__(self, stage: Stage, streams: Sequence[Stream]) -> None:
        self._stage = stage
        self._streams = streams
        self.done = False
        self.left: str | None = None  # why it gave up

    async def run(self, fabric: AsyncFabric, name: str) -> None:
        """Everything, one stream after the other."""
        for stream in self._streams:
            if stream.kind == "queue":
                await self._queue(Consumer(self._stage, fabric, name, stream))
            else:
                await self._read(Actor(self._stage, fabric, name, stream))
        self._stage.history.drained = self.left is None
        self.done = True

    async def _queue(self, actor: Consumer) -> None:
        queue = await actor.open_queue()
        if any(name == queue.name for name, _ in self._stage.history.holds):
            await self._end_reservations(queue, actor)
        if tasks_of(self._stage.history, queue.name):
            await end_graph(self._stage, actor.fabric, actor.name, queue)
        figures: dict[str, object] = {}
        idle = 0
        for _ in range(MAX_ROUNDS):
            if idle > MAX_IDLE:
                break
            try:
                asked_us = actor.world.now_us
                popped = await queue.pop_many(POP, timeout=0.0)
                taken = actor.took(popped, asked_us)
                await asyncio.gather(*(actor.ack(each) for each in taken))
                if not taken:
                    idle += 1
                    figures = await queue.stats()
                    if not figures["messages"]:
                        return
                    await asyncio.sleep(1.0)
            except PenstockError:
                idle += 1
                await asyncio.sleep(RETRY_S)
        self.left = f"{actor.stream.name} does not become empty: {figures}"

    async def _end_reservations(self, queue: AsyncQueue, actor: Actor) -> None:
        holds = Holds(self._stage.history, self._stage.world, queue.name, actor.stream.level)
        for _ in range(MAX_TRIES):
            try:
                await end_reservations(queue, holds)
                return
            except PenstockError:
                await asyncio.sleep(1.0)

    async def _read(self, actor: Actor) -> None:
        error: PenstockError | None = None
        for _ in range(MAX_TRIES):
            try:
                if actor.stream.kind == "topic":
                    await self._topic(actor)
                else:
                    await self._table(actor)
                return
            except PenstockError as caught:
                error = caught
                await asyncio.sleep(1.0)
        self.left = f"{actor.stream.name} cannot be read: {error!r}"

    async def _topic(self, actor: Actor) -> None:
        topic = await actor.open_topic()
        history, world, name = self._stage.history, self._stage.world, actor.stream.name
        family = await topic.family()
        if topic.info.growths:
            history.families[name], history.layouts[name] = family, topic.info.layout()
        for partition in range(topic.partitions):
            sent_us, rows = world.now_us, list[tuple[int, bytes]]()
            async with topic.read(partition, "start") as batches:
                async for batch in batches:
                    rows += zip(batch.offsets.tolist(), map(name_of, batch.values), strict=True)
            final = Pass(name, partition, sent_us, world.now_us, rows)
            history.final_topics[name, partition] = final

    async def _table(self, actor: Actor) -> None:
        table = await actor.open_table()
        history, world = self._stage.history, self._stage.world
        sent_us = world.now_us
        entries = await actor.fabric._run(ops_table.scan_all(table, b""))
        found = {each.key: (each.value, each.version) for each in entries}
        history.final_tables[table.name] = FinalTable(sent_us, world.now_us, found)
