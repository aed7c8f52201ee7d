"""Actors that push and publish, through the client that users have."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import ClassVar

from penstock.client.aio_streams import AsyncNamedProducer, AsyncQueue
from penstock.errors import ForgottenError, PenstockError, UnavailableError
from penstock.sim.cluster.stage import RETRY_S, Actor, in_doubt
from penstock.sim.history import Push, message
from penstock.sim.producers import stored

KEYS = 5
MAX_BATCH = 8


class QueueProducer(Actor):
    """Pushes single messages and batches; every call waits for the one before."""

    rest_us: ClassVar = 1_600_000

    async def run(self) -> None:
        """Until the work is over."""
        queue = await self.open_queue()
        line, index = f"{self.stream.name}:{self.name}", 0
        while self.busy:
            await self.rest(self.rest_us)
            count = self.world.between(2, MAX_BATCH) if self.world.chance(0.3) else 1
            pushes = [self._note(line, index + row) for row in range(count)]
            index += count
            try:
                await self._push(queue, pushes)
            except PenstockError as error:
                refused(pushes, error)

    def _note(self, line: str, index: int) -> Push:
        key = None
        if self.stream.ordered == "key":
            key = b"k%d" % self.world.between(0, KEYS - 1)
        value = f"{line}:{index}".encode()
        push = Push(self.stream.name, value, key, line, index, self.world.now_us)
        return self.history.push(push)

    async def _push(self, queue: AsyncQueue, pushes: Sequence[Push]) -> None:
        values = [message(push.value.decode(), self._size()) for push in pushes]
        if len(pushes) == 1:
            receipt = await queue.push(values[0], key=pushes[0].key)
            stored(pushes[0], receipt, 0, self.world.now_us)
            return
        keys = [push.key for push in pushes] if self.stream.ordered == "key" else None
        size = self.world.between(1, MAX_BATCH)
        receipts = await queue.push_many(values, keys=keys, batch=size)
        if keys is not None:  # grouped by shard: the receipts do not follow the values
            for push in pushes:
                push.stored, push.done_us = True, self.world.now_us
                push.level = receipts.durability or "unknown"
            return
        at = 0
        for receipt in receipts:
            for row in range(receipt.count):
                stored(pushes[at], receipt, row, self.world.now_us)
                at += 1

    def _size(self) -> int:
        return self.world.between(1, 200 if self.world.chance(0.9) else 4000)


class NamedProducer(Actor):
    """A producer that survives its process: after trouble it goes on where the cluster says."""

    rest_us: ClassVar = 1_600_000

    async def run(self) -> None:
        """Until the work is over."""
        queue = await self.open_queue()
        while self.busy:
            try:
                producer = await queue.producer("named")
                self._known(producer.stored)
                await self._push_on(producer, producer.stored)
            except PenstockError:
                await asyncio.sleep(RETRY_S)

    def _known(self, count: int) -> None:
        """These count as stored, and that is a promise."""
        for index in range(count):
            push = self._note(index)
            if push.stored is not True:
                push.stored, push.done_us = True, self.world.now_us

    async def _push_on(self, producer: AsyncNamedProducer, index: int) -> None:
        while self.busy:
            await self.rest(self.rest_us)
            pushes = [self._note(index + row) for row in range(self.world.between(1, 4))]
            receipts = await producer.push_many([push.value for push in pushes])
            index += len(pushes)
            for push in pushes:
                push.stored, push.done_us = True, self.world.now_us
                push.level = receipts.durability or "unknown"

    def _note(self, index: int) -> Push:
        line = f"{self.stream.name}:named"
        value = f"{line}:{index}".encode()
        return self.history.push(
            Push(self.stream.name, value, None, line, index, self.world.now_us)
        )


class IdProducer(Actor):
    """Pushes with ids of its own, and sends again whatever it does not know the outcome of."""

    async def run(self) -> None:
        """Until the work is over."""
        queue = await self.open_queue()
        line, index = f"{self.stream.name}:{self.name}:id", 0
        while self.busy:
            await self.rest(2_000_000)
            value = f"{line}:{index}".encode()
            push = Push(self.stream.name, value, None, value.decode(), 0, self.world.now_us)
            self.history.push(push)
            index += 1
            await self._until_stored(queue, push)

    async def _until_stored(self, queue: AsyncQueue, push: Push) -> None:
        while self.busy and not push.stored:
            try:
                receipt = await queue.push(push.value, id=push.value)
            except UnavailableError:
                await asyncio.sleep(RETRY_S)
            else:
                stored(push, receipt, 0, self.world.now_us)


class Publisher(Actor):
    """Publishes to all partitions of a topic."""

    async def run(self) -> None:
        """Until the work is over."""
        topic = await self.open_topic()
        index = 0
        while self.busy:
            await self.rest(1_600_000)
            partition = self.world.between(0, topic.partitions - 1)
            line = f"{self.stream.name}:{self.name}:{partition}"
            pushes = [self._note(line, index + row) for row in range(self.world.between(1, 4))]
            index += len(pushes)
            values = [message(push.value.decode(), self.world.between(20, 300)) for push in pushes]
            try:
                (receipt,) = await topic.publish_many(values, partition=partition)
            except PenstockError as error:
                refused(pushes, error)
                continue
            for row, push in enumerate(pushes):
                stored(push, receipt._replace(shard=-1), row, self.world.now_us)

    def _note(self, line: str, index: int) -> Push:
        value = f"{line}:{index}".encode()
        return self.history.push(
            Push(self.stream.name, value, None, line, index, self.world.now_us)
        )


def refused(pushes: Sequence[Push], error: PenstockError) -> None:
    """A call failed: in doubt each of its messages may be stored. Whose sequence was forgotten was
    told so, and does not know what came of it either."""
    for push in pushes:
        known = len(pushes) == 1 and not in_doubt(error) and not isinstance(error, ForgottenError)
        if push.stored is None and known:
            push.stored = False
