"""Whatever a member hears, in whatever order: what it may never do."""

from __future__ import annotations

from collections import defaultdict
from random import Random

import pytest

from penstock.consumers import claim_events as e
from penstock.consumers.claims import Claims
from penstock.consumers.explain import explain
from penstock.consumers.membership import Drain, Member
from penstock.consumers.rules import Rules

RULES = Rules(max_calls=3, max_handovers=2)
NAMES = ("a", "b", "c")
PARTITIONS = 6


class Gossip:
    """Gives a member true and false news, and keeps the books on what it may process."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.claims = Claims("a", RULES)
        self.now_us = 0
        self.asked: list[e.Action] = []
        self.running: dict[int, int] = {}
        self.confirmed_us: dict[tuple[int, int], int] = defaultdict(int)

    def step(self) -> None:
        self.now_us += self.chance.choice((0, 1000, 50_000, 400_000, 3_000_000, 12_000_000))
        for number in range(PARTITIONS):
            self.check_processing(number)
        event = self.event()
        self.confirm(event)
        for action in self.claims.handle(event, self.now_us):
            self.note(action)
        for number in range(PARTITIONS):
            self.check_processing(number)
        assert explain(self.claims, self.now_us % PARTITIONS, self.now_us).where
        assert len(self.claims.claiming) <= RULES.max_calls
        assert len(self.claims.holdings.moving) <= RULES.max_handovers
        assert self.claims.wake_us > self.now_us, "it would tick without end"

    def check_processing(self, number: int) -> None:
        """Only under a claim that was confirmed, within what that confirmation allows."""
        if self.claims.may_process(number, self.now_us):
            claim = number, self.running[number]
            assert self.now_us < self.confirmed_us[claim] + RULES.lease_us - RULES.margin_us

    def confirm(self, event: e.Event) -> None:
        if isinstance(event, e.Granted):
            claim = event.partition, event.token
            self.confirmed_us[claim] = max(self.confirmed_us[claim], event.asked_us)
        elif isinstance(event, e.Renewed):
            for claim in event.claims:
                self.confirmed_us[claim] = max(self.confirmed_us[claim], event.asked_us)

    def note(self, action: e.Action) -> None:
        if isinstance(action, e.Start):
            assert action.partition not in self.running
            self.running[action.partition] = action.token
        elif isinstance(action, e.Stop):
            assert self.running.pop(action.partition) == action.token
        elif isinstance(action, e.HandOver | e.Release):
            assert self.running.get(action.partition) != action.token
        elif isinstance(action, e.Look | e.Claim | e.Renew):
            assert action.asked_us == self.now_us
        self.asked.append(action)

    # --- news ------------------------------------------------------------------------------

    def event(self) -> e.Event:
        """Mostly an answer to something that was asked for, sometimes to something long ago."""
        if self.asked and self.chance.random() < 0.6:
            recent = self.asked[-8:] if self.chance.random() < 0.8 else self.asked
            answer = self.answer(self.chance.choice(recent))
            if answer is not None:
                return answer
        number = self.chance.randrange(PARTITIONS)
        return self.chance.choice(
            (
                e.Tick(),
                e.MembersChanged(),
                e.Offered((number,), "b"),
                e.Nudged("c"),
                e.HandedOver(number, self.chance.randint(1, 4)),
                e.Released(number, self.chance.randint(1, 4)),
                e.RenewalRefused(((number, self.chance.randint(1, 4)),)),
            )
        )

    def answer(self, action: e.Action) -> e.Event | None:
        if isinstance(action, e.Look):
            return self.look(action)
        if isinstance(action, e.Claim):
            if self.chance.random() < 0.7:
                return e.Granted(action.partition, self.chance.randint(1, 9), action.asked_us)
            return e.Refused(action.partition, self.chance.choice(NAMES), action.asked_us)
        if isinstance(action, e.Renew):
            lasting = tuple(c for c in action.claims if self.chance.random() < 0.9)
            return e.Renewed(lasting, action.asked_us)
        if isinstance(action, e.HandOver):
            return e.HandedOver(action.partition, action.token)
        if isinstance(action, e.Release):
            return e.Released(action.partition, action.token)
        return None

    def look(self, action: e.Look) -> e.Looked:
        chance = self.chance
        names = [name for name in NAMES if chance.random() < 0.8]
        drain = Drain(self.now_us, 20_000_000) if chance.random() < 0.1 else None
        members = {name: Member(name, drain=drain if name != "a" else None) for name in names}
        claims = {
            number: e.Claimed(
                chance.choice((*NAMES, "", "gone")),
                chance.randint(1, 9),
                chance.randint(0, 9_000_000),
            )
            for number in range(PARTITIONS)
            if chance.random() < 0.9
        }
        return e.Looked(members, range(PARTITIONS), claims, self.now_us, action.asked_us)


@pytest.mark.parametrize("seed", range(40))
def test_whatever_it_hears(seed: int):
    gossip = Gossip(seed)
    for _ in range(200):
        gossip.step()


def test_after_it_has_left_it_does_nothing():
    gossip = Gossip(1)
    for _ in range(100):
        gossip.step()
    gossip.claims.handle(e.Leave(), gossip.now_us)
    for _ in range(100):
        gossip.now_us = min(gossip.claims.wake_us, gossip.now_us + 3_000_000)
        for held in gossip.claims.holdings:
            gossip.claims.handle(e.Released(held.partition, held.token), gossip.now_us)
        gossip.claims.handle(e.Tick(), gossip.now_us)
    assert gossip.claims.left
    assert gossip.claims.handle(e.Granted(0, 99, gossip.now_us), gossip.now_us) == []
    assert not any(gossip.claims.may_process(number, gossip.now_us) for number in range(PARTITIONS))
