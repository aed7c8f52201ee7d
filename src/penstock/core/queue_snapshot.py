"""A queue's state as plain data, and back."""

from __future__ import annotations

from typing import Any

from penstock.core.dedupe import IdWindow
from penstock.core.holds import Holds
from penstock.core.index import BatchIndex
from penstock.core.lanes import Lane
from penstock.core.leases import Leases
from penstock.core.lost import Lost
from penstock.core.queue import QueueShard, Totals
from penstock.core.runs import Run
from penstock.core.waiting import KeyQueues
from penstock.wire.messages import QueueOptions


def _pack(run: Run) -> tuple[int, bytes, int]:
    return run.position, run.mask.to_bytes(run.span // 8 + 1, "little"), run.deliveries


def _run(packed: Any) -> Run:
    position, mask, deliveries = packed
    return Run(position, int.from_bytes(mask, "little"), deliveries)


def snapshot(queue: QueueShard) -> dict[str, Any]:
    """Everything that a restart must know. What is accepted but not visible is not in it."""
    return {
        "origin": queue.origin,
        "damage": queue.damage.batches,
        "lanes": [
            (start, lane.cursor, lane.end, lane.fresh, list(lane.skips), lane.index.snapshot())
            for start, lane in queue.lanes.items()
        ],
        "returned": [_pack(run) for run in queue.returned.runs.values()],
        "delayed": [(due_us, _pack(run)) for due_us, run in queue.delayed.times()],
        "held": [(key, _pack(run)) for key, run in queue.held.items()],
        "holds": queue.holds.snapshot(),
        "dead": [_pack(run) for run in queue.dead.values()],
        "leases": queue.leases.snapshot(),
        "ids": queue.ids.snapshot(),
        "keys": None if queue.keys is None else queue.keys.snapshot(),
        "ttl": queue.ttl,
        "gangs": None if queue.gangs is None else list(queue.gangs.sizes.items()),
    }


def restore(
    shard: int, stream: int, options: QueueOptions, totals: Totals, data: dict[str, Any]
) -> QueueShard:
    """The queue that made this snapshot; its leases must be restarted."""
    queue = QueueShard(shard, stream, options, totals, data["origin"])
    for start, cursor, end, fresh, skips, columns in data["lanes"]:
        index = BatchIndex.restore(columns)
        queue.lanes[start] = Lane(cursor, end, end, index, set(skips), fresh)
    if queue.gangs is not None:
        queue.gangs.sizes.update(data["gangs"])
    for packed in data["returned"]:
        queue.returned.add(_run(packed))
    for due_us, packed in data["delayed"]:
        queue.delayed.add(_run(packed), due_us)
    queue.damage = Lost((base, count) for base, count in data["damage"])
    for key, packed in data["held"]:
        queue.hold(key, _run(packed))
    queue.holds = Holds.restore(data.get("holds", ()))
    queue.dead = {run.position: run for run in map(_run, data["dead"])}
    queue.leases = Leases.restore(data["leases"])
    queue.ids = IdWindow.restore(data["ids"])
    if data["keys"] is not None:
        queue.keys = KeyQueues.restore(data["keys"])
    queue.ttl = [tuple(item) for item in data["ttl"]]
    for lane in queue.lanes.values():
        for stored in lane.index.rows():
            queue.keep(stored.live, stored.live_bytes)
    return queue
