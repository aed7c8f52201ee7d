"""How a new owner of a partition comes to where the one before stood."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from penstock.client.ops_topic import starting_offsets
from penstock.consumers.assembler import Assembler
from penstock.consumers.progress import Progress
from penstock.consumers.shared import Shared, StuckError, log
from penstock.consumers.states import ChunksRef, Lineage, Skip, State, split_parts
from penstock.consumers.storage import Storage
from penstock.errors import FencedError, PenstockError, ProtocolError


@dataclass(slots=True)
class Opened:
    """`progress` is the committed one. `handed_over_us`: when the owner before stopped, to hand
    over to this member; `resumed_us`: when it last committed, if it did not hand over. 0: neither.
    """

    assembler: Assembler[Any]
    progress: Progress
    skip: Skip = field(default_factory=Skip)
    chunks: ChunksRef | None = None
    handed_over_us: int = 0
    resumed_us: int = 0
    lineage: Lineage = field(default_factory=Lineage)
    is_new: bool = False  # the group has just begun to read it
    state_bytes: int = 0


async def open_partition(shared: Shared, storage: Storage, partition: int, token: int) -> Opened:
    """Reads what is committed, and makes an assembler of it. FencedError if the claim is over,
    StuckError if what is committed cannot be understood."""
    born = Lineage(0, shared.topic._layout.born[partition])
    found = await shared.topic.claims(shared.settings.group, [partition], states=True)
    status = found[partition]
    if status.token != token:
        raise FencedError(f"{status.owner or 'another'} has partition {partition}")
    try:
        if status.offset is None:
            return await _opened_at_start(shared, partition, token, born)
        if not status.state:
            progress = Progress.start(status.offset)
            return Opened(_assembler(shared, partition, progress), progress, lineage=born)
        opened = await _opened_from(shared, storage, partition, State.decode(status.state))
        opened.state_bytes = len(status.state)
        return opened
    except ProtocolError as error:
        raise StuckError(str(error)) from error


def _assembler(
    shared: Shared, partition: int, progress: Progress, objects: list[bytes] | None = None,
    lineage: Lineage | None = None,
) -> Assembler[Any]:  # fmt: skip
    settings = shared.settings
    return Assembler(
        settings.new_handler(), progress, objects or (), partition=partition,
        on_error=settings.on_error, limits=settings.limits,
        moved=() if lineage is None else lineage.moved,
    )  # fmt: skip


async def _opened_at_start(
    shared: Shared, partition: int, token: int, born: Lineage
) -> Opened:
    """A group that begins: where it does is committed, so that it begins there only once."""
    where = "start" if shared.settings.start == "first" else "end"
    starts = await shared.topic._run(starting_offsets(shared.topic, where, [partition]))
    progress = Progress.start(starts[partition])
    await shared.topic.commit(shared.settings.group, {partition: progress.offset}, token)
    assembler = _assembler(shared, partition, progress)
    return Opened(assembler, progress, lineage=born, is_new=True)


async def _opened_from(
    shared: Shared, storage: Storage, partition: int, state: State
) -> Opened:
    progress = Progress.decode(state.progress)
    assembler = await _loaded(shared, storage, partition, state)
    handed_over = assembler is not None and state.heir == shared.me
    if assembler is None:
        if progress.offset < state.lineage.origin:
            raise ProtocolError(f"what partition {partition} had from its parent is not there")
        ref = progress.snapshot
        objects = [] if ref is None else await storage.get_snapshot(ref)
        assembler = _assembler(shared, partition, progress, objects, state.lineage)
    return Opened(
        assembler, progress, state.skip, state.chunks,
        state.stopped_us if handed_over else 0,
        0 if state.heir or state.stopped_us or state.member == shared.me else state.at_us,
        state.lineage,
    )  # fmt: skip


async def _loaded(
    shared: Shared, storage: Storage, partition: int, state: State
) -> Assembler[Any] | None:
    """What the owner before left of all that it knew; None if it did not, or it is lost."""
    packed = state.dump
    if state.chunks is not None:
        packed = await storage.get_dump(state.chunks) or b""
    if not packed:
        return None
    settings = shared.settings
    try:
        return Assembler.load(
            settings.new_handler(), split_parts(packed), partition=partition,
            on_error=settings.on_error, limits=settings.limits, moved=state.lineage.moved,
        )  # fmt: skip
    except PenstockError as error:
        log.warning("partition %d is read again: %s", partition, error)
        return None
