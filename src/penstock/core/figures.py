"""How much a node has, for its figures."""

from __future__ import annotations

from penstock.core.kernel import Kernel


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
