"""Actors that push gangs, and workers that park for them."""

from __future__ import annotations

from penstock.client import ops_gang
from penstock.client.gangs import GangSeat
from penstock.client.messages import LeasedMessage
from penstock.client.ops_gang import ParkRequest, read_seat
from penstock.client.requests import Pending
from penstock.client.state import QueueState
from penstock.client.steps import Finish, Start
from penstock.errors import PenstockError
from penstock.sim.actors import RETRY_US
from penstock.sim.client import Script, Sleep
from penstock.sim.consumers import Consumer, Taken
from penstock.sim.history import message, name_of
from penstock.sim.producers import QueueProducer, asked_for, refused, stored
from penstock.sim.seats import SeatNote

MAX_MEMBERS = 3  # fewer than there are workers
PARK_S = 1.0


class GangProducer(QueueProducer):
    """Pushes gangs, one after the other."""

    def run(self) -> Script[None]:
        """Until the work is over."""
        queue = yield from self.open_queue()
        line, index = f"{self.stream.name}:{self.client.name}", 0
        while self.busy:
            yield from self.rest(400_000)
            push = self._push(line, index)
            index += 1
            members = self.history.members[push.value] = self.world.between(1, MAX_MEMBERS)
            terms = self._terms()
            asked_for(push, terms, self.stream)
            value = message(push.value.decode(), self._size())
            try:
                receipt = yield from ops_gang.push_gang(queue, value, members, **terms)
                stored(push, receipt, 0, self.world.now_us)
            except PenstockError as error:
                refused([push], error)


class GangTaker(Consumer):
    """A worker: parks, and is a member of one gang at a time. The manager does with the message
    what consumers do; the others wait for a while."""

    def run(self) -> Script[None]:
        """Until the work is over."""
        queue = yield from self.open_queue()
        while self.busy:
            asked_us = self.world.now_us
            try:
                answer: bytearray = yield self._request(queue, self.client.name)
            except PenstockError:
                yield Sleep(RETRY_US)
                continue
            taken = self._seated(queue, answer, self.client.name, asked_us)
            yield from self.rest(self.pause_us)
            if taken:
                yield from self.treat(queue, taken)

    def pop(self, queue: QueueState, messages: int, wait_s: float) -> Script[list[Taken]]:
        """In the last act, one client is all workers that the largest gang needs."""
        asked_us = self.world.now_us
        names = [f"{self.client.name}/{number}" for number in range(MAX_MEMBERS)]
        parked: list[tuple[str, Pending]] = []
        for name in names:
            pending: Pending = yield Start(self._request(queue, name))
            parked.append((name, pending))
        taken: list[Taken] = []
        for name, pending in parked:
            answer: bytearray = yield Finish(pending)
            taken += self._seated(queue, answer, name, asked_us)
        return taken

    def _request(self, queue: QueueState, worker: str) -> ParkRequest:
        shard = queue._only_shard
        assert shard is not None
        return ParkRequest(queue._settler, worker, worker, PARK_S, shard)

    def _seated(
        self, queue: QueueState, answer: bytearray, worker: str, asked_us: int
    ) -> list[Taken]:
        """Notes a place in a gang; of the manager's, the delivery as well."""
        given = read_seat(answer)
        if given is None:
            return []
        seat = GangSeat.of(LeasedMessage, given, queue._settler)
        note = SeatNote(
            self.stream.name, name_of(seat.message.value), seat.message.shard, seat.lease,
            seat.attempt, seat.rank, tuple(seat.addresses), worker, asked_us, self.world.now_us,
        )  # fmt: skip
        self.history.seats.append(note)
        return self.took([seat.message], asked_us) if seat.manager else []
