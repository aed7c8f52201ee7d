"""What is done to the group, one change after the other, drawn from a seed; and how it settles."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.cli.faulting.nodes import Nodes
from penstock.cli.grouping.members import Member, Members
from penstock.cli.grouping.settling import Settled, Watch
from penstock.errors import DeadlineError, UnavailableError

ADDED, LEFT, KILLED, PAUSED, WOKEN = "added", "left", "killed", "paused", "woken"
KILLED_LEAVING, NODE_KILLED, NODE_BACK = "killed while leaving", "node killed", "node back"
ABRUPT = (KILLED, KILLED_LEAVING, PAUSED, NODE_KILLED, NODE_BACK)

FEWEST = 2  # members, before one is taken away
HANDING_OVER_SECONDS = 0.4  # a member that leaves is killed within this time


@dataclass
class Change:
    """Something that was done, when (by the clock of the day), and how the group settled. Until
    then, `read_again` messages were read that somebody had read before."""

    kind: str
    label: str
    at_us: int
    read_again: int = 0
    settled: Settled | None = None


@dataclass(frozen=True)
class Disruption:
    """Partitions whose owner did not stop in order. What was under way at any moment between both
    times may have been done, and not committed; or committed, and not done."""

    partitions: frozenset[int]
    from_us: int
    until_us: int


def wall_us() -> int:
    """The time of the day."""
    return time.time_ns() // 1000


@dataclass
class Changer:
    """Changes the group. `nodes`: of a cluster, to be killed too; None if there is only one, which
    is not. `trouble`: what did not happen as it should."""

    members: Members
    watch: Watch
    nodes: Nodes | None
    most: int
    gentle: bool  # nobody is killed or paused
    chance: random.Random
    say: Callable[[str], None]
    changes: list[Change] = field(default_factory=list)
    disruptions: list[Disruption] = field(default_factory=list)
    trouble: list[str] = field(default_factory=list)
    _deck: list[str] = field(default_factory=list)
    _read_again: int = 0  # by all, until the last change

    def next(self) -> None:
        """The next change: all kinds come equally often, in an order of chance."""
        while True:
            if not self._deck:
                self._deck = self._kinds()
                self.chance.shuffle(self._deck)
            kind = self._deck.pop()
            if kind == ADDED and len(self.members.here) >= self.most:
                continue
            if kind not in (ADDED, NODE_KILLED) and len(self.members.here) < FEWEST:
                kind = ADDED
            _ACTIONS[kind](self)
            return

    def _kinds(self) -> list[str]:
        if self.gentle:
            return [ADDED, LEFT]
        # As many come as go, so that the group neither vanishes nor stays full.
        kinds = [ADDED, ADDED, ADDED, LEFT, KILLED, KILLED_LEAVING, PAUSED]
        return kinds if self.nodes is None else [*kinds, NODE_KILLED]

    def begin(self, count: int) -> None:
        """The first members, all at once."""
        started_s, change = time.monotonic(), self._note(ADDED, f"{count} members start")
        for _ in range(count):
            self.members.add()
            started_s = time.monotonic()
        self._settle(change, started_s)

    def add(self) -> None:
        """One more member; the time counts from when it has joined."""
        change = self._note(ADDED, f"a member is added to {len(self.members.here)}")
        self.members.add()
        self._settle(change, time.monotonic())

    def leave(self) -> None:
        """SIGTERM: it hands over what it has."""
        member = self._drawn()
        change = self._note(LEFT, f"member {member.number} leaves (SIGTERM)")
        started_s = time.monotonic()
        member.ask_to_leave()
        self._settle(change, started_s)
        if not member.has_left():
            self.trouble.append(f"member {member.number} did not leave in order")

    def kill(self) -> None:
        """SIGKILL."""
        member = self._drawn()
        self._kill(member, KILLED, f"member {member.number} is killed")

    def kill_leaving(self) -> None:
        """SIGTERM, and SIGKILL while it hands over."""
        member = self._drawn()
        wait_s = self.chance.uniform(0.0, HANDING_OVER_SECONDS)
        label = f"member {member.number} is killed {wait_s * 1000:.0f} ms after it was to leave"
        owned = self.watch.owned_by(member.id)
        member.ask_to_leave()
        time.sleep(wait_s)
        self._kill(member, KILLED_LEAVING, label, owned)

    def _kill(
        self, member: Member, kind: str, label: str, owned: set[int] | None = None
    ) -> None:
        change = self._note(kind, label)
        owned = (owned or set()) | self.watch.owned_by(member.id)
        started_s, from_us = time.monotonic(), wall_us()
        member.kill()
        owned |= self.watch.owned_by(member.id)
        self.disruptions.append(Disruption(frozenset(owned), from_us, wall_us()))
        self._settle(change, started_s)

    def pause(self) -> None:
        """SIGSTOP until the others have taken over, and SIGCONT."""
        member = self._drawn()
        change = self._note(PAUSED, f"member {member.number} is paused (SIGSTOP)")
        owned = self.watch.owned_by(member.id)
        started_s, from_us = time.monotonic(), wall_us()
        member.pause()
        owned |= self.watch.owned_by(member.id)
        self._settle(change, started_s)
        change = self._note(WOKEN, f"member {member.number} wakes up")
        started_s, until_us = time.monotonic(), wall_us()
        self.members.here.append(member)
        member.wake()
        self.disruptions.append(Disruption(frozenset(owned), from_us, until_us))
        self._settle(change, started_s)

    def kill_node(self) -> None:
        """SIGKILL for a node. The group settles without it; then it is started again."""
        assert self.nodes is not None
        number = self.chance.choice(self.nodes.numbers)
        change = self._note(NODE_KILLED, f"node {number} is killed")
        started_s, from_us = time.monotonic(), wall_us()
        self.nodes.kill(number)
        self._settle(change, started_s)
        change = self._note(NODE_BACK, f"node {number} is started again")
        started_s = time.monotonic()
        self.nodes.start(number)
        try:
            self.nodes.wait_until_whole()
        except DeadlineError as error:
            self.trouble.append(f"{change.label}: {error.message}")
        self._settle(change, started_s)
        everything = frozenset(self.watch.claims())
        self.disruptions.append(Disruption(everything, from_us, wall_us()))

    def _drawn(self) -> Member:
        """A member that is one of the group no more."""
        member = self.chance.choice(self.members.here)
        self.members.here.remove(member)
        return member

    def _note(self, kind: str, label: str) -> Change:
        self.say(label)
        change = Change(kind, label, wall_us())
        self.changes.append(change)
        return change

    def _settle(self, change: Change, started_s: float) -> None:
        self.say(f"{change.label}: waiting until the group has settled")
        try:
            change.settled = self.watch.wait([each.id for each in self.members.here], started_s)
        except DeadlineError as error:
            self.trouble.append(f"{change.label}: {error.message}")
        self.members.refresh()
        change.read_again = self.members.total("read_again") - self._read_again
        self._read_again += change.read_again
        if ended := self.members.ended():
            raise UnavailableError(f"members {ended} ended by themselves; see their logs")


_ACTIONS: dict[str, Callable[[Changer], None]] = {
    ADDED: Changer.add,
    LEFT: Changer.leave,
    KILLED: Changer.kill,
    KILLED_LEAVING: Changer.kill_leaving,
    PAUSED: Changer.pause,
    NODE_KILLED: Changer.kill_node,
}
