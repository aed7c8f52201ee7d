"""Where the messages are that somebody gets: the batches of grants, in order."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice, repeat

from penstock.core.changes import Given
from penstock.core.effects import Slice
from penstock.core.lanes import LANE_SHIFT
from penstock.core.leases import Grant
from penstock.core.queue import QueueShard
from penstock.core.runs import Run, cut, first_of, full, run_of
from penstock.core.views import QueueView, Taken
from penstock.wire.frames import PopBody, PopMode


def slice_of(queue: QueueShard, run: Run, grant: int) -> Slice | None:
    """Where the messages of a run of one batch are; None if there is nothing left of it."""
    stored = queue.find(run.position)
    if stored is None or not run.mask:
        return None
    return Slice(
        queue.shard, grant, run.position, run.mask, run.deliveries, stored.location,
        stored.length, stored.stamped, stored.moved,
    )  # fmt: skip


def peek_slices(view: QueueView, body: PopBody) -> list[Slice]:
    """What the next pops would get, or what they would not: first the highest priority, the oldest.
    Each with the time until which it is so; 0: none is known."""
    found: list[tuple[int, int, QueueShard, Run, int]] = []
    for queue in view.shards.values():
        for run, until_us in islice(_looked_at(queue, body), body.messages):
            stored = queue.find(run.position)
            if stored is not None:
                lane = run.position >> LANE_SHIFT
                found.append((lane, stored.arrived_us, queue, run, until_us))
    found.sort(key=lambda item: item[:2])
    slices: list[Slice] = []
    left, room = body.messages, body.max_bytes
    for _, _, queue, run, until_us in found:
        if left <= 0 or room <= 0:
            break
        part = slice_of(queue, cut(run, left)[0], until_us)
        if part is not None and (part.length <= room or not slices):
            slices.append(part)
            left -= part.mask.bit_count()
            room -= part.length
    return slices


def _looked_at(queue: QueueShard, body: PopBody) -> Iterator[tuple[Run, int]]:
    """Runs of single batches in the state that is asked for, and until when they are in it."""
    if body.mode == PopMode.PEEK_DEAD:
        yield from zip(queue.dead.values(), repeat(0))
    elif body.mode == PopMode.PEEK_DELAYED:
        for due_us, run in queue.delayed.times():
            yield run, due_us
    elif body.mode == PopMode.PEEK_LEASED:
        for grant in queue.leases.grants.values():
            if grant.mask:
                index = queue.lane_of(grant.position).index
                for position, mask in index.parts(grant.position, grant.mask):
                    yield Run(position, mask, grant.deliveries), grant.deadline_us
    elif body.mode == PopMode.PEEK_HELD:
        yield from zip(queue.held.values(), repeat(1))
    else:
        yield from zip(queue.waiting(body.messages), repeat(0))


def slices_of(taken: Taken) -> list[Slice]:
    """What was taken, batch by batch, in order; without what is not leased any more."""
    if len(taken.order) == 1:  # most often it is one message, alone
        ((queue, given, grant),) = taken.grants.values()
        if given.span == 1:
            part = slice_of(queue, grant, grant.number)
            return [] if part is None else [part]
    parts = {place: _parts(*grant) for place, grant in taken.grants.items()}
    slices = (next(parts[place]) for place in taken.order)
    return [part for part in slices if part is not None]


def _parts(queue: QueueShard, given: Given, grant: Grant) -> Iterator[Slice | None]:
    """One for each batch of a grant, as it was given."""
    if given.span == 1 or not grant.mask:
        return repeat(slice_of(queue, grant, grant.number))
    index = queue.lane_of(given.position).index
    if not index.is_single(first_of(grant.position, grant.mask)):
        parts = index.parts(grant.position, grant.mask)
        whole = (Run(position, mask, grant.deliveries) for position, mask in parts)
        return chain((slice_of(queue, run, grant.number) for run in whole), repeat(None))
    places = index.places(given.position, given.span)
    if places is None or grant.mask != full(given.span):  # somebody guessed the grant's number
        rows = range(given.span)
        runs = (run_of(given.position, grant.mask & 1 << row, grant.deliveries) for row in rows)
        return (None if run is None else slice_of(queue, run, grant.number) for run in runs)
    shard, number, deliveries = queue.shard, grant.number, grant.deliveries
    return (
        Slice(shard, number, position, 1, deliveries, location, length, position)
        for position, (location, length) in enumerate(places, given.position)
    )
