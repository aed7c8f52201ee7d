"""Actors that pop, settle, and read topics, through the client that users have."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import ClassVar

from penstock.client.aio_messages import AsyncMessage
from penstock.client.aio_streams import AsyncQueue, AsyncTopic
from penstock.client.pops import PopSearch
from penstock.errors import ConflictError, PenstockError
from penstock.sim.cluster.stage import RETRY_S, Actor
from penstock.sim.history import Commit, Delivery, Ends, Settlement, TopicRead, name_of
from penstock.wire.frames import PopMode

MAX_POP = 6
WAIT_S = 2.0  # of a pop
IDLE_S = 3.0  # of a subscription
MAX_TREATED = 50  # messages that one consumer has in its hands
Taken = tuple[AsyncMessage, Delivery]


class Consumer(Actor):
    """Pops and does with the messages what consumers do, good and bad."""

    pause_us: ClassVar = 400_000

    async def run(self) -> None:
        """Until the work is over."""
        queue = await self.open_queue()
        tasks: set[asyncio.Task[None]] = set()
        while self.busy:
            await self.rest(self.pause_us)
            asked_us = self.world.now_us
            try:
                popped = await self.pop(queue, self.world.between(1, MAX_POP))
            except PenstockError:
                await asyncio.sleep(RETRY_S)
                continue
            for each in self.took(popped, asked_us):
                task = asyncio.get_running_loop().create_task(self.treat(each))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            if len(tasks) > MAX_TREATED:
                await asyncio.wait(list(tasks))

    async def pop(self, queue: AsyncQueue, messages: int) -> list[AsyncMessage]:
        """Messages, wherever they are."""
        return await queue.pop_many(messages, timeout=WAIT_S)

    def took(self, popped: Sequence[AsyncMessage], asked_us: int) -> list[Taken]:
        """Notes deliveries."""
        taken: list[Taken] = []
        for each in popped:
            delivery = Delivery(
                self.stream.name, name_of(each.value), each.shard, each.position,
                each._granted.grant, each.deliveries, self.stream.level, self.name, asked_us,
                self.world.now_us, self.stream.lease_us,
            )  # fmt: skip
            self.history.deliveries.append(delivery)
            taken.append((each, delivery))
        return taken

    async def treat(self, taken: Taken) -> None:
        """Acks most; some are given back, forgotten, or acked too late or twice."""
        each, delivery = taken
        fate, lease_us = self.world.random.random(), self.stream.lease_us
        if fate < 0.05:
            return
        if fate < 0.1:  # too late, or just about
            await asyncio.sleep(self.world.between(lease_us * 3 // 4, lease_us * 3 // 2) / 1e6)
        elif fate < 0.14:
            await asyncio.sleep(self.world.between(0, lease_us // 2) / 1e6)
            await self._extend(taken)
        elif fate < 0.22:
            delay_us = self.world.between(1, 800) * 1000 if self.world.chance(0.3) else 0
            self._settling(delivery, "nack", delay_us)
            await each.nack(delay_us / 1e6)
            return
        await self.ack(taken, wait=not self.world.chance(0.2))
        if self.world.chance(0.05):
            await self.ack(taken)

    async def ack(self, taken: Taken, wait: bool = True) -> None:
        """Notes whether it was accepted, as far as that is told."""
        each, delivery = taken
        noted = self._settling(delivery, "ack")
        try:
            await each.ack(wait=wait)
        except ConflictError:
            noted.accepted, noted.done_us = False, self.world.now_us
        except PenstockError:
            return
        else:
            if wait:
                noted.accepted, noted.done_us = True, self.world.now_us

    async def _extend(self, taken: Taken) -> None:
        each, delivery = taken
        noted = self._settling(delivery, "extend")
        try:
            await each.extend(self.stream.lease_us / 1e6)
        except PenstockError:
            return
        noted.accepted, noted.done_us = True, self.world.now_us

    def _settling(self, delivery: Delivery, op: str, delay_us: int = 0) -> Settlement:
        noted = Settlement(op, self.world.now_us, delay_us=delay_us)
        delivery.settlements.append(noted)
        return noted


class StayingConsumer(Consumer):
    """Goes to the owner of one shard and to nobody else: all other messages have to move there."""

    shard = -1

    async def pop(self, queue: AsyncQueue, messages: int) -> list[AsyncMessage]:
        """What is there or comes there, as if the queue were on one shard."""
        assert queue._routes is not None
        if self.shard < 0:
            self.shard = self.world.between(0, len(queue._routes.map.shards) - 1)
        search = PopSearch(
            queue._routes, queue._pop_route, queue._settler, messages, None, PopMode.LEASE,
            self.shard,
        )  # fmt: skip
        return AsyncMessage.all_of(await queue._run(search.run(WAIT_S)))


class Subscriber(Consumer):
    """Consumes through a subscription with credit."""

    async def run(self) -> None:
        """Loop after loop, message by message and in batches, until the work is over."""
        queue = await self.open_queue()
        for number in count():
            if not self.busy:
                return
            most = self.world.between(1, 20)
            try:
                await (self._batches if number % 2 else self._messages)(queue, most)
            except PenstockError:
                await asyncio.sleep(RETRY_S)
            await self.rest(self.pause_us)

    async def _messages(self, queue: AsyncQueue, most: int) -> None:
        asked_us = self.world.now_us
        async with queue.consume(IDLE_S, MAX_POP, max_messages=most) as loop:
            async for each in loop:
                await self.treat(self.took([each], asked_us)[0])

    async def _batches(self, queue: AsyncQueue, most: int) -> None:
        asked_us = self.world.now_us
        async with queue.consume_batches(IDLE_S, MAX_POP, max_messages=most) as loop:
            async for delivery in loop:
                for taken in self.took(list(delivery), asked_us):
                    await self.treat(taken)


@dataclass
class TopicReader(Actor):
    """Reads one partition from the start, and commits how far it came."""

    partition: int = 0

    async def run(self) -> None:
        """Until the work is over."""
        topic = await self.open_topic()
        offset = 0
        while self.busy:
            try:
                async with topic.read(self.partition, offset, max_bytes=8192) as batches:
                    async for batch in batches:
                        rows = zip(batch.offsets.tolist(), batch.values, strict=True)
                        offset = max(offset, self._note(list(rows)))
                if offset and self.world.chance(0.3):
                    await self._commit(topic, offset)
                if self.world.chance(0.3):
                    await self._look(topic)
            except PenstockError as error:
                if not error.retriable:
                    raise
                await asyncio.sleep(RETRY_S)
            await self.rest(1_200_000)

    def _note(self, rows: list[tuple[int, bytes]]) -> int:
        for offset, value in rows:
            self.history.reads.append(
                TopicRead(
                    self.stream.name, self.partition, offset, name_of(value), self.name,
                    self.world.now_us,
                )
            )  # fmt: skip
        return rows[-1][0] + 1 if rows else 0

    async def _commit(self, topic: AsyncTopic, offset: int) -> None:
        stream, group = self.stream.name, self.name
        commit = Commit(stream, group, self.partition, offset, self.world.now_us)
        self.history.commits.append(commit)
        await topic.commit(group, {self.partition: offset})
        commit.done_us = self.world.now_us
        asked = Commit(stream, group, self.partition, -1, self.world.now_us, read=True)
        found = await topic.committed(group)
        asked.offset, asked.done_us = found.get(self.partition, -1), self.world.now_us
        self.history.commits.append(asked)

    async def _look(self, topic: AsyncTopic) -> None:
        sent_us = self.world.now_us
        for partition, (first, end) in enumerate(await topic.offsets()):
            seen = Ends(self.stream.name, partition, sent_us, self.world.now_us, first, end)
            self.history.ends.append(seen)
