"""Folding the log of a queue in a shard when messages, or records of it, are lost.

A batch that is damaged is known by its record. Of records that cannot be read nothing is known but
that their log numbers are missing: the shard is *torn*. Then what later records speak of and nobody
has stored is lost as well; what they say of the rest counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from penstock.core.changes import Change, Given, Op
from penstock.core.lanes import LANE_SHIFT
from penstock.core.runs import Run, bits_of, full, run_of, window
from penstock.wire.limits import MAX_PRIORITY

if TYPE_CHECKING:
    from penstock.core.queue import QueueShard


class Lost:
    """Positions at which there is nothing to be had any more: they stay used."""

    def __init__(self, batches: Iterable[tuple[int, int]] = ()) -> None:
        self.batches = list(batches)  # (base, count)

    def __bool__(self) -> bool:
        return bool(self.batches)

    def add(self, base: int, count: int) -> None:
        """A batch is lost."""
        self.batches.append((base, count))

    def among(self, position: int, span: int) -> int:
        """Which of `span` positions are lost, as a mask."""
        lost = 0
        for base, count in self.batches:
            first, end = max(base, position), min(base + count, position + span)
            if first < end:
                lost |= window(first, end - first, position)
        return lost


def missed(queue: QueueShard, base: int) -> int:
    """The shard is torn: whatever was between the last batch of a lane and `base` is lost. How many
    messages that is."""
    end = queue.lane(MAX_PRIORITY - (base >> LANE_SHIFT)).end
    if base <= end:
        return 0
    queue.lost(end, base - end)
    return base - end


def gives_lost(queue: QueueShard, given: Given, torn: bool) -> bool:
    """Whether a logged grant is about lost messages only; its number stays used."""
    position, span = given.position, given.span
    if torn:
        missed(queue, position + span)
        _missed_at(queue, position, span)
        if position not in queue.returned.runs and position not in queue.delayed.runs:
            _leased_unseen(queue, position, 0)
            _ended_unseen(queue, position, span)
    lost = bool(queue.damage) and queue.damage.among(position, span) == full(span)
    if lost:
        queue.leases.skip(given.number)
    return lost


def _missed_at(queue: QueueShard, position: int, span: int) -> None:
    """Nothing may be left of what a grant begins with: all up to the next batch is lost then; of
    what comes after the grant nothing is known, and it may well be there."""
    waits = position in queue.returned.runs or position in queue.delayed.runs
    if waits or queue.find(position) is not None or queue.damage.among(position, 1):
        return
    lane = queue.lane_of(position)
    row = lane.index.next_row(position)
    after = position + span if row < 0 else lane.index.at(row).base
    if after > position:
        queue.damage.add(position, after - position)


def _leased_unseen(queue: QueueShard, position: int, span: int) -> None:
    """Fresh messages before the end of what was leased: they were leased before, and the record of
    that is lost. They are ready again, unless what follows says that they were acknowledged."""
    lane, end = queue.lane_at(position), position + span
    if lane is None or queue.keys is not None or queue.gangs is not None:  # none of them is fresh
        return
    while lane.fresh:
        lane.pass_skips()
        stored = lane.index.find(lane.cursor)
        if stored is None or lane.cursor >= end:
            return
        count = min(stored.base + stored.span, end) - lane.cursor
        queue.returned.add(Run(lane.cursor, full(count), 1))
        lane.cursor += count
        lane.fresh -= count


def _ended_unseen(queue: QueueShard, position: int, span: int) -> None:
    """Messages that are leased, and that another lease has: the record of its end is lost."""
    for run in _taken_from_leases(queue, position, span, acked=False):
        queue.returned.add(run)


def _taken_from_leases(
    queue: QueueShard, position: int, span: int, acked: bool
) -> Iterator[Run]:
    lane = queue.lane_at(position)
    in_line = queue.keys is None and queue.gangs is None
    if lane is None or (in_line and position >= lane.cursor):
        return  # nobody has had them yet
    for grant in list(queue.leases.grants.values()):
        if position < grant.end and grant.position < position + span:
            bits = bits_of(position, span, 0, grant.position)
            bits = queue.leases.settle(grant, bits, acked)
            if (run := run_of(grant.position, bits, grant.deliveries)) is not None:
                yield run


def _settled_unseen(queue: QueueShard, change: Change) -> None:
    """A change to a lease of which the record is lost: what it acknowledges is over."""
    _leased_unseen(queue, change.position, change.span)
    if change.op != Op.ACK:
        return
    for position, count in _stretches(change.position, change.mask or full(change.span)):
        waiting = queue.returned.drop(position, count) + queue.delayed.drop(position, count)
        for run in [*waiting, *_taken_from_leases(queue, position, count, acked=True)]:
            queue.finish(run)


def _stretches(position: int, mask: int) -> Iterator[tuple[int, int]]:
    """The neighbouring positions of a mask: where they begin, and how many they are."""
    while mask:
        gap = (mask & -mask).bit_length() - 1
        position, mask = position + gap, mask >> gap
        count = (~mask & mask + 1).bit_length() - 1
        yield position, count
        position, mask = position + count, mask >> count


def changes_lost(queue: QueueShard, change: Change, torn: bool = False) -> bool:
    """Whether a logged change is about lost messages, or a lost lease, only, and so says nothing
    but what is done here."""
    if torn and change.grant and change.grant not in queue.leases.grants:
        _settled_unseen(queue, change)
        return True
    if torn and change.op in (Op.REDRIVE, Op.BURY) and change.position not in queue.dead:
        return True
    if not queue.damage or change.op == Op.PURGE:  # its position is where the purge ended
        return False
    lost = queue.damage.among(change.position, change.span)
    if change.grant:
        return bool(lost) and change.grant not in queue.leases.grants
    return bool(lost)
