"""Actors that change or look at whole queues: purge, redrive, peek."""

from __future__ import annotations

from penstock.client import ops_queue
from penstock.client.delivery import read_grants
from penstock.client.messages import LeasedMessage
from penstock.client.ops_queue import PopRequest
from penstock.client.state import QueueState
from penstock.client.steps import Steps
from penstock.errors import PenstockError
from penstock.sim.actors import RETRY_US, Actor
from penstock.sim.client import Script, Sleep
from penstock.sim.history import Peek, Upkeep, name_of
from penstock.wire.frames import PopMode

MAX_PEEK = 30


class Keeper(Actor):
    """Calls something that changes a whole queue, and notes it."""

    def keep(self, queue: QueueState, op: str, call: Steps[int]) -> Script[None]:
        """One call, with its outcome."""
        noted = Upkeep(queue.name, op, self.world.now_us)
        self.history.upkeep.append(noted)
        try:
            yield from call
        except PenstockError:
            yield Sleep(RETRY_US)
        else:
            noted.done_us = self.world.now_us


class Purger(Keeper):
    """Purges a queue now and then, until the first half of the work is done."""

    def run(self) -> Script[None]:
        """Later pushes are left alone, so that the checkers see whether they are lost."""
        queue = yield from self.open_queue()
        while self.busy:
            yield from self.rest(800_000)
            if self.stage.half:
                return
            yield from self.keep(queue, "purge", ops_queue.purge(queue))


class Redriver(Keeper):
    """Brings dead letters back, and rarely drops them."""

    def run(self) -> Script[None]:
        """Until the work is over."""
        queue = yield from self.open_queue()
        while self.busy:
            yield from self.rest(1_000_000)
            if self.world.chance(0.1) and not self.stage.half:
                yield from self.keep(queue, "purge_dead", ops_queue.purge_dead(queue))
            else:
                limit = self.world.between(1, 20)
                yield from self.keep(queue, "redrive", ops_queue.redrive(queue, limit))


class Peeker(Actor):
    """Looks at what waits and at the dead letters, without taking anything."""

    def run(self) -> Script[None]:
        """Until the work is over."""
        queue = yield from self.open_queue()
        while self.busy:
            yield from self.rest(300_000)
            mode = self.world.random.choice([PopMode.PEEK, PopMode.PEEK_DEAD])
            sent_us = self.world.now_us
            request = PopRequest(queue._settler, self.world.between(1, MAX_PEEK), 0.0, None, mode)
            try:
                answer: bytearray = yield request
            except PenstockError:
                yield Sleep(RETRY_US)
                continue
            shown = LeasedMessage.all_of(read_grants(answer, queue._settler))
            values = [name_of(each.value) for each in shown]
            dead = mode == PopMode.PEEK_DEAD
            self.history.peeks.append(Peek(queue.name, dead, sent_us, self.world.now_us, values))
