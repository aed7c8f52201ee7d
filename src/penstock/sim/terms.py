"""Actors that ask for something special: holds, ids, times-to-live, delays, priorities."""

from __future__ import annotations

from typing import Any, ClassVar

from penstock.client import ops_push, ops_queue
from penstock.client.state import QueueState
from penstock.errors import PenstockError, UnavailableError
from penstock.sim.actors import RETRY_US, Actor
from penstock.sim.client import Script, Sleep
from penstock.sim.consumers import Consumer
from penstock.sim.history import Push, Release
from penstock.sim.producers import QueueProducer, stored

SHARED_IDS_US = 700_000  # so long all producers push under the same id
LONG_S = 100_000.0  # longer than any run


class HoldProducer(Actor):
    """Pushes held messages, and sends again whatever it does not know the outcome of."""

    def run(self) -> Script[None]:
        """Until the work is over."""
        queue = yield from self.open_queue()
        line, index = f"{self.stream.name}:{self.client.name}", 0
        while self.busy:
            yield from self.rest(200_000)
            value = f"{line}:{index}".encode()
            index += 1
            push = Push(
                self.stream.name, value, None, value.decode(), 0, self.world.now_us, id=value,
                held=self.world.chance(0.8),
            )  # fmt: skip
            self.history.push(push)
            while self.busy and not push.stored:
                yield from self._try(queue, push)

    def _try(self, queue: QueueState, push: Push) -> Script[None]:
        try:
            receipt = yield from ops_push.push(queue, push.value, id=push.id, hold=push.held)
        except UnavailableError:
            yield Sleep(RETRY_US)
        else:
            stored(push, receipt, 0, self.world.now_us)


class Releaser(Actor):
    """Releases what others hold, some of it more than once, some of it never."""

    def run(self) -> Script[None]:
        """Until the work is over."""
        queue = yield from self.open_queue()
        while self.busy:
            yield from self.rest(300_000)
            held = [push.id for push in self.history.pushes_to(queue.name) if push.held and push.id]
            chosen = self.world.random.sample(held[-30:], min(len(held), self.world.between(1, 4)))
            now_us = self.world.now_us
            noted = [Release(queue.name, message_id, now_us) for message_id in chosen]
            self.history.releases += noted
            try:
                answers = yield from ops_queue.release(queue, chosen)
            except PenstockError:
                yield Sleep(RETRY_US)
                continue
            for each, answer in zip(noted, answers, strict=True):
                each.answer, each.done_us = answer, self.world.now_us


class SharedIdProducer(Actor):
    """Pushes under ids that other producers use at the same time, and again later."""

    def run(self) -> Script[None]:
        """Until the work is over."""
        queue = yield from self.open_queue()
        line, index = f"{self.stream.name}:{self.client.name}", 0
        while self.busy:
            yield from self.rest(250_000)
            slot = self.world.elapsed_us // SHARED_IDS_US - self.world.random.choice([0, 0, 0, 3])
            value, message_id = f"{line}:{index}".encode(), b"id-%d" % max(slot, 0)
            index += 1
            push = Push(
                self.stream.name, value, None, value.decode(), 0, self.world.now_us, id=message_id
            )
            self.history.push(push)
            try:
                receipt = yield from ops_push.push(queue, value, id=message_id)
            except UnavailableError:
                continue
            stored(push, receipt, 0, self.world.now_us)


class ExpiringProducer(QueueProducer):
    """Every message has a time-to-live, mostly a short one; the queue has one for the others."""

    def _terms(self) -> dict[str, Any]:
        if self.world.chance(0.4):
            return {"ttl": LONG_S} if self.world.chance(0.5) else {}
        terms: dict[str, Any] = {"ttl": self.world.between(50, 4000) / 1000}
        if self.world.chance(0.2):
            terms["delay"] = self.world.between(1, 2000) / 1000
        return terms


class ScheduledProducer(QueueProducer):
    """Messages for later: in a while, or at a time."""

    def _terms(self) -> dict[str, Any]:
        later_us = self.world.between(1000, 4_000_000)
        if self.world.chance(0.5):
            return {"delay": later_us / 1e6}
        return {"at": (self.world.now_us + later_us) / 1e6}


class UrgentProducer(QueueProducer):
    """Messages of all priorities."""

    def _terms(self) -> dict[str, Any]:
        return {"priority": self.world.random.choice([0, 0, 1, 7, 15])}


class SlowConsumer(Consumer):
    """Lets the queue grow."""

    pause_us: ClassVar = 700_000
    max_pop: ClassVar = 8


class FailingConsumer(Consumer):
    """Gives most messages back, so that they become dead letters."""

    gives_back: ClassVar = 0.8
