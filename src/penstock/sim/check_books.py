"""What a node has counted, against what there is: files, streams, parts of queues."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from penstock.core.index import BatchIndex
from penstock.engine.engine import Engine
from penstock.engine.recovery import all_stored
from penstock.store.locations import split

Counts = tuple[int, int]  # messages and bytes
NONE: Counts = 0, 0


def check_books(engine: Engine) -> Iterator[str]:
    """Whatever is wrong with the figures of a node between two events. A file that seems to have
    nothing that anybody wants is deleted, so this must hold to the byte."""
    live = Counter[int]()
    for stored in all_stored(engine.fabric):
        if stored.location:
            live[split(stored.location)[0]] += stored.live_bytes
    shared = engine.fabric.kernel.shared  # then what others do not have yet counts, too
    for file in engine.files.all():
        if file.live < live[file.number] or (file.live > live[file.number] and not shared):
            yield f"{file.name} counts {file.live} live bytes, and has {live[file.number]}"
    yield from _check_streams(engine)


def _check_streams(engine: Engine) -> Iterator[str]:
    there: dict[int, Counts] = {}
    kernel = engine.fabric.kernel
    for shard in kernel.shards:
        for stream, queue in shard.queues.items():
            kept = _kept(there, stream, [lane.index for lane in queue.lanes.values()])
            if kept != (queue.kept_messages, queue.kept_bytes):
                counted = queue.kept_messages, queue.kept_bytes
                yield f"queue {stream} in shard {shard.id} counts {counted}, and has {kept}"
        for (stream, number), partition in shard.partitions.items():
            kept = _kept(there, stream, [partition.index])
            if kept != (partition.live_messages, partition.bytes):
                counted = partition.live_messages, partition.bytes
                yield f"partition {number} of topic {stream} counts {counted}, and has {kept}"
    for number, definition in kernel.streams.items():
        totals, kept = definition.totals, there.get(number, NONE)
        counted = totals.messages, totals.bytes
        if definition.info.kind != "table" and counted != kept:
            yield f"stream {number} counts {counted}, and has {kept}"


def _kept(there: dict[int, Counts], stream: int, indexes: list[BatchIndex]) -> Counts:
    """Messages and bytes of a part of a stream, which are added to those of the whole."""
    rows = [row for index in indexes for row in index.rows()]
    kept = sum(row.live for row in rows), sum(row.live_bytes for row in rows)
    before = there.get(stream, NONE)
    there[stream] = before[0] + kept[0], before[1] + kept[1]
    return kept
