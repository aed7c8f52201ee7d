"""The state of a Fabric as plain data: equal for nodes that must behave alike.

What recovery may change is left out: deadlines (they start anew), how runs are cut, where a delayed
message waits once its time has come, and what was last seen when.
"""

from __future__ import annotations

from typing import Any

from penstock.core.fabric import Fabric
from penstock.core.partition import Partition
from penstock.core.queue import QueueShard
from penstock.core.runs import Run, rows_of
from penstock.core.shard import Shard


def state_of(fabric: Fabric, *, timed: bool = True) -> dict[str, Any]:
    """Without `timed`: as if no time passed since a restart, where delays begin anew and what has
    outlived its time-to-live is dropped once more."""
    kernel = fabric.kernel
    return {
        "streams": {n: (s.info.kind, s.info.name, s.options) for n, s in kernel.streams.items()},
        "totals": {n: _totals(s.totals) for n, s in kernel.streams.items()},
        "sessions": {n: s.ttl_us for n, s in fabric.tables.sessions.items()},
        "shards": [_shard(shard, timed) for shard in kernel.shards],
    }


def _totals(totals: Any) -> tuple[int, int]:
    return totals.messages, totals.bytes


def _shard(shard: Shard, timed: bool) -> dict[str, Any]:
    windows = shard.producers.windows
    return {
        "last": shard.last if timed else 0,
        "producers": {
            p: (w.instance, w.next_sequence, w.named, list(w.recent)) for p, w in windows.items()
        },
        "forwarded": dict(shard.forwarded),
        "outbox": shard.outbox.snapshot(),
        "watchers": sorted(map(str, shard.watchers.snapshot())),
        "queues": {n: queue_state(q, timed) for n, q in shard.queues.items() if not is_unused(q)},
        "partitions": {
            key: _partition(p) for key, p in shard.partitions.items() if p.end or p.commits
        },
        "tables": {n: dict(t.cells) for n, t in shard.tables.items() if t.cells},
        "stages": {
            name: (stage.ttl_us, stage.secured, list(stage.batches.values()))
            for name, stage in shard.staging.stages.items()
            if stage.batches
        },
        "late": list(shard.staging.late),
        "publications": shard.publications.snapshot(),
        "books": shard.books.snapshot(),
        "reserved": {
            n: {(key, number): g for key, number, g in q.leases.reserved.snapshot()}
            for n, q in shard.queues.items()
            if len(q.leases.reserved)
        },
    }


def is_unused(queue: QueueShard) -> bool:
    return not queue.lanes and not len(queue.ids)


def queue_state(queue: QueueShard, timed: bool = True) -> dict[str, Any]:
    places: dict[int, tuple[Any, ...]] = {}
    _add(places, "ready", queue.returned.runs.values())
    _add(places, "delayed" if timed else "ready", queue.delayed.runs.values())
    _add(places, "held", queue.held.values())
    _add(places, "dead", queue.dead.values())
    for grant in queue.leases.grants.values():
        _add(places, f"leased {grant.number}", [grant])
    if queue.keys is not None:
        _add(places, "behind", [Run(position, 1) for position in queue.keys.behind()])
    for lane in queue.lanes.values():
        fresh = 0
        for stored in lane.index.rows():
            if stored.base not in lane.skips:
                first = max(stored.base, lane.cursor)
                rows = range(first, stored.base + stored.span)
                _add(places, "ready", [Run(position, 1) for position in rows])
                fresh += len(rows)
        assert fresh == lane.fresh
    stored_live = sum(s.live for lane in queue.lanes.values() for s in lane.index.rows())
    assert stored_live == len(places), "every live message is in one state"
    return {
        "places": places,
        "held": {key: run.position for key, run in queue.held.items()},
        "holds": (sorted(queue.holds.snapshot()), queue.holds.bytes),
        "next": queue.leases.next_number,
        "ids": [row[:2] for row in queue.ids.snapshot()],
        "ends": {start: lane.end for start, lane in queue.lanes.items()},
        "keys": None if queue.keys is None else sorted(map(sorted, queue.keys.snapshot())),
    }


def _add(places: dict[int, tuple[Any, ...]], state: str, runs: Any) -> None:
    for run in runs:
        for row in rows_of(run.mask).tolist():
            position = run.position + row
            assert position not in places, f"{position} is {places[position]} and {state}"
            places[position] = (state, run.deliveries)


def _partition(partition: Partition) -> tuple[Any, ...]:
    claims = {g: (c.owner, c.token, c.lease_us, c.reserved) for g, c in partition.claims.items()}
    return (
        partition.start, partition.end, partition.bytes, dict(partition.commits), claims,
        dict(partition.states), partition.states_bytes,
        dict(partition.thin), list(partition.damage), list(partition.index.rows()),
    )  # fmt: skip
