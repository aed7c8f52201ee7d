"""Shares: how many partitions each member of a group should have, and which.

Every member works this out by itself, from what it sees. So that members who look at different
moments still agree, a plan is steady: when any part of it is carried out, in any order, the plan
that follows from the new state is the same one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from penstock.consumers.membership import Member, pinned, staying


@dataclass(frozen=True, slots=True)
class Plan:
    """Where each partition should be."""

    owners: Mapping[int, str]
    targets: Mapping[str, int]  # how many partitions each member has then

    def moves(self, holders: Mapping[int, str]) -> list[int]:
        """The partitions that somebody has and another should have."""
        owners = self.owners
        return [
            partition
            for partition, holder in holders.items()
            if partition in owners and holder in self.targets and owners[partition] != holder
        ]


@dataclass(slots=True)
class _Part:
    """One member's part while shares are worked out."""

    weight: int
    placed: int  # partitions that are this member's whatever the shares
    held: list[int]  # others that it has, in ascending order

    @property
    def has(self) -> int:
        return self.placed + len(self.held)


def plan_by_count(
    members: Collection[Member],
    partitions: Collection[int],
    holders: Mapping[int, str],
    wall_us: int,
    balance: bool = True,
) -> Plan:
    """Even shares by weight, with as few moves as they allow.

    `holders`: who has what now; ids that are no members count for nobody. Without `balance` only
    those move that nobody has, or that somebody who drains gives away. Where nobody is a member
    the plan is empty. Takes time in proportion to partitions and members (n log n)."""
    if not members:
        return Plan({}, {})
    fixed = fixed_places(members, partitions, holders, balance)
    parts = {member.id: _Part(member.weight, 0, []) for member in members}
    for owner in fixed.values():
        parts[owner].placed += 1
    homeless: list[int] = []
    for partition in sorted(partitions):
        if partition not in fixed:
            part = parts.get(holders.get(partition, ""))
            (homeless if part is None else part.held).append(partition)
    targets = _targets(members, parts, len(partitions), wall_us, balance)
    return Plan(_place(parts, targets, homeless, dict(fixed)), targets)


def fixed_places(
    members: Collection[Member],
    partitions: Collection[int],
    holders: Mapping[int, str],
    balance: bool,
) -> dict[int, str]:
    """Partitions that are pinned to somebody who stays. One that another member has moves to where
    it is pinned only for the sake of balance."""
    ids = {member.id for member in members}
    return {
        partition: owner
        for partition, owner in pinned(staying(members), partitions).items()
        if balance or holders.get(partition, owner) not in ids - {owner}
    }


def _place(
    parts: Mapping[str, _Part], targets: Mapping[str, int], homeless: list[int],
    owners: dict[int, str],
) -> dict[int, str]:  # fmt: skip
    """Members keep their first ones; what is left over goes, in order, to whoever lacks some, by
    id. Each choice depends on an order that does not change as the plan is carried out."""
    lacking: list[str] = []
    for name in sorted(parts):
        part = parts[name]
        keep = targets[name] - part.placed
        owners.update(dict.fromkeys(part.held[:keep], name))
        homeless += part.held[keep:]
        lacking += [name] * (keep - len(part.held))
    owners.update(zip(sorted(homeless), lacking, strict=True))
    return owners


def _targets(
    members: Collection[Member], parts: Mapping[str, _Part], total: int, wall_us: int, balance: bool
) -> dict[str, int]:
    keepers = staying(members)
    targets = _draining(members, {member.id for member in keepers}, parts, total, wall_us)
    free = {member.id: parts[member.id] for member in keepers}
    least = {name: part.placed if balance else part.has for name, part in free.items()}
    return targets | _even(free, least, total - sum(targets.values()))


def _draining(
    members: Collection[Member],
    keepers: Collection[str],
    parts: Mapping[str, _Part],
    total: int,
    wall_us: int,
) -> dict[str, int]:
    """What those who drain still keep: the rest of their share, and never more than they have."""
    weights = sum(member.weight for member in members)
    targets: dict[str, int] = {}
    for member in members:
        if member.drain is not None and member.id not in keepers:
            left = member.weight * total * member.drain.left_us(wall_us)
            share = -(-left // (weights * max(1, member.drain.period_us)))
            targets[member.id] = min(parts[member.id].has, share)
    return targets


def _even(free: Mapping[str, _Part], least: Mapping[str, int], total: int) -> dict[str, int]:
    """Parts of a total by weight, as whole numbers: the largest remainders are rounded up, and
    nobody gets less than its least. Who cannot come down to its part is taken out with its least,
    and the others share the rest."""
    free = dict(free)
    targets: dict[str, int] = {}
    while free:
        scale = sum(part.weight for part in free.values())
        floors = {name: part.weight * total // scale for name, part in free.items()}
        extras = total - sum(floors.values())
        # Rounding up is enough for one more; beyond that there is no part that suits them.
        stuck = [name for name in free if least[name] > floors[name] + 1]
        if not stuck:
            raised = [name for name in free if least[name] > floors[name]]
            stuck = raised if len(raised) > extras else []
        if not stuck:
            return targets | _rounded(free, least, floors, total)
        for name in stuck:
            targets[name] = least[name]
            total -= least[name]
            del free[name]
    return targets


def _rounded(
    free: Mapping[str, _Part], least: Mapping[str, int], floors: dict[str, int], total: int
) -> dict[str, int]:
    """Rounds up who needs it, then who has the largest remainder, then who has that much."""
    scale = sum(part.weight for part in free.values())
    remainders = {name: part.weight * total % scale for name, part in free.items()}

    def order(name: str) -> tuple[bool, int, bool, str]:
        floor = floors[name]
        return least[name] <= floor, -remainders[name], free[name].has <= floor, name

    extras = total - sum(floors.values())
    return floors | {name: floors[name] + 1 for name in sorted(free, key=order)[:extras]}
