"""What a member makes of a look at the group: what to claim, to give away, and to wait for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.consumers.claim_events import Looked
from penstock.consumers.holdings import Holdings, Phase
from penstock.consumers.loads import plan_by_load
from penstock.consumers.rules import Rules
from penstock.consumers.shares import Plan, plan_by_count

_SLOWER = 64  # so that a clock that runs a little fast does not ask in vain


@dataclass(slots=True)
class Intentions:
    """They follow from one look. What a member gets to know later changes them until the next."""

    plan: Plan = field(default_factory=lambda: Plan({}, {}))
    wanted: dict[int, int] = field(default_factory=dict)  # to be claimed, and from when on
    awaited: set[int] = field(default_factory=set)  # to be had, and another member still has it
    unknown: set[int] = field(default_factory=set)  # to be had, and its node did not answer
    giving: dict[int, str] = field(default_factory=dict)  # to be handed over, and to whom


def intend(
    me: str,
    look: Looked,
    holdings: Holdings,
    claiming: Mapping[int, int],
    rules: Rules,
    now_us: int,
) -> Intentions:
    """What to do after a look that shows `me` as a member. What is being claimed, handed over or
    released counts as done: all that the plan leaves to do comes on top of that."""
    plan = make_plan(look, _holders(me, look, holdings, claiming), rules)
    found = Intentions(plan)
    for partition, owner in plan.owners.items():
        if owner == me and partition not in holdings and partition not in claiming:
            _intend_to_get(partition, me, look, found, now_us)
    found.giving = {
        held.partition: plan.owners[held.partition]
        for held in holdings
        if held.phase is Phase.HELD and plan.owners.get(held.partition, me) != me
    }
    return found


def make_plan(look: Looked, holders: Mapping[int, str], rules: Rules) -> Plan:
    """Who should have what, by the rules of the group."""
    members = look.members.values()
    balance = rules.schedule.opens_in_us(look.wall_us) == 0
    if rules.by_load:
        return plan_by_load(
            members, look.partitions, holders, look.loads, look.wall_us, balance, rules.threshold
        )
    return plan_by_count(members, look.partitions, holders, look.wall_us, balance)


def _holders(
    me: str, look: Looked, holdings: Holdings, claiming: Mapping[int, int]
) -> dict[int, str]:
    members = look.members
    holders = {
        partition: claim.owner
        for partition, claim in look.claims.items()
        if claim.owner in members and claim.owner != me
    }
    holders.update(dict.fromkeys(claiming, me))
    for held in holdings:
        holders[held.partition] = held.heir if held.heir in members else me
    return holders


def _intend_to_get(
    partition: int, me: str, look: Looked, found: Intentions, now_us: int
) -> None:
    claim = look.claims.get(partition)
    if claim is None:
        found.unknown.add(partition)
    elif claim.owner in look.members and claim.owner != me:
        found.awaited.add(partition)
    elif claim.owner in ("", me):  # `me`: news from before it was given up
        found.wanted[partition] = now_us
    else:  # its owner is gone; it is free when the lease is over
        found.wanted[partition] = now_us + claim.left_us + claim.left_us // _SLOWER
