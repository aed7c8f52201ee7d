"""What the owner of a partition hands to its children when the topic has grown."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from penstock.client.ops_topic import starting_offsets
from penstock.consumers.assembler import Assembler
from penstock.consumers.delivery import Seed
from penstock.consumers.moved import Moved
from penstock.consumers.progress import Progress
from penstock.consumers.shared import Shared, StuckError, wall_us
from penstock.consumers.states import MAX_INLINE_BYTES, VERSION, Lineage, State, join_parts
from penstock.consumers.storage import Storage
from penstock.wire.growth import Layout


async def moved_by(shared: Shared, partition: int, generation: int, offset: int) -> list[Moved]:
    """The keys that left a partition in a growth, at an offset: those of each child, in turn."""
    topic = shared.topic
    if topic.info.generation < generation:
        await topic.refresh()
    layout = topic._layout
    before = Layout(layout.initial, topic.info.growths[: generation - 1])
    birth = _birth(layout, partition, generation)
    edges = [*birth[1], before.ranges[partition][1]]
    return [Moved(offset, low, high) for low, high in pairwise(edges)]


def _birth(layout: Layout, partition: int, generation: int) -> tuple[list[int], list[int]]:
    for birth in layout.births[partition]:
        if birth.generation == generation:
            return birth.children, birth.bounds
    raise StuckError(f"partition {partition} was split in growth {generation}, which is not known")


async def seeds_for(
    shared: Shared, partition: int, assembler: Assembler[Any], generation: int, moved: list[Moved],
    began: int | None,
) -> list[Seed]:  # fmt: skip
    """What to commit for each child that the group has not begun. `began`: where the group began to
    read this partition, if it has only just begun."""
    topic, group = shared.topic, shared.settings.group
    children = _birth(topic._layout, partition, generation)[0]
    known = await topic.committed(group, children)
    seeds: list[Seed] = []
    for child, keys in zip(children, moved, strict=True):
        if child in known:
            continue
        if shared.settings.start == "last" and began is not None and began >= keys.offset:
            ends = await topic._run(starting_offsets(topic, "end", [child]))
            seeds.append(Seed(child, ends[child], b""))
        else:
            seeds.append(await _seed(shared, child, assembler, generation, keys))
    return seeds


async def _seed(
    shared: Shared, child: int, assembler: Assembler[Any], generation: int, keys: Moved
) -> Seed:
    packed = join_parts(assembler.seed(keys.has))
    chunks = None
    if len(packed) > MAX_INLINE_BYTES:
        settings = shared.settings
        storage = Storage(shared.states, settings.group, settings.topic, child)
        chunks, packed = await storage.put_dump(packed, ttl=None), b""
    # Nothing before the child's own log can be read again: until it has a snapshot and none of
    # these fragments waits any more, its commits hold everything, as this one does.
    progress = Progress(keys.offset - 1, keys.offset) if keys.offset else Progress.start()
    state = State(
        VERSION, shared.me, wall_us(), progress.encode(), dump=packed, chunks=chunks,
        lineage=Lineage(keys.offset, generation),
    )  # fmt: skip
    return Seed(child, keys.offset, state.encode())
