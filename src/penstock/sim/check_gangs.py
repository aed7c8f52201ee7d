"""Promises of gangs: all members are told the same, and nobody is a member twice."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from penstock.sim.actors import Stream
from penstock.sim.history import History, Push
from penstock.sim.seats import SeatNote


def check_gangs(history: History, queue: Stream) -> list[str]:
    """Everything that is wrong with the gangs of a queue."""
    grants: dict[tuple[int, int], list[SeatNote]] = defaultdict(list)
    parks: dict[tuple[str, int], list[SeatNote]] = defaultdict(list)
    for seat in history.seats:
        if seat.queue == queue.name:
            grants[seat.shard, seat.grant].append(seat)
            parks[seat.worker, seat.asked_us].append(seat)
    found: list[str] = []
    for seats in grants.values():
        found += _check_grant(history, seats)
    found += _check_turns(history, queue)
    for (worker, asked_us), seats in parks.items():
        if len(seats) > 1:
            found.append(f"two gangs: {worker} parked at {asked_us} and was given {len(seats)}")
    return found


def _check_grant(history: History, seats: list[SeatNote]) -> Iterator[str]:
    """Members of a gang agree about it; there are as many as it needs."""
    first = seats[0]
    gang = f"{first.value!r}, under grant {first.grant:#x} of shard {first.shard}"
    if len({(each.value, each.attempt, each.addresses) for each in seats}) > 1:
        yield f"not the same: members of {gang} were told different things"
    if len({each.rank for each in seats}) < len(seats):
        yield f"one rank twice: in {gang}"
    for each in seats:
        if each.addresses[each.rank] != each.worker:
            yield f"another's place: {each.worker} has rank {each.rank} in {gang}"
    if len(set(first.addresses)) != history.members.get(first.value):
        yield f"too few or too many: {gang} was granted to {len(first.addresses)}"


def _check_turns(history: History, queue: Stream) -> Iterator[str]:
    """No gang is granted before one that is older, not larger, and as urgent.

    Looked at are first grants, of gangs that were certainly ready all the time.
    """
    firsts: list[tuple[Push, SeatNote]] = []
    for seat in history.seats:
        push = history.pushes[seat.value]
        whole = push.stored is True and not push.delay_us
        if seat.queue == queue.name and seat.attempt == 1 and not seat.rank and whole:
            firsts.append((push, seat))
    for push, taken in firsts:
        for older, left in firsts:
            waits = older.done_us < push.sent_us and taken.got_us < left.asked_us
            smaller = history.members[older.value] <= history.members[push.value]
            lost = history.trouble.may_lose_leases(queue.level, older.sent_us, left.got_us)
            if waits and smaller and older.priority == push.priority and not lost:
                yield f"out of turn: {push.value!r} was granted, and {older.value!r} was not"
