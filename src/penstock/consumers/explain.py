"""Why a partition is where it is, why it does not move, and what happened to it: as one member sees
it, for a person."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from penstock.consumers.claim_events import Looked
from penstock.consumers.claims import Claims
from penstock.consumers.holdings import Holding, Phase
from penstock.consumers.loads import imbalance
from penstock.consumers.moves import Move

LAST_MOVES = 10


class Explanation(NamedTuple):
    """One sentence each, and the last moves, the latest first."""

    where: str
    why: str
    next: str
    moves: list[Move]

    def __str__(self) -> str:
        return "\n".join((self.where, self.why, self.next, *map(str, self.moves)))


def explain(claims: Claims, partition: int, now_us: int) -> Explanation:
    """What a member knows of a partition. `now_us`: the member's own clock."""
    moves = claims.moves.last(partition, LAST_MOVES)
    look = claims.seen
    if look is None:
        return Explanation("unknown", "the group was not looked at yet", "", moves)
    if partition not in look.partitions:
        return Explanation("nowhere", "the topic has no such partition", "", moves)
    return Explanation(
        _where(claims, look, partition, now_us),
        _why(claims, look, partition),
        _next(claims, look, partition, now_us),
        moves,
    )


def _holder(claims: Claims, look: Looked, partition: int) -> str:
    """Who has it, if that is known and still a member."""
    claim = look.claims.get(partition)
    if partition in claims.holdings:
        return claims.me
    return claim.owner if claim is not None and claim.owner in look.members else ""


def _where(claims: Claims, look: Looked, partition: int, now_us: int) -> str:
    held, claim = claims.holdings.get(partition), look.claims.get(partition)
    if held is not None:
        doing = "processes it" if claims.may_process(partition, now_us) else "does not process it"
        return f"{claims.me} has it under token {held.token}, and {doing}"
    seen = f"as seen {_seconds(now_us - look.asked_us)} ago"
    if claim is None:
        return f"unknown: its node did not answer, {seen}"
    if not claim.owner:
        return f"nobody has it, {seen}"
    if claim.owner not in look.members:
        return f"{claim.owner} had it, who is gone, {seen}"
    return f"{claim.owner} has it under token {claim.token}, {seen}"


def _why(claims: Claims, look: Looked, partition: int) -> str:
    plan = claims.intentions.plan
    heir, holder = plan.owners.get(partition, ""), _holder(claims, look, partition)
    if heir not in look.members:
        return "no plan says where it should be"
    member = look.members[heir]
    if partition in member.pins and member.drain is None:
        return f"it is pinned to {heir}"
    share = f"whose share is {plan.targets[heir]} of {len(look.partitions)}"
    if holder == heir:
        return f"it stays with {heir}, {share}"
    if not holder:
        return f"it goes to {heir}, {share}"
    if look.members[holder].drain is not None:
        return f"it goes from {holder}, who drains, to {heir}, {share}"
    has = Counter(claim.owner for claim in look.claims.values())[holder]
    too_much = f"who has {has} and whose share is {plan.targets[holder]}"
    return f"it goes from {holder}, {too_much}, to {heir}, {share}"


def _next(claims: Claims, look: Looked, partition: int, now_us: int) -> str:
    held, todo, rules = claims.holdings.get(partition), claims.intentions, claims.rules
    if held is not None:
        return _next_of_held(claims, held, now_us) or _why_it_stays(claims, look)
    if partition in claims.claiming:
        return f"asked for {_seconds(now_us - claims.claiming[partition])} ago"
    if partition in todo.wanted:
        wait_us = todo.wanted[partition] - now_us
        return f"claimed in {_seconds(wait_us)}" if wait_us > 0 else (
            f"claimed in its turn: {rules.max_calls} at a time"
        )
    if partition in todo.awaited:
        return f"waits until {_holder(claims, look, partition)} hands it over"
    if partition in claims.offered:
        return f"given up for {claims.offered[partition]}, who was not seen to have it yet"
    return "not this member's business" if claims.me in look.members else (
        f"{claims.me} is not in the table of members"
    )


def _next_of_held(claims: Claims, held: Holding, now_us: int) -> str:
    since = _seconds(now_us - held.since_us)
    if held.phase is not Phase.HELD:
        return f"{held.phase.value} to {held.heir or 'anybody'}, for {since}"
    if held.partition in claims.intentions.giving:
        return f"handed over in its turn: {claims.rules.max_handovers} at a time"
    if not claims.may_process(held.partition, now_us):
        return "stands still until its claim is renewed"
    return ""


def _why_it_stays(claims: Claims, look: Looked) -> str:
    opens_us = claims.rules.schedule.opens_in_us(look.wall_us)
    if opens_us:
        return f"for balance it moves when a window opens, {_seconds(opens_us)} after the last look"
    if claims.rules.by_load:
        holders = {number: claim.owner for number, claim in look.claims.items()}
        above = imbalance(look.members.values(), holders, look.loads)
        return (
            f"the busiest member was {above:.0%} above the mean at the last look; up to "
            f"{claims.rules.threshold:.0%} nothing moves"
        )
    return "nothing is to be done"


def _seconds(span_us: int) -> str:
    return f"{max(0, span_us) / 1e6:.1f} s"
