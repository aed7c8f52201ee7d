"""Shares by measured load instead of count: moved only when it is worth it, and then little.

A group is left alone while its busiest member, for its weight, is within `threshold` of the mean.
Beyond that partitions move until all are within half of it. Between the two nothing happens, so a
load that sways there moves nothing; and each move makes the busier of two members less busy than
it was, so no sequence of moves comes back to where it began.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from heapq import heapify, heapreplace
from typing import NamedTuple

from penstock.consumers.membership import Member, staying
from penstock.consumers.shares import Plan, fixed_places

THRESHOLD = 0.2
_SETTLED = 0.5  # of the threshold: how far moves bring the busiest member back
_MOVES = 8  # for each partition, in one plan: a bound that is not reached in practice
_ROUNDING = 1e-9  # so that sums of floats in another order decide the same


class _Loads:
    """Who has which partitions, and how busy that makes it."""

    def __init__(self, members: Collection[Member], loads: Mapping[int, float]) -> None:
        self.members = {member.id: member for member in members}
        self.loads = loads
        self.parts: dict[str, set[int]] = {name: set() for name in sorted(self.members)}
        self.sums = dict.fromkeys(self.parts, 0.0)

    def add(self, partition: int, name: str) -> None:
        self.parts[name].add(partition)
        self.sums[name] += self.loads[partition]

    def remove(self, partition: int, name: str) -> None:
        self.parts[name].remove(partition)
        self.sums[name] -= self.loads[partition]

    def level(self, name: str, more: float = 0.0) -> float:
        """A member's load for its weight, if it had so much more."""
        return (self.sums[name] + more) / self.members[name].weight


def plan_by_load(
    members: Collection[Member],
    partitions: Collection[int],
    holders: Mapping[int, str],
    loads: Mapping[int, float],
    wall_us: int,
    balance: bool = True,
    threshold: float = THRESHOLD,
) -> Plan:
    """Shares by load. A partition without a figure counts as the mean of the others.

    `holders` and `balance` are as for shares by count. Deterministic; a plan that is carried out
    leads to a plan without moves, as long as loads stay the same."""
    if not members:
        return Plan({}, {})
    known = [loads[partition] for partition in partitions if partition in loads]
    usual = sum(known) / len(known) if known else 1.0
    full = {partition: max(0.0, loads.get(partition, usual)) for partition in partitions}
    state = _Loads(members, full)
    fixed = fixed_places(members, partitions, holders, balance)
    homeless: list[int] = []
    for partition in sorted(partitions):
        owner = fixed.get(partition, holders.get(partition, ""))
        if owner in state.parts:
            state.add(partition, owner)
        else:
            homeless.append(partition)
    keepers = [member.id for member in staying(members)]
    homeless += _drained(state, keepers, wall_us)
    _house(state, homeless, keepers)
    if balance:
        _even_out(state, keepers, fixed, threshold)
    owners = {partition: name for name, part in state.parts.items() for partition in part}
    return Plan(owners, {name: len(part) for name, part in state.parts.items()})


def imbalance(
    members: Collection[Member], holders: Mapping[int, str], loads: Mapping[int, float]
) -> float:
    """How far the busiest member that stays is above the mean, as part of it."""
    keepers = [member.id for member in staying(members)]
    state = _Loads(members, loads)
    for partition, holder in holders.items():
        if holder in state.parts and partition in loads:
            state.add(partition, holder)
    mean = _mean(state, keepers)
    return max(state.level(name) for name in keepers) / mean - 1 if mean else 0.0


def _mean(state: _Loads, keepers: list[str]) -> float:
    weights = sum(state.members[name].weight for name in keepers)
    return sum(state.sums[name] for name in keepers) / weights


def _drained(state: _Loads, keepers: list[str], wall_us: int) -> list[int]:
    """Takes from those who drain what is above the rest of their share, the lightest first."""
    mean = sum(state.sums.values()) / sum(member.weight for member in state.members.values())
    taken: list[int] = []
    for name, part in state.parts.items():
        drain = state.members[name].drain
        if drain is None or name in keepers:
            continue
        left = drain.left_us(wall_us) / max(1, drain.period_us)
        for partition in sorted(part, key=lambda number: (state.loads[number], number)):
            if left and state.level(name) <= left * mean * (1 + _ROUNDING):
                break
            state.remove(partition, name)
            taken.append(partition)
    return taken


def _house(state: _Loads, homeless: list[int], keepers: list[str]) -> None:
    """Gives out what nobody has, the heaviest first, each to whoever is least busy."""
    waiting = [(state.level(name), name) for name in keepers]
    heapify(waiting)
    for partition in sorted(homeless, key=lambda number: (-state.loads[number], number)):
        name = waiting[0][1]
        state.add(partition, name)
        heapreplace(waiting, (state.level(name), name))


def _even_out(
    state: _Loads, keepers: list[str], fixed: Collection[int], threshold: float
) -> None:
    mean = _mean(state, keepers)
    busiest = max(state.level(name) for name in keepers)
    if busiest <= mean * (1 + threshold) * (1 + _ROUNDING):
        return
    goal = mean * (1 + threshold * _SETTLED) * (1 + _ROUNDING)
    for _ in range(_MOVES * len(state.loads)):
        hot = sorted((-state.level(name), name) for name in keepers if state.level(name) > goal)
        moves = (_best_move(state, name, keepers, fixed, goal) for _, name in hot)
        move = next((move for move in moves if move is not None), None)
        if move is None:
            return
        state.remove(move.partition, move.giver)
        state.add(move.partition, move.heir)


class _Move(NamedTuple):
    after: float  # how busy the busier of both is then
    partition: int
    giver: str
    heir: str


def _best_move(
    state: _Loads, giver: str, keepers: list[str], fixed: Collection[int], goal: float
) -> _Move | None:
    """The lightest partition that brings the giver to the goal; otherwise the heaviest that its
    heir can take within the goal; otherwise the one that makes the busier of both least busy."""
    before = state.level(giver) * (1 - _ROUNDING)
    others = [name for name in keepers if name != giver]
    movable = [number for number in state.parts[giver] if number not in fixed]
    within: _Move | None = None
    best: _Move | None = None
    for load, partition in sorted((state.loads[number], number) for number in movable):
        heirs = ((state.level(name, load), name) for name in others)
        level, heir = min(heirs, default=(before, ""))
        move = _Move(max(level, state.level(giver, -load)), partition, giver, heir)
        if load <= 0 or move.after >= before:
            continue
        if move.after <= goal:
            return move
        if level <= goal:
            within = move
        best = move if best is None else min(best, move)
    return within or best
