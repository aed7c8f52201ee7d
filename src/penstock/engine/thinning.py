"""Keep-latest: finding messages whose key has a later one."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from penstock.core.index import Stored
from penstock.core.kernel import Kernel
from penstock.core.partition import Partition
from penstock.core.records import Thinned
from penstock.core.runs import mask_of
from penstock.core.shard import Shard
from penstock.engine.reader import Found, Place
from penstock.errors import PenstockError
from penstock.wire.batch import Batch, restamped

if TYPE_CHECKING:
    from penstock.engine.engine import Engine
    from penstock.engine.maintenance import Work


NOTES_A_PART = 1000
PART_BYTES = 1 << 20  # of their masks, which have a bit for every row


def thin(engine: Engine, partition: Partition) -> Generator[Work | None, None, None]:
    """Forgets messages whose key has a later one, except in the last batch. They are noted part by
    part: others get their turn between, and no more waits for the journal than should."""
    kernel = engine.fabric.kernel
    batches = list(partition.index.rows())
    job = Thinning(batches, engine.reader.wait, _unwritten(engine, batches))
    yield job.run
    for notes in _parts(partition, job.stale):
        while engine.busy or kernel.refusing is not None:
            yield None
        shard = _owned_shard(kernel, partition)
        if shard is None:
            return
        for note in notes:
            kernel.note(shard, note, kernel.streams[partition.stream].level)
        engine.settle(kernel.now_us)
        yield _let_others


def _parts(partition: Partition, stale: Mapping[int, int]) -> Iterator[list[Thinned]]:
    notes: list[Thinned] = []
    size = 0
    for base, mask in stale.items():
        packed = mask.to_bytes(mask.bit_length() // 8 + 1, "little")
        notes.append(Thinned(partition.stream, partition.number, base, packed))
        size += len(packed)
        if len(notes) >= NOTES_A_PART or size >= PART_BYTES:
            yield notes
            notes, size = [], 0
    if notes:
        yield notes


def _owned_shard(kernel: Kernel, partition: Partition) -> Shard | None:
    """Where the partition lives; None if its topic was deleted, or if this node does not own the
    shard any more, or has had another state of it put in the place of this one."""
    stream = kernel.streams.get(partition.stream)
    if stream is None:
        return None
    shard = kernel.shards[stream.info.placement[partition.number]]
    same = shard.partitions.get((partition.stream, partition.number)) is partition
    return shard if shard.owned and same else None


def _let_others() -> None:
    """Work that is none. While it is carried out, what waits for the loop gets its turn; and its
    end is an event, which the journal may not have."""


def _unwritten(engine: Engine, batches: list[Stored]) -> dict[int, Found]:
    """Those of the batches that are not on the disk yet, by location. The others need not be kept
    in memory for as long as the reading takes."""
    written = engine.journal.written
    late = [stored for stored in batches if stored.location >= written]
    return engine.reader.known([(each.location, each.length, each.stamped) for each in late])


class Thinning:
    """Reads all batches of a partition twice. Run it off the loop; `stale` is the result.

    Memory is bounded by the distinct keys of the partition. A batch that cannot be read is left as
    it is, and so is the last one, so that the partition's end stays where it is. `known`, by their
    location, are taken as they are: what is kept in memory only may not be on the disk yet.
    """

    def __init__(
        self,
        batches: list[Stored],
        read: Callable[[Sequence[Place]], list[Found]],
        known: Mapping[int, Found],
    ) -> None:
        self._batches = batches
        self._read = read
        self._known = known
        self.stale: dict[int, int] = {}  # base of a batch: mask of positions

    def run(self) -> None:
        """Finds out; never raises for what is on the disk."""
        latest: dict[bytes | None, int] = {}
        for stored in self._batches:
            if (batch := self._batch(stored)) is not None:
                latest.update(zip(batch.keys, batch.offsets.tolist(), strict=True))
        for stored in self._batches[:-1]:
            if (batch := self._batch(stored)) is not None:
                self._compare(stored.base, batch, latest)

    def _compare(self, base: int, batch: Batch, latest: dict[bytes | None, int]) -> None:
        """Only a message that was read makes an earlier one stale. It is not enough that another is
        the latest: this batch may be a later one, that could not be read the first time."""
        rows = zip(batch.keys, batch.offsets.tolist(), strict=True)
        stale = [
            offset - base
            for key, offset in rows
            if key is not None and latest.get(key, -1) > offset
        ]
        if stale:
            self.stale[base] = mask_of(np.asarray(stale, np.intp))

    def _batch(self, stored: Stored) -> Batch | None:
        found = self._known.get(stored.location)
        if found is None:
            (found,) = self._read([(stored.location, stored.length, stored.stamped)])
        if isinstance(found, PenstockError):
            return None
        shown = found if stored.moved is None else restamped(found, *stored.moved)
        return Batch.parse(shown, verify=False)
