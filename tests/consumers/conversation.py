"""One member and a test that plays the rest of the world: times in milliseconds since the start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from penstock.consumers import claim_events as e
from penstock.consumers.claims import Claims
from penstock.consumers.membership import Member
from penstock.consumers.rules import Rules

MS = 1000
A = TypeVar("A")


class Conversation:
    """Collects the actions of member `a` since the last event that a test gave."""

    def __init__(
        self, rules: Rules | None = None, me: str = "a", renewed: bool = False
    ) -> None:
        self.claims = Claims(me, rules or Rules())
        self.now_us = 0
        self.actions: list[e.Action] = []
        self.renewed = renewed  # whether renewals are answered as soon as they are asked for
        self.give(e.Tick())

    def give(self, event: e.Event) -> list[e.Action]:
        """What follows at once."""
        self.actions = self.claims.handle(event, self.now_us)
        for renew in self.all(e.Renew) if self.renewed else ():
            answer = e.Renewed(renew.claims, renew.asked_us)
            self.actions += self.claims.handle(answer, self.now_us)
        return self.actions

    def wait(self, ms: int) -> list[e.Action]:
        """Lets time pass, with ticks when they are due; everything that followed."""
        end_us, found = self.now_us + ms * MS, []
        while (wake_us := self.claims.wake_us) <= end_us:
            self.now_us = max(self.now_us, wake_us)
            found += self.give(e.Tick())
        self.now_us = end_us
        self.actions = found
        return found

    def jump(self, ms: int) -> None:
        """Lets time pass without a tick, as a pause does."""
        self.now_us += ms * MS

    def the(self, kind: type[A]) -> A:
        """The only action of a kind."""
        [action] = self.all(kind)
        return action

    def all(self, kind: type[A]) -> list[A]:
        """Actions of a kind."""
        return [action for action in self.actions if isinstance(action, kind)]

    def until_look(self) -> e.Look:
        """Waits for the next look."""
        for _ in range(1000):
            self.now_us = max(self.now_us, self.claims.wake_us)
            self.give(e.Tick())
            if self.all(e.Look):
                return self.the(e.Look)
        raise AssertionError("it does not look")

    def looked(
        self,
        claims: Mapping[int, tuple[str, int, int] | None],
        members: str | list[Member] = "a",
        wall_us: int = 0,
        look: e.Look | None = None,
        loads: Mapping[int, float] | None = None,
    ) -> list[e.Action]:
        """Answers the next look: (owner, token, ms left) by partition; None: it did not answer."""
        look = look or self.until_look()
        known = [Member(name) for name in members] if isinstance(members, str) else members
        seen = {
            number: e.Claimed(claim[0], claim[1], claim[2] * MS)
            for number, claim in claims.items()
            if claim is not None
        }
        by_name = {member.id: member for member in known}
        return self.give(
            e.Looked(by_name, sorted(claims), seen, wall_us, look.asked_us, loads or {})
        )

    def granted(self, claim: e.Claim, token: int = 1) -> list[e.Action]:
        return self.give(e.Granted(claim.partition, token, claim.asked_us))

    def owns(self, *partitions: int) -> None:
        """Brings the member to have these, as all that there are, under token 1."""
        self.looked(dict.fromkeys(partitions, FREE), "a")
        while claims := self.all(e.Claim):
            self.actions = [action for claim in claims for action in self.granted(claim)]
        assert [held.partition for held in self.claims.holdings] == list(partitions)


FREE = ("", 0, 0)
