"""What a queue decides: which messages a pop gets, what an ack is worth, what time does to them.

Decisions are returned as entries of the log; only folding them (`QueueShard`) changes state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heappop

from penstock.core.changes import Change, Given, Op
from penstock.core.index import Room, Stored
from penstock.core.lanes import LANE_SHIFT
from penstock.core.leases import Grant
from penstock.core.queue import QueueShard
from penstock.core.runs import bits_of, cut
from penstock.errors import InvalidError, LeaseLostError, TooLargeError
from penstock.wire.batch import Header
from penstock.wire.frames import Settle, SettleItem
from penstock.wire.limits import (
    MAX_BATCH_MESSAGES,
    MAX_DELAY_MS,
    MAX_GANG_BYTES,
    MAX_GANG_MEMBERS,
    MAX_LEASE_MS,
)
from penstock.wire.messages import QueueOptions

# Plain numbers: looking up a member of an enum costs more than comparing it.
_ACK, _NACK, _EXTEND, _DEAD = map(int, (Settle.ACK, Settle.NACK, Settle.EXTEND, Settle.DEAD))
_RETURN = int(Settle.RETURN)
SWEEP_CHANGES = 1000  # of one step, so that no step takes long
SWEEP_MESSAGES = 10_000  # whose leases end in one step


def check_push(options: QueueOptions, header: Header, keyed: bool, held: bool) -> None:
    """Raises what is wrong with a push to such a queue, whatever it holds already."""
    if options.ordered != "no" and (header.priority or header.due_us):
        raise InvalidError("an ordered queue takes no priority and no delay")
    if options.ordered == "key" and not keyed:
        raise InvalidError('a queue with ordered="key" needs a key for every message')
    if options.ordered == "key" and (header.ttl_ms or held):
        raise InvalidError('a queue with ordered="key" takes no time-to-live and no hold')
    if options.gangs:
        _check_gang(header, held)


def _check_gang(header: Header, held: bool) -> None:
    if header.count != 1 or held:
        raise InvalidError("a gang is pushed by itself, and not held")
    if not 0 < header.members <= MAX_GANG_MEMBERS:
        raise InvalidError(
            f"a gang has 1 to {MAX_GANG_MEMBERS:,} members, not {header.members:,}",
            advice="Push it with push_gang(), which says how many.",
        )
    if (size := header.length * header.members) > MAX_GANG_BYTES:
        raise TooLargeError(
            f"a gang's message is sent to every member: {size:,} bytes in all, and the limit is "
            f"{MAX_GANG_BYTES:,}"
        )


def check_pop(options: QueueOptions) -> None:
    """Raises an error if messages of such a queue are not for a single consumer."""
    if options.gangs:
        raise InvalidError(
            "the gangs of this queue are granted to parked workers", advice="Call park()."
        )


def next_given(
    queue: QueueShard, messages: int, max_bytes: int, lease_us: int
) -> tuple[Given, Stored] | None:
    """The next lease that a pop gets: messages of one batch, or None if nothing is ready."""
    position = queue.first_ready()
    if position is None:
        return None
    stored = queue.find(position)
    assert stored is not None
    limit = min(messages, max(1, max_bytes // (stored.length // stored.span + 1)))
    run = queue.returned.runs.get(position)
    if run is None:
        span = min(limit, stored.base + stored.span - position)
    else:
        if queue.options.ordered == "queue":  # a gap may be another run, whose turn comes first
            limit = min(limit, _unbroken(run.mask))
        span = cut(run, limit)[0].span
    return Given(queue.leases.next_number, position, span, lease_us), stored


def followers(
    queue: QueueShard, given: Given, stored: Stored, messages: int, max_bytes: int,
    limit: tuple[int, int] | None,
) -> tuple[int, int, int]:  # fmt: skip
    """Batches right behind a lease that are taken along with it: how many, and their messages and
    bytes. All are fresh and whole, nothing ready comes before them, neither here nor, by `limit`,
    in another shard, and what becomes of one is nothing to the others."""
    position = given.position
    if stored.span == 1 or queue.options.ordered != "no" or queue.gangs is not None or queue.damage:
        return 0, 0, 0
    if position in queue.returned.runs:
        return 0, 0, 0
    if limit is not None and limit[0] > position >> LANE_SHIFT:
        limit = None
    before_us = None if limit is None else limit[1] if limit[0] == position >> LANE_SHIFT else 0
    room = Room(messages - given.span, max_bytes, queue.returned.head(), before_us)
    lane = queue.lane_of(position)
    return lane.index.followers(position + given.span, lane.skips, room)


def _unbroken(mask: int) -> int:
    return (~mask & (mask + 1)).bit_length() - 1


def settle(
    queue: QueueShard, item: SettleItem, now_us: int, counted: bool = False
) -> Change | None:
    """What an ack, nack, extension or burial does; None if it was done before (a resend).
    `counted`: not all nodes know of deliveries that do not count, so all do.

    LeaseLostError if the lease is not the current one any more.
    """
    if counted and item.op == _RETURN:
        item = item._replace(op=_NACK)
    op, shard, count, number, position, _, mask = item
    if not 0 < count <= MAX_BATCH_MESSAGES:
        raise InvalidError(f"{count} messages cannot be settled at once")
    leases = queue.leases
    grant = leases.grants.get(number)
    if grant is None:
        if op == _ACK and leases.acked(item):
            return None
        raise LeaseLostError(f"lease {number} of shard {shard} is over")
    if number in leases.reserved:
        raise LeaseLostError(f"lease {number} of shard {shard} is a reservation's")
    first = grant.position
    if not -MAX_BATCH_MESSAGES <= position - first <= MAX_BATCH_MESSAGES:
        raise InvalidError(f"position {position} is not part of lease {number}")
    held = bits_of(position, count, mask, first) & grant.mask
    if held and grant.deadline_us > now_us:
        if op == _ACK:
            return Change(op, count, number, position, 0, mask)
        change = _change(queue, grant, item)
        part = held != grant.mask
        return None if part and _ends_early(queue, grant, change, now_us) else change
    if op == _ACK and leases.acked(item):
        return None
    raise LeaseLostError(f"position {position} is not part of lease {number} any more")


def _change(queue: QueueShard, grant: Grant, item: SettleItem) -> Change:
    """Of all settlements but an ack."""
    op, arg = item.op, 0
    if op == _NACK:
        arg = min(item.arg, MAX_DELAY_MS) * 1000
        if is_out_of_tries(queue, grant):
            op, arg = _DEAD, 0
    elif op == _RETURN:
        op, arg = Op.RETURN, min(item.arg, MAX_DELAY_MS) * 1000
    elif op == _EXTEND:
        arg = min(item.arg, MAX_LEASE_MS) * 1000
    elif op != _DEAD:
        raise InvalidError(f"unknown settlement {op}")
    return Change(op, item.count, item.grant, item.position, arg, item.mask)


def _ends_early(queue: QueueShard, grant: Grant, change: Change, now_us: int) -> bool:
    """Whether one message would end the lease of others, which were pushed independently of it."""
    if change.op != Op.EXTEND or now_us + change.arg >= grant.deadline_us:
        return False
    index = queue.lane_of(grant.position).index
    return len(index.parts(grant.position, grant.mask)) > 1


def is_out_of_tries(queue: QueueShard, grant: Grant) -> bool:
    """Whether messages that come back now are dead letters."""
    tries = queue.options.max_deliveries
    return bool(tries) and grant.deliveries >= tries


def overdue(queue: QueueShard, now_us: int) -> list[Change]:
    """Leases that ran out and messages whose time-to-live is over: some of them, if there are many.

    In the order in which it came to be: a message that was leased when its time came is kept, also
    if both moments passed unnoticed. What is left of the leases can wait a moment, as none of them
    is worth anything any more; until then no message is too old.
    """
    expired = queue.leases.expired(now_us, SWEEP_CHANGES, SWEEP_MESSAGES)
    found = [(grant.deadline_us, _end_of(queue, grant)) for grant in expired]
    if (leases_us := queue.leases.next_due()) is None or leases_us > now_us:
        found += _too_old(queue, now_us)
        found.sort(key=lambda each: each[0])
    return [change for _, change in found]


def undelivered(queue: QueueShard, numbers: Iterable[int], old: bool) -> list[Change]:
    """Ends leases of these numbers. Whose they are never got anything: that is no delivery, unless
    `old` nodes cannot read that; then it is as if they had run out."""
    leases = queue.leases
    found = [leases.grants[number] for number in numbers if number in leases.grants]
    ended = [grant for grant in found if grant.number not in leases.reserved]
    if old:
        return [_end_of(queue, grant) for grant in ended]
    return [Change(Op.RETURN, each.span, each.number, each.position) for each in ended]


def _end_of(queue: QueueShard, grant: Grant) -> Change:
    op = Op.DEAD if is_out_of_tries(queue, grant) else Op.EXPIRE
    return Change(op, grant.span, grant.number, grant.position)


def _too_old(queue: QueueShard, now_us: int) -> Iterator[tuple[int, Change]]:
    """When their time came, and what is to be done."""
    for _ in range(SWEEP_CHANGES):
        if not queue.ttl or queue.ttl[0][0] > now_us:
            return
        due_us, base = heappop(queue.ttl)
        if (stored := queue.find(base)) is not None:
            yield due_us, Change(Op.DROP, stored.span, 0, stored.base)


def make_due(queue: QueueShard, now_us: int) -> bool:
    """Delayed messages whose time has come become ready; whether there were any."""
    ready = queue.delayed.due(now_us)
    for run in ready:
        queue.returned.add(run)
    return bool(ready)


def release(queue: QueueShard, key: bytes, position: int) -> Change | None:
    """What makes a message ready that is held, or was pushed with a delay; None if it does not wait
    for that. One that was given back with a delay does not."""
    run = queue.held.get(key) or queue.delayed.runs.get(position)
    if run is None or run.deliveries:
        return None
    return Change(Op.RELEASE, run.span, 0, run.position)


def next_due(queue: QueueShard, now_us: int) -> int | None:
    """When `overdue` or `make_due` may have something to do; what was left of leases: soon."""
    ttl = queue.ttl[0][0] if queue.ttl else None
    leases_us = queue.leases.next_due()
    if leases_us is not None and leases_us <= now_us:
        leases_us = now_us + 1
    times = (leases_us, queue.delayed.next_due(), ttl)
    return min((time for time in times if time is not None), default=None)


def purge(queue: QueueShard) -> list[Change]:
    """Drops everything that waits; leased messages and dead letters stay."""
    return [
        Change(Op.PURGE, 0, 0, lane.end) for start, lane in queue.lanes.items() if lane.end > start
    ]


def redrive(queue: QueueShard, limit: int, op: Op) -> list[Change]:
    """Brings dead letters back (REDRIVE) or drops them (BURY), at most `limit` messages."""
    changes: list[Change] = []
    for position, run in queue.dead.items():
        if limit <= 0:
            break
        changes.append(Change(op, run.span, 0, position))
        limit -= run.messages
    return changes


def makes_ready(queue: QueueShard, changes: Iterable[Change]) -> bool:
    """Whether messages may be ready after this, or wait for a time: acks alone make nothing ready,
    unless others wait for their turn."""
    return queue.options.ordered != "no" or any(each.op != _ACK for each in changes)
