"""What a node has counted, against what there is: files, streams, parts of queues."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from penstock.engine.engine import Engine
from penstock.engine.recovery import all_stored
from penstock.store.locations import split


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
    messages, size = Counter[int](), Counter[int]()
    kernel = engine.fabric.kernel
    for shard in kernel.shards:
        for stream, queue in shard.queues.items():
            rows = [row for lane in queue.lanes.values() for row in lane.index.rows()]
            kept = sum(row.live for row in rows), sum(row.live_bytes for row in rows)
            if kept != (queue.kept_messages, queue.kept_bytes):
                counted = queue.kept_messages, queue.kept_bytes
                yield f"queue {stream} in shard {shard.id} counts {counted}, and has {kept}"
            messages[stream] += kept[0]
            size[stream] += kept[1]
        for (stream, number), partition in shard.partitions.items():
            rows = list(partition.index.rows())
            kept = sum(row.live for row in rows), sum(row.live_bytes for row in rows)
            if kept != (partition.live_messages, partition.bytes):
                counted = partition.live_messages, partition.bytes
                yield f"partition {number} of topic {stream} counts {counted}, and has {kept}"
            messages[stream] += kept[0]
            size[stream] += kept[1]
    for number, definition in kernel.streams.items():
        if definition.info.kind == "table":
            continue
        totals = definition.totals
        if (totals.messages, totals.bytes) != (messages[number], size[number]):
            there = messages[number], size[number]
            yield f"stream {number} counts {totals.messages, totals.bytes}, and has {there}"
