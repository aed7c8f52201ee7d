"""What one change of a group's members costs, from the change until the group is settled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.consumers.simulation.group import Group

AFTERWARDS = 4  # checks


@dataclass(frozen=True)
class Change:
    """Calls and notices are of all members together."""

    what: str
    members: int  # afterwards
    settled_us: int | None  # None: not within the limit
    moved: int  # partitions that have another owner than before
    looks: int
    claims: int
    refused: int  # of the claims
    releases: int
    notices: int  # about members, offers and nudges
    still_us: int  # the longest time that a partition stood still, not counting crashes
    stopped: int  # partitions that stood still at an owner that they had before and after

    @property
    def calls_per_move(self) -> float:
        """Claims and releases for each partition that moved."""
        return (self.claims + self.releases) / max(1, self.moved)

    @property
    def looks_per_member(self) -> float:
        """Looks at the group for each member."""
        return self.looks / max(1, self.members)


def measure(group: Group, what: str, act: Callable[[], object], limit_us: int) -> Change:
    """Has something happen to a settled group, and lets time pass until it is settled again, and
    then until members have seen that it is: their looks count, too."""
    before = group.owners()
    group.counted.clear()
    group.node.calls.clear()
    group.gaps_us.clear()
    for host in group.live:
        host.stops.clear()
    act()
    group.world.run(group.world.now_us + 1)
    settled_us = group.settle(limit_us)
    group.world.run(group.world.now_us + AFTERWARDS * group.rules.check_us)
    after, told, calls = group.owners(), group.counted, group.node.calls
    return Change(
        what,
        len(group.live),
        settled_us,
        sum(before.get(number) != owner for number, owner in after.items()),
        calls["look"],
        calls["claim"],
        calls["refused"],
        calls["release"],
        told["notice"] + told["Offer"] + told["Nudge"],
        max(group.gaps_us, default=0),
        sum(
            before.get(number) == after.get(number) == host.member.id
            for host in group.live
            for number in host.stops
        ),
    )
