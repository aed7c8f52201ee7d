"""Actors on a topic that grows while they work."""

from __future__ import annotations

from penstock.client import ops_push, ops_topic
from penstock.client.subscribe import TopicSubscription
from penstock.errors import PenstockError
from penstock.sim.actors import RETRY_US, Actor
from penstock.sim.client import Script, Sleep
from penstock.sim.history import Push, TopicRead, message, name_of
from penstock.sim.producers import refused

KEYS = 8
MAX_BATCH = 12
MOST_PARTITIONS = 12


def keyed_push(actor: Actor, key: int, index: int) -> Push:
    """The next message of a key; each producer has a line of its own for it."""
    line = f"{actor.stream.name}:{actor.client.name}:{key}"
    value = f"{line}:{index}".encode()
    push = Push(actor.stream.name, value, b"key-%d" % key, line, index, actor.world.now_us)
    return actor.history.push(push)


class KeyPublisher(Actor):
    """Publishes by key, in batches that are split by partition."""

    def run(self) -> Script[None]:
        """Until the work is over."""
        topic = yield from self.open_topic()
        index = 0
        while self.busy:
            yield from self.rest(150_000)
            count = self.world.between(1, MAX_BATCH)
            keys = [self.world.between(0, KEYS - 1) for _ in range(count)]
            pushes = [keyed_push(self, key, index + row) for row, key in enumerate(keys)]
            index += count
            values = [message(push.value.decode(), 60) for push in pushes]
            named = [push.key for push in pushes]
            batch = self.world.between(1, MAX_BATCH)
            try:
                yield from ops_push.publish_many(topic, values, keys=named, batch=batch)
            except PenstockError as error:
                refused(pushes, error)
                continue
            for push in pushes:
                push.stored, push.done_us = True, self.world.now_us


class Grower(Actor):
    """Gives the topic more partitions, again and again."""

    def run(self) -> Script[None]:
        """Until it has as many as it may."""
        topic = yield from self.open_topic()
        while self.busy and topic.partitions < MOST_PARTITIONS:
            yield from self.rest(2_500_000)
            try:
                yield from ops_topic.refresh(topic)
                wanted = topic.partitions + self.world.between(1, 3)
                yield from ops_topic.grow(topic, min(wanted, MOST_PARTITIONS))
            except PenstockError:
                yield Sleep(RETRY_US)


class KeyReader(Actor):
    """Reads all partitions, also those that are added; after an error, all from the start."""

    def run(self) -> Script[None]:
        """Until the work is over."""
        topic = yield from self.open_topic()
        turns = 0
        while self.busy:
            turns += 1
            state = TopicSubscription(
                topic, None, "start", None, lambda: self.world.now_us / 1_000_000
            )
            try:
                yield from state.locate()
                while self.busy:
                    yield from state.fetch(1.0)
                    self._note(state, f"{self.client.name}/{turns}")
            except PenstockError as error:
                if not error.retriable:
                    self.client.fail(f"reading all partitions failed: {error!r}")
                yield Sleep(RETRY_US)

    def _note(self, state: TopicSubscription, reader: str) -> None:
        while state.arrived:
            partition, batch = state.take()
            for offset, value in zip(batch.offsets.tolist(), batch.values, strict=True):
                read = TopicRead(
                    self.stream.name, partition, offset, name_of(value), reader, self.world.now_us
                )
                self.history.reads.append(read)
