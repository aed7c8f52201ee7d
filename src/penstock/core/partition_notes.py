"""Folding what the log says of partitions: offsets and claims of groups, retention, growth."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.core import records
from penstock.core.outbox import OpenPartition

if TYPE_CHECKING:
    from penstock.core.partition import Partition
    from penstock.core.shard import Shard


def _reached(shard: Shard, stream: int, number: int, offset: int) -> Partition:
    """A partition that has been as long as this: what it lacks, if records are lost, was in them.
    Its offsets must not be used again."""
    partition = shard.partition(stream, number)
    if shard.torn and (count := partition.missed(offset)):
        shard.damaged.append((stream, number, offset - count, count))
    return partition


def _committed(shard: Shard, note: records.Committed, number: int, now_us: int) -> None:
    partition = _reached(shard, note.stream, note.partition, note.offset)
    partition.committed(note.group, note.offset, note.state)


def _claimed(shard: Shard, note: records.Claimed, number: int, now_us: int) -> None:
    partition = shard.partition(note.stream, note.partition)
    partition.claimed(note.group, note.owner, note.token, note.lease_us, now_us, note.reserved)


def _trimmed(shard: Shard, note: records.Trimmed, number: int, now_us: int) -> None:
    _reached(shard, note.stream, note.partition, note.start).trimmed(note.start)


def _thinned(shard: Shard, note: records.Thinned, number: int, now_us: int) -> None:
    mask = int.from_bytes(note.mask, "little")
    shard.partition(note.stream, note.partition).thinned(note.base, mask)


def _sealed(shard: Shard, note: records.Sealed, number: int, now_us: int) -> None:
    partition = _reached(shard, note.stream, note.partition, note.offset)
    partition.sealed(note.generation, note.offset)
    for index, (child, target) in enumerate(note.children):
        part = OpenPartition(note.stream, child, note.offset)
        shard.outbox.add(target, number, index, part)


def _opened(shard: Shard, note: records.Opened, number: int, now_us: int) -> None:
    shard.partition(note.stream, note.partition).began(note.offset)


PARTITION_NOTES: dict[type, Callable[[Shard, Any, int, int], None]] = {
    records.Committed: _committed,
    records.Claimed: _claimed,
    records.Trimmed: _trimmed,
    records.Thinned: _thinned,
    records.Sealed: _sealed,
    records.Opened: _opened,
}
