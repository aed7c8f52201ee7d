"""Actors that pop, settle, and read topics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from penstock.client import ops_group, ops_topic
from penstock.client.consume import ConsumeState
from penstock.client.delivery import read_grants
from penstock.client.messages import LeasedMessage
from penstock.client.ops_queue import PopRequest
from penstock.client.settle import SettleRequest
from penstock.client.state import QueueState, TopicState
from penstock.errors import PenstockError
from penstock.sim.actors import RETRY_US, Actor
from penstock.sim.client import Hear, Script, Sleep
from penstock.sim.history import Commit, Delivery, Settlement, TopicRead, name_of
from penstock.wire.batch import Batch
from penstock.wire.frames import Flag, PopMode, Settle, SettleItem

MAX_POP = 20
Taken = tuple[LeasedMessage, Delivery]


class Consumer(Actor):
    """Pops and does with the messages what consumers do, good and bad."""

    pause_us: ClassVar = 20_000
    max_pop: ClassVar = MAX_POP
    gives_back: ClassVar = 0.25  # how often

    def run(self) -> Script[None]:
        """Until the work is over."""
        queue = yield from self.open_queue()
        while self.busy:
            try:
                taken = yield from self.pop(queue, self.world.between(1, self.max_pop), 1.0)
            except PenstockError:
                yield Sleep(RETRY_US)
                continue
            if taken:
                yield from self.rest(self.pause_us)
                self.client.spawn(self.treat(queue, taken))

    def pop(self, queue: QueueState, messages: int, wait_s: float) -> Script[list[Taken]]:
        """Leased messages, noted as delivered."""
        asked_us = self.world.now_us
        request = PopRequest(queue._settler, messages, wait_s, None, PopMode.LEASE)
        answer: bytearray = yield request
        popped = LeasedMessage.all_of(read_grants(answer, queue._settler))
        return self.took(popped, asked_us)

    def took(self, popped: Sequence[LeasedMessage], asked_us: int) -> list[Taken]:
        """Notes deliveries."""
        taken: list[Taken] = []
        for each in popped:
            delivery = Delivery(
                self.stream.name, name_of(each.value), each.shard, each.position,
                each._granted.grant, each.deliveries, self.stream.level, self.client.name, asked_us,
                self.world.now_us, self.stream.lease_us,
            )  # fmt: skip
            self.history.deliveries.append(delivery)
            taken.append((each, delivery))
        return taken

    def treat(self, queue: QueueState, taken: list[Taken]) -> Script[None]:
        """Acks most; some are given back, forgotten, or acked too late or twice."""
        fate = self.world.random.random()
        lease_us = self.stream.lease_us
        if fate < 0.08:
            return
        if fate < 0.16:  # too late, or just about
            yield Sleep(self.world.between(lease_us * 3 // 4, lease_us * 3 // 2))
        elif fate < 0.22:
            yield Sleep(self.world.between(0, lease_us // 2))
            yield from self.settle(queue, taken, Settle.EXTEND, lease_us // 1000)
            yield Sleep(self.world.between(lease_us // 2, lease_us))
        if self.world.chance(self.gives_back):
            given_back = [each for each in taken if self.world.chance(0.5)]
            kept = [each for each in taken if each not in given_back]
            delay_ms = self.world.between(1, 800) if self.world.chance(0.3) else 0
            yield from self.settle(queue, given_back, Settle.NACK, delay_ms)
            taken = kept
        yield from self.settle(queue, taken, Settle.ACK)
        if self.world.chance(0.05):
            yield from self.settle(queue, taken, Settle.ACK)

    def settle(
        self, queue: QueueState, taken: Sequence[Taken], op: Settle, arg_ms: int = 0
    ) -> Script[None]:
        """One request for all; notes which were accepted."""
        if not taken:
            return
        items = [_item(each, op, arg_ms) for each, _ in taken]
        noted = [
            Settlement(op.name.lower(), self.world.now_us, delay_us=arg_ms * 1000) for _ in taken
        ]
        for (_, delivery), settlement in zip(taken, noted, strict=True):
            delivery.settlements.append(settlement)
        request = SettleRequest(queue._settler, items)
        request.flags = (0, Flag.PATIENT, Flag.BEHIND)[items[0].grant % 3]
        try:
            yield request
        except PenstockError:
            return
        lost = {(refusal.shard, refusal.position) for refusal in request.refusals}
        for (each, _), settlement in zip(taken, noted, strict=True):
            settlement.accepted = (each.shard, each.position) not in lost
            settlement.done_us = self.world.now_us


def _item(each: LeasedMessage, op: Settle, arg_ms: int) -> SettleItem:
    return each._granted.item(int(op), each.position, 1, arg_ms)


class Subscriber(Consumer):
    """Consumes through a subscription with credit, as `consume()` does."""

    def run(self) -> Script[None]:
        """Subscription after subscription, until the work is over."""
        queue = yield from self.open_queue()
        while self.busy:
            asked_us = self.world.now_us
            state = ConsumeState(queue._settler, LeasedMessage, MAX_POP, None, None)
            self.client.subscribe(state.subscription)
            ends_us = self.world.now_us + self.world.between(500_000, 6_000_000)
            while self.busy and self.world.now_us < ends_us and not state.subscription.error:
                yield Hear(state.subscription, 200_000)
                while state.subscription.inbox:
                    popped = LeasedMessage.all_of(state.take())
                    taken = self.took(popped, asked_us)
                    self.client.spawn(self.treat(queue, taken))
                    if credit := state.credit():
                        self.client.credit(state.subscription, credit)
            self.client.unsubscribe(state.subscription)
            queue._settler.keep(state.unhanded())
            yield Sleep(RETRY_US)


@dataclass
class TopicReader(Actor):
    """Reads one partition from the start, and commits how far it came."""

    partition: int = 0

    def run(self) -> Script[None]:
        """Until the work is over."""
        topic = yield from self.open_topic()
        reader = ops_topic.PartitionReader(topic, self.partition, 0, 4096)
        while self.busy:
            try:
                batches = yield from reader.read(1.0)
                self.note(batches)
                if batches and self.world.chance(0.3):
                    assert reader.offset is not None
                    yield from self._commit(reader.offset, topic)
            except PenstockError as error:
                self.unexpected(error)
                yield Sleep(RETRY_US)

    def unexpected(self, error: PenstockError) -> None:
        """A reader may be told to wait, and nothing else."""
        if not error.retriable and self.stream.level == "synced":
            self.client.fail(f"reading partition {self.partition} failed: {error!r}")

    def note(self, batches: list[Batch]) -> None:
        """Notes what was read."""
        for batch in batches:
            for offset, value in zip(batch.offsets.tolist(), batch.values, strict=True):
                read = TopicRead(
                    self.stream.name, self.partition, offset, name_of(value), self.client.name,
                    self.world.now_us,
                )  # fmt: skip
                self.history.reads.append(read)

    def _commit(self, offset: int, topic: TopicState) -> Script[None]:
        group = self.client.name
        commit = Commit(self.stream.name, group, self.partition, offset, self.world.now_us)
        self.history.commits.append(commit)
        yield from ops_group.commit(topic, group, {self.partition: offset})
        commit.done_us = self.world.now_us
        asked = Commit(self.stream.name, group, self.partition, -1, self.world.now_us, read=True)
        found = yield from ops_group.committed(topic, group)
        asked.offset, asked.done_us = found.get(self.partition, -1), self.world.now_us
        self.history.commits.append(asked)
