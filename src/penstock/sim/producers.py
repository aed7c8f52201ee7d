"""Actors that push and publish."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock.client import ops_push
from penstock.client.messages import Receipt
from penstock.client.state import NamedProducerState, QueueState, StreamState
from penstock.errors import LimitError, PenstockError, UnavailableError
from penstock.sim.actors import RETRY_US, Actor, Stream
from penstock.sim.client import Script, Sleep
from penstock.sim.history import Push, Refusal, message

KEYS = 5
MAX_BATCH = 12
NAMED_BATCH = 6


def stored(push: Push, receipt: Receipt, row: int, now_us: int) -> None:
    """Notes the receipt of a message, which was in this row of its batch."""
    place = receipt.partition if receipt.shard < 0 else receipt.shard
    push.stored, push.done_us = True, now_us
    push.level = receipt.durability
    push.duplicate = receipt.duplicate and push.id is not None
    if not receipt.duplicate:  # of a duplicate the node may have forgotten the place
        push.place = (place, receipt.base + row)


class QueueProducer(Actor):
    """Pushes single messages and batches; every call waits for the one before."""

    def run(self) -> Script[None]:
        """Until the work is over."""
        queue = yield from self.open_queue()
        line, index = f"{self.stream.name}:{self.client.name}", 0
        while self.busy:
            yield from self.rest(250_000)
            count = self.world.between(2, MAX_BATCH) if self.world.chance(0.4) else 1
            pushes = [self._push(line, index + row) for row in range(count)]
            values = [message(push.value.decode(), self._size()) for push in pushes]
            terms = self._terms()
            for push in pushes:
                asked_for(push, terms, self.stream)
            index += count
            try:
                if count == 1:
                    yield from self._single(queue, pushes[0], values[0], terms)
                else:
                    yield from self._batch(queue, pushes, values, terms)
            except LimitError:
                self._full(pushes)
            except PenstockError as error:
                refused(pushes, error)

    def _full(self, pushes: Sequence[Push]) -> None:
        """The queue is full: of a single push it is known that nothing was stored."""
        now_us = self.world.now_us
        if len(pushes) == 1:
            pushes[0].stored, pushes[0].done_us = False, now_us
            self.history.refusals.append(Refusal(self.stream.name, 1, pushes[0].sent_us, now_us))

    def _size(self) -> int:
        return self.world.between(1, 200 if self.world.chance(0.8) else 4000)

    def _push(self, line: str, index: int) -> Push:
        value = f"{line}:{index}".encode()
        key = None
        if self.stream.ordered == "key":
            key = b"k%d" % self.world.between(0, KEYS - 1)
        push = Push(self.stream.name, value, key, line, index, self.world.now_us)
        return self.history.push(push)

    def _terms(self) -> dict[str, Any]:
        terms: dict[str, Any] = {}
        if self.stream.ordered == "no" and self.world.chance(0.2):
            terms["priority"] = self.world.between(1, 3)
        if self.stream.ordered == "no" and self.world.chance(0.2):
            terms["delay"] = self.world.between(1, 3000) / 1000
        if self.stream.level != "synced" and self.world.chance(0.2):
            terms["durability"] = "synced"
        return terms

    def _single(
        self, queue: QueueState, push: Push, value: bytes, terms: dict[str, Any]
    ) -> Script[None]:
        receipt = yield from ops_push.push(queue, value, key=push.key, **terms)
        stored(push, receipt, 0, self.world.now_us)

    def _batch(
        self,
        queue: QueueState,
        pushes: Sequence[Push],
        values: list[bytes],
        terms: dict[str, Any],
    ) -> Script[None]:
        keys = [push.key for push in pushes] if self.stream.ordered == "key" else None
        size = self.world.between(1, MAX_BATCH)
        receipts = yield from ops_push.push_many(queue, values, keys=keys, batch=size, **terms)
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


class Publisher(Actor):
    """Publishes to all partitions of a topic."""

    def run(self) -> Script[None]:
        """Until the work is over."""
        topic = yield from self.open_topic()
        index = 0
        while self.busy:
            yield from self.rest(250_000)
            count = self.world.between(1, 6)
            partition = self.world.between(0, topic.partitions - 1)
            line = f"{self.stream.name}:{self.client.name}:{partition}"
            pushes = [self._push(line, index + row) for row in range(count)]
            values = [message(push.value.decode(), self.world.between(20, 300)) for push in pushes]
            for push, value in zip(pushes, values, strict=True):
                push.size = len(value)
            index += count
            try:
                receipts = yield from ops_push.publish_many(topic, values, partition=partition)
            except PenstockError as error:
                refused(pushes, error)
                continue
            (receipt,) = receipts
            for row, push in enumerate(pushes):
                stored(push, receipt._replace(shard=-1), row, self.world.now_us)

    def _push(self, line: str, index: int) -> Push:
        value = f"{line}:{index}".encode()
        push = Push(self.stream.name, value, None, line, index, self.world.now_us)
        return self.history.push(push)


@dataclass
class NamedProducer(Actor):
    """A producer that survives its process: after trouble it goes on where the node says."""

    name: str = "named"

    def run(self) -> Script[None]:
        """Until the work is over."""
        stream: StreamState
        if self.stream.kind == "topic":
            stream = yield from self.open_topic()
        else:
            stream = yield from self.open_queue()
        while self.busy:
            try:
                info = yield from ops_push.open_producer(stream, self.name)
            except PenstockError:
                yield Sleep(RETRY_US)
                continue
            producer = NamedProducerState(stream, self.name, 0, info)
            self._known(info.stored)
            yield from self._push_on(producer, info.stored)

    def _known(self, stored: int) -> None:
        """The node counts these as stored, and that is a promise."""
        for index in range(stored):
            push = self._push(index)
            if push.stored is not True:
                push.stored, push.done_us = True, self.world.now_us

    def _push_on(self, producer: NamedProducerState, index: int) -> Script[None]:
        while self.busy:
            yield from self.rest(250_000)
            count = self.world.between(1, NAMED_BATCH)
            pushes = [self._push(index + row) for row in range(count)]
            values = [message(push.value.decode(), 60) for push in pushes]
            try:
                receipts = yield from ops_push.push_many(producer, values)
            except PenstockError:
                return
            (receipt,) = receipts
            index += count
            for push in pushes:
                push.stored, push.done_us = True, self.world.now_us
                push.level = receipt.durability

    def _push(self, index: int) -> Push:
        line = f"{self.stream.name}:{self.name}"
        value = f"{line}:{index}".encode()
        push = Push(self.stream.name, value, None, line, index, self.world.now_us)
        return self.history.push(push)


class IdProducer(Actor):
    """Pushes with ids of its own, and sends again whatever it does not know the outcome of."""

    def run(self) -> Script[None]:
        """Until the work is over."""
        queue = yield from self.open_queue()
        line, index = f"{self.stream.name}:{self.client.name}:id", 0
        while self.busy:
            yield from self.rest(250_000)
            value = f"{line}:{index}".encode()
            push = Push(self.stream.name, value, None, value.decode(), 0, self.world.now_us)
            self.history.push(push)
            index += 1
            yield from self._until_stored(queue, push)

    def _until_stored(self, queue: QueueState, push: Push) -> Script[None]:
        while self.busy and not push.stored:
            try:
                receipt = yield from ops_push.push(queue, push.value, id=push.value)
            except UnavailableError:
                yield Sleep(RETRY_US)
            else:
                stored(push, receipt, 0, self.world.now_us)


def asked_for(push: Push, terms: dict[str, Any], stream: Stream) -> None:
    """Notes what holds for a message."""
    push.priority = terms.get("priority", 0)
    push.ttl_us = int(terms.get("ttl", stream.options.get("ttl", 0.0)) * 1e6)
    push.delay_us = int(terms.get("delay", 0.0) * 1e6)
    if "at" in terms:
        push.delay_us, push.scheduled = int(terms["at"] * 1e6) - push.sent_us, True


def refused(pushes: Sequence[Push], error: PenstockError) -> None:
    """A call failed: in doubt each of its messages may be stored."""
    for push in pushes:
        if push.stored is None and len(pushes) == 1 and not isinstance(error, UnavailableError):
            push.stored = False
