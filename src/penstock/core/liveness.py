"""What the cleaner asks: which rows of a stored batch are still wanted, and where they went."""

from __future__ import annotations

from bisect import bisect_left

from penstock.core.index import BatchIndex, Stored
from penstock.core.kernel import Kernel
from penstock.core.partition import Partition
from penstock.core.queue import QueueShard
from penstock.core.records import Kind, PushMeta, read_forward, read_push
from penstock.core.runs import Run, first_of, full
from penstock.core.staged import STAGED, lane_with


def read_meta(kind: int, meta: bytes) -> PushMeta:
    """Where the batch of a record belongs."""
    return read_push(read_forward(meta)[1] if kind & Kind.FORWARDED else meta)


class Liveness:
    """Answers for one round of cleaning: it remembers runs, so use a new one for every round."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self._runs: dict[tuple[int, int], list[Run]] = {}

    def at(self, shard: int, kind: int, meta: bytes) -> Stored | None:
        """The stored batch that a record holds or held, if any of it is live."""
        push = read_meta(kind, meta)
        index = self._index(shard, push)
        return None if index is None else index.find(push.base)

    def live_mask(self, shard: int, kind: int, meta: bytes, stored: Stored) -> int:
        """Mask of wanted positions, relative to the batch's base."""
        push, owner = read_meta(kind, meta), self.kernel.shards[shard]
        if stored.base >= STAGED:
            return full(stored.span)
        if (partition := owner.partitions.get((push.stream, push.partition))) is not None:
            return full(stored.span) & ~partition.thin.get(stored.base, 0)
        return self._queue_mask(owner.queues[push.stream], stored)

    def _index(self, shard: int, push: PushMeta) -> BatchIndex | None:
        owner = self.kernel.shards[shard]
        if push.base >= STAGED and owner.staging.index.find(push.base) is not None:
            return owner.staging.index
        partition = owner.partitions.get((push.stream, push.partition))
        if partition is not None:
            return partition.index
        queue = owner.queues.get(push.stream)
        lane = None if queue is None else lane_with(queue, push.base)
        return None if lane is None else lane.index

    def _queue_mask(self, queue: QueueShard, stored: Stored) -> int:
        runs = self._runs.get((queue.shard, queue.stream))
        if runs is None:
            runs = self._runs[queue.shard, queue.stream] = _all_runs(queue)
        end = stored.base + stored.span
        mask = 0
        first = bisect_left(runs, stored.base, key=lambda run: run.position)
        last = bisect_left(runs, end, key=lambda run: run.position)
        for run in runs[first:last]:  # a run is part of one batch
            mask |= run.mask << run.position - stored.base
        lane = queue.lane_of(stored.base)
        if stored.base not in lane.skips and lane.cursor < end:
            fresh = max(lane.cursor, stored.base)
            mask |= full(end - fresh) << fresh - stored.base
        return mask

    def moved(
        self, shard: int, kind: int, meta: bytes, old: int, new: int, length: int, rows: int
    ) -> Stored | None:
        """A batch was copied. As it was before, or None if the copy is not wanted any more."""
        push, owner = read_meta(kind, meta), self.kernel.shards[shard]
        index = self._index(shard, push)
        before = None if index is None else index.move(push.base, old, new, length, rows)
        if before is None or index is None:
            return None
        after = index.find(push.base)
        assert after is not None
        if after.base >= STAGED:
            owner.staging.moved(before, length)
            return before
        partition = owner.partitions.get((push.stream, push.partition))
        part = owner.queues[push.stream] if partition is None else partition
        part.grown(after.live_bytes - before.live_bytes)
        return before


def _all_runs(queue: QueueShard) -> list[Run]:
    """Everything live that is not fresh, by position."""
    runs: list[Run] = [
        *queue.returned.runs.values(),
        *queue.delayed.runs.values(),
        *queue.held.values(),
        *queue.dead.values(),
    ]
    for grant in queue.leases.grants.values():
        index = queue.lane_of(grant.position).index
        if index.is_single(first_of(grant.position, grant.mask)):
            runs.append(grant)  # a batch of one is live as a whole: nobody asks for its mask
        else:
            runs += [Run(*part) for part in index.parts(grant.position, grant.mask)]
    if queue.keys is not None:
        runs += [Run(position, 1) for position in queue.keys.behind()]
    return sorted(runs, key=lambda run: run.position)


def grown_partition(kernel: Kernel) -> Partition | None:
    """A partition of a topic that keeps the latest of every key, and that has grown since it was
    asked for; one that is gone since is passed over."""
    while kernel.grown:
        (stream, number), _ = kernel.grown.popitem()
        definition = kernel.streams.get(stream)
        if definition is not None and stream in kernel.keep_latest:
            shard = kernel.shards[definition.info.placement[number]]
            if (partition := shard.partitions.get((stream, number))) is not None:
                return partition
    return None
