"""The last act: everything that is still there is taken out and looked at."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.client import ops_queue, ops_table, ops_topic
from penstock.client.delivery import read_grants
from penstock.client.messages import LeasedMessage
from penstock.client.ops_queue import PopRequest
from penstock.client.state import QueueState, TopicState
from penstock.errors import PenstockError
from penstock.sim.actors import RETRY_US, Actor, Stage, Stream
from penstock.sim.attempts import Holds
from penstock.sim.client import Client, Script, Sleep
from penstock.sim.consumers import Consumer
from penstock.sim.graph_actors import end_graph
from penstock.sim.graphs import tasks_of
from penstock.sim.history import FinalTable, Pass, Release, name_of
from penstock.sim.staged import end_reservations
from penstock.wire.frames import PopMode, Settle

MAX_ROUNDS = 20_000
MAX_IDLE = 400
POP = 500
FORGET_US = 20_000_000  # by then retention and sessions have done their work


class Drain:
    """Takes out all messages, reads all topics and tables. `done` when nothing is left."""

    def __init__(self, stage: Stage, streams: Sequence[Stream]) -> None:
        self._stage = stage
        self._streams = streams
        self.done = False
        self.left: str | None = None  # why it gave up

    def run(self, client: Client) -> Script[None]:
        """Everything, one stream after the other."""
        for stream in self._streams:
            if stream.kind == "queue":
                yield from self._queue(Consumer(self._stage, client, stream))
            elif stream.kind == "topic":
                yield from self._topic(Actor(self._stage, client, stream))
            else:
                yield from self._table(Actor(self._stage, client, stream))
        self._stage.history.drained = self.left is None
        self.done = True

    def _queue(self, actor: Consumer) -> Script[None]:
        queue = yield from actor.open_queue()
        yield from self._release(queue)
        if any(name == queue.name for name, _ in self._stage.history.holds):
            holds = Holds(self._stage.history, self._stage.world, queue.name, actor.stream.level)
            yield from end_reservations(queue, holds)
        if tasks_of(self._stage.history, queue.name):
            yield from end_graph(self._stage, actor.client, queue)
        figures: dict[str, object] = {}
        idle = 0
        for _ in range(MAX_ROUNDS):
            if idle > MAX_IDLE:
                break
            try:
                taken = yield from actor.pop(queue, POP, 0.0)
                yield from actor.settle(queue, taken, Settle.ACK)
                if not taken:
                    idle += 1
                    figures = yield from ops_queue.stats(queue)
                    if figures["messages"] == figures["dead"]:
                        yield from self._dead(queue)
                        return
                    yield Sleep(1_000_000)
            except PenstockError:
                idle += 1
                yield Sleep(RETRY_US)
        self.left = f"{actor.stream.name} does not become empty: {figures}"

    def _release(self, queue: QueueState) -> Script[None]:
        """Whatever is still held is let go."""
        history, world = self._stage.history, self._stage.world
        held = [push.id for push in history.pushes_to(queue.name) if push.held and push.id]
        for message_id in held:
            noted = Release(queue.name, message_id, world.now_us)
            history.releases.append(noted)
            (noted.answer,) = yield from ops_queue.release(queue, [message_id])
            noted.done_us = world.now_us

    def _dead(self, queue: QueueState) -> Script[None]:
        request = PopRequest(queue._settler, POP, 0.0, None, PopMode.PEEK_DEAD)
        answer: bytearray = yield request
        for each in LeasedMessage.all_of(read_grants(answer, queue._settler)):
            self._stage.history.dead.add(name_of(each.value))

    def _topic(self, actor: Actor) -> Script[None]:
        topic = yield from actor.open_topic()
        yield Sleep(FORGET_US)
        family = yield from ops_topic.family(topic)
        if topic.info.growths:
            self._stage.history.families[actor.stream.name] = family
            self._stage.history.layouts[actor.stream.name] = topic.info.layout()
        for partition in range(topic.partitions):
            sent_us = self._stage.world.now_us
            rows = yield from read_all(topic, partition)
            name = actor.stream.name
            final = Pass(name, partition, sent_us, self._stage.world.now_us, rows)
            self._stage.history.final_topics[name, partition] = final

    def _table(self, actor: Actor) -> Script[None]:
        table = yield from actor.open_table()
        yield Sleep(FORGET_US)
        history, world = self._stage.history, self._stage.world
        sent_us = world.now_us
        entries = yield from ops_table.scan_all(table, b"")
        found = {each.key: (each.value, each.version) for each in entries}
        history.final_tables[table.name] = FinalTable(sent_us, world.now_us, found)


def read_all(topic: TopicState, partition: int) -> Script[list[tuple[int, bytes]]]:
    """All rows of a partition, from the first that is kept."""
    reader = ops_topic.PartitionReader(topic, partition, "start")
    rows: list[tuple[int, bytes]] = []
    while not reader.at_end:
        for batch in (yield from reader.read(0.0)):
            rows += zip(batch.offsets.tolist(), map(name_of, batch.values), strict=True)
    return rows
