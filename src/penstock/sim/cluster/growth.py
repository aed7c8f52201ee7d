"""Actors on a topic that grows while they work, through the client that users have."""

from __future__ import annotations

import asyncio

from penstock.client.aio_streams import AsyncTopic
from penstock.errors import PenstockError
from penstock.sim.cluster.producers import refused
from penstock.sim.cluster.stage import RETRY_S, Actor
from penstock.sim.history import Push, TopicRead, message, name_of

KEYS = 8
MAX_BATCH = 8
MOST_PARTITIONS = 10


class KeyPublisher(Actor):
    """Publishes by key, in batches that are split by partition; some in transactions."""

    async def run(self) -> None:
        """Until the work is over."""
        topic = await self.open_topic()
        index = 0
        while self.busy:
            await self.rest(1_200_000)
            count = self.world.between(1, MAX_BATCH)
            keys = [self.world.between(0, KEYS - 1) for _ in range(count)]
            pushes = [self._note(key, index + row) for row, key in enumerate(keys)]
            index += count
            values = [message(push.value.decode(), 60) for push in pushes]
            named = [push.key for push in pushes]
            try:
                await topic.publish_many(values, keys=named, batch=self.world.between(1, count))
            except PenstockError as error:
                refused(pushes, error)
                continue
            for push in pushes:
                push.stored, push.done_us = True, self.world.now_us

    def _note(self, key: int, index: int) -> Push:
        line = f"{self.stream.name}:{self.name}:{key}"
        value = f"{line}:{index}".encode()
        push = Push(self.stream.name, value, b"key-%d" % key, line, index, self.world.now_us)
        return self.history.push(push)


class KeyTransactor(Actor):
    """Publishes by key inside transactions, with places that it looked up when it began: what comes
    to a partition that was split must go on. Each message is a line of its own."""

    async def run(self) -> None:
        """Until the work is over."""
        topic = await self.open_topic()
        index = 0
        while self.busy:
            await self.rest(2_000_000)
            line = f"{self.stream.name}:{self.name}:txn{index}"
            index += 1
            keys = [b"key-%d" % self.world.between(0, KEYS - 1) for _ in range(2)]
            pushes = [
                self.history.push(
                    Push(self.stream.name, f"{line}-{row}:0".encode(), key, f"{line}-{row}", 0,
                         self.world.now_us)
                )
                for row, key in enumerate(keys)
            ]  # fmt: skip
            try:
                async with self.fabric.transaction() as txn:
                    for push in pushes:
                        txn.publish(topic, push.value, key=push.key)
            except PenstockError as error:
                refused(pushes, error)
                continue
            for push in pushes:
                push.stored, push.done_us = True, self.world.now_us


class Grower(Actor):
    """Gives the topic more partitions, again and again."""

    async def run(self) -> None:
        """Until it has as many as it may."""
        topic = await self.open_topic()
        while self.busy and topic.partitions < MOST_PARTITIONS:
            await self.rest(15_000_000)
            try:
                await topic.refresh()
                wanted = topic.partitions + self.world.between(1, 3)
                await topic.grow(min(wanted, MOST_PARTITIONS))
            except PenstockError:
                await asyncio.sleep(RETRY_S)


class KeyReader(Actor):
    """Reads all partitions, also those that are added; after an error, all from the start."""

    async def run(self) -> None:
        """Until the work is over."""
        topic = await self.open_topic()
        turns = 0
        while self.busy:
            turns += 1
            try:
                await self._read(topic, f"{self.name}/{turns}")
            except PenstockError as error:
                if not error.retriable:
                    raise
                await asyncio.sleep(RETRY_S)

    async def _read(self, topic: AsyncTopic, reader: str) -> None:
        async with topic.subscribe(idle_timeout=20.0) as consumer:
            async for each in consumer:
                read = TopicRead(
                    self.stream.name, each.partition, each.offset, name_of(each.value), reader,
                    self.world.now_us,
                )  # fmt: skip
                self.history.reads.append(read)
                if not self.busy:
                    return
