"""How much a node has, for its figures."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from penstock.core.kernel import Kernel
from penstock.core.queue import QueueShard

if TYPE_CHECKING:
    from penstock.core.fabric import Fabric


def figures_of(fabric: Fabric) -> dict[str, Any]:
    """Figures of a node."""
    kernel = fabric.kernel
    kinds = [stream.info.kind for stream in kernel.streams.values()]
    owned = [shard for shard in kernel.shards if shard.owned]
    refusing = kernel.refusing
    messages, size = kept(kernel)
    return {
        "node": fabric.node,
        "connections": len(fabric.connections),
        "queues": kinds.count("queue"),
        "topics": kinds.count("topic"),
        "tables": kinds.count("table"),
        "sessions": len(fabric.tables.sessions) + len(fabric.sessions),
        "outstanding": sum(shard.outbox.parts for shard in owned),
        "dropped_parts": fabric.forwards.dropped,
        "messages": messages,
        "bytes": size,
        "stages": sum(len(shard.staging.stages) for shard in owned),
        "staged_bytes": sum(shard.staging.bytes for shard in owned),
        "damaged": sum(d[3] for shard in kernel.shards for d in shard.damaged),
        "refusing": None if refusing is None else str(refusing),
        **fabric.extra_figures(),
    }


def kept(kernel: Kernel) -> tuple[int, int]:
    """Messages and bytes in the shards that this node owns. Copies of others' shards are theirs to
    count: the figures of all nodes add up to those of the cluster."""
    if not kernel.shared:
        totals = [stream.totals for stream in kernel.streams.values()]
        return sum(each.messages for each in totals), sum(each.bytes for each in totals)
    owned = [shard for shard in kernel.shards if shard.owned]
    queues = [queue for shard in owned for queue in shard.queues.values()]
    partitions = [part for shard in owned for part in shard.partitions.values()]
    tables = [table for shard in owned for table in shard.tables.values()]
    messages = sum(each.kept_messages for each in queues)
    messages += sum(each.live_messages for each in partitions)
    size = sum(each.kept_bytes for each in queues)
    size += sum(each.bytes for each in partitions) + sum(each.bytes for each in tables)
    return messages, size


def queue_figures(parts: list[QueueShard], pushed: int, now_us: int) -> dict[str, Any]:
    """Figures of the parts of a queue; `pushed`: messages that came to others, forgotten since."""
    return {
        "ready": sum(q.ready for q in parts),
        "leased": sum(q.leases.messages for q in parts),
        "reserved": sum(q.leases.reserved_messages for q in parts),
        "delayed": sum(q.delayed.messages for q in parts),
        "held": sum(len(q.held) for q in parts),
        "dead": sum(run.messages for q in parts for run in q.dead.values()),
        "messages": sum(q.kept_messages for q in parts),
        "bytes": sum(q.kept_bytes for q in parts),
        "pushed": pushed + sum(q.pushed for q in parts),
        "oldest_ms": _oldest_ms(parts, now_us),
        "shards": len(parts),
    }


def _oldest_ms(parts: Iterable[QueueShard], now_us: int) -> int | None:
    """How long the oldest of the messages that are next in their shards has been here."""
    heads = (queue.head() for queue in parts)
    oldest_us = min((head[1] for head in heads if head is not None), default=None)
    return None if oldest_us is None else max(0, now_us - oldest_us) // 1000
