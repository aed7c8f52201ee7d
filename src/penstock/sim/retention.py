"""Actors on topics that forget: by age, by size, or what has a later message of its key."""

from __future__ import annotations

from penstock.client import ops_push, ops_topic
from penstock.errors import NotFoundError, PenstockError
from penstock.sim.actors import RETRY_US, Actor
from penstock.sim.client import Script, Sleep
from penstock.sim.consumers import TopicReader
from penstock.sim.drain import read_all
from penstock.sim.history import LatestBatch, Pass

KEYS = 300
BATCH = 300


class TrimmedReader(TopicReader):
    """Reads slowly, and goes on at the start of the partition when retention has overtaken it."""

    def run(self) -> Script[None]:
        """Until the work is over."""
        topic = yield from self.open_topic()
        reader = ops_topic.PartitionReader(topic, self.partition, 0, 2048)
        while self.busy:
            yield from self.rest(400_000)
            try:
                self.note((yield from reader.read(0.5)))
            except NotFoundError:
                reader = ops_topic.PartitionReader(topic, self.partition, "start", 2048)
            except PenstockError as error:
                self.unexpected(error)
                yield Sleep(RETRY_US)


class LatestPublisher(Actor):
    """Publishes large batches with few keys."""

    def run(self) -> Script[None]:
        """Until the work is over."""
        topic = yield from self.open_topic()
        count = 0
        while self.busy:
            yield from self.rest(600_000)
            keys = [self._key() for _ in range(self.world.between(1, BATCH))]
            values = [f"{self.client.name}:{count + row}".encode() for row in range(len(keys))]
            count += len(values)
            noted = LatestBatch(self.stream.name, keys, values, self.world.now_us)
            self.history.latest.append(noted)
            try:
                (receipt,) = yield from ops_push.publish_many(topic, values, keys=keys, partition=0)
            except PenstockError:
                yield Sleep(RETRY_US)
            else:
                noted.done_us = self.world.now_us
                if not receipt.duplicate:
                    noted.base = receipt.base

    def _key(self) -> bytes:
        """Some keys are frequent, and of some the newest message is old."""
        return b"k%d" % int(KEYS * self.world.random.random() ** 3)


class LatestReader(Actor):
    """Reads everything from the start, again and again."""

    def run(self) -> Script[None]:
        """Until the work is over."""
        topic = yield from self.open_topic()
        while self.busy:
            yield from self.rest(1_500_000)
            sent_us = self.world.now_us
            try:
                rows = yield from read_all(topic, 0)
            except PenstockError:
                yield Sleep(RETRY_US)
                continue
            done_us = self.world.now_us
            self.history.passes.append(Pass(self.stream.name, 0, sent_us, done_us, rows))
