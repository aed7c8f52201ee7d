"""The outbox against a list: nothing is lost, doubled or overtaken, and it knows its bounds."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.tasks import outbox as outbox_module
from penstock.tasks.outbox import PLAIN, Outbox, Parcel, Shipment, Terms

MOST_TASKS, MOST_BYTES = 8, 100
TERMS = [PLAIN, Terms(priority=3), Terms(delay_s=1.5)]


@pytest.fixture(autouse=True)
def _small_shipments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_module, "SHIPMENT_TASKS", 5)
    monkeypatch.setattr(outbox_module, "SHIPMENT_BYTES", 60)


class OutboxMachine(RuleBasedStateMachine):
    """Model: a list of parcels not taken, and a list of shipments under way."""

    def __init__(self) -> None:
        super().__init__()
        self.outbox = Outbox(MOST_TASKS, MOST_BYTES)
        self.waiting: list[Parcel] = []
        self.under_way: list[Shipment] = []
        self.rests = True
        self.wanting_room = self.wanting_end = 0
        self.numbers = count()

    @rule(tasks=st.integers(1, 4), size=st.integers(0, 30), terms=st.sampled_from(TERMS))
    def add(self, tasks: int, size: int, terms: Terms) -> None:
        ids = [b"%d" % next(self.numbers) for _ in range(tasks)]
        parcel = Parcel(ids, [bytes(size)] * tasks, None, terms)
        assert self.outbox.add(parcel) == self.rests
        self.rests = False
        self.waiting.append(parcel)

    @rule()
    def take(self) -> None:
        shipment = self.outbox.take()
        if shipment is None:
            assert not self.waiting
            self.rests = True
            return
        count_ = len(shipment.parcels)
        assert shipment.parcels == self.waiting[:count_]
        assert {parcel.terms for parcel in shipment.parcels} == {shipment.terms}
        assert count_ == 1 or (len(shipment.tasks) <= 5 and sum(map(len, shipment.values)) <= 60)
        del self.waiting[:count_]
        self.under_way.append(shipment)

    @precondition(lambda self: self.under_way)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.under_way) - 1))
        self.outbox.finished(self.under_way.pop(index))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        parcel = data.draw(st.sampled_from(self.waiting))
        found = self.outbox.withdraw(parcel.tasks[0])
        if len(parcel.tasks) > 1:
            assert found is None, "only what was submitted alone is taken back"
        else:
            assert found is parcel
            self.waiting.remove(parcel)

    @rule()
    def withdraw_what_is_not_there(self) -> None:
        assert self.outbox.withdraw(b"other") is None

    @rule()
    def ask_for_room(self) -> None:
        self.wanting_room += 1
        self.outbox.when_room(self._has_room)

    @rule()
    def ask_for_end(self) -> None:
        self.wanting_end += 1
        self.outbox.when_empty(self._is_empty)

    def _has_room(self) -> None:
        assert not self.outbox.full
        self.wanting_room -= 1

    def _is_empty(self) -> None:
        assert self.outbox.empty
        self.wanting_end -= 1

    @invariant()
    def it_knows_how_full_it_is(self) -> None:
        parcels = self.waiting + [each for one in self.under_way for each in one.parcels]
        tasks = sum(len(parcel.tasks) for parcel in parcels)
        size = sum(parcel.bytes for parcel in parcels)
        assert self.outbox.full == (tasks >= MOST_TASKS or size >= MOST_BYTES)
        assert self.outbox.empty == (not tasks)

    @invariant()
    def who_waits_is_told_as_soon_as_may_be(self) -> None:
        assert self.outbox.full or not self.wanting_room
        assert not (self.outbox.empty and self.wanting_end)


TestOutbox = pytest.mark.usefixtures("_small_shipments")(OutboxMachine.TestCase)
TestOutbox.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
