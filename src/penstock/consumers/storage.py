"""What is too large for a commit: dumps in pieces, and snapshots, in a table of the fabric.

Nothing here is changed in place while a commit may refer to it. Each life of a worker has a name of
its own under which it writes, so one that comes back late does not touch what the next one wrote.
A worker that goes back to its last commit begins another life.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Coroutine, Iterable
from typing import Any
from urllib.parse import quote

from penstock.client.aio_streams import AsyncTable
from penstock.consumers.progress import SnapshotRef
from penstock.consumers.snapshot import Snapshot
from penstock.consumers.states import ChunksRef, checksum

CHUNK_BYTES = 512 << 10
DUMP_SECONDS = 86_400.0  # pieces that nobody removed go then; the progress is still there
_AT_ONCE = 32  # writes and reads under way
_NUMBER_BYTES = 8


def part_of(*names: str) -> str:
    """Names as parts of a key, each followed by a slash."""
    return "".join(f"{quote(name, safe='')}/" for name in names)


class Storage:
    """What one worker stores of one partition."""

    def __init__(self, table: AsyncTable, group: str, topic: str, partition: int) -> None:
        self._table = table
        self._prefix = part_of(group, topic, str(partition)).encode()
        self._life: str
        self._numbers: dict[bytes, int]  # entries of the own snapshot, and of which number
        self._number: int
        self._others_gone: bool
        self.begin()

    def begin(self) -> None:
        """Another life: what was stored before is another's from now on."""
        self._life = secrets.token_hex(8)
        self._numbers, self._number, self._others_gone = {}, 0, False

    # --- dumps -----------------------------------------------------------------------------

    async def put_dump(self, packed: bytes, ttl: float | None) -> ChunksRef:
        """Stores a dump in pieces; all of them are safe when it returns. Without a `ttl`, until it
        is dropped."""
        self._number += 1
        reference = f"{self._life}-{self._number}"
        view = memoryview(packed)
        pieces = [bytes(view[at : at + CHUNK_BYTES]) for at in range(0, len(view), CHUNK_BYTES)]
        keys = self._piece_keys(reference, len(pieces))
        await _all(
            self._table.put(key, piece, ttl=ttl)
            for key, piece in zip(keys, pieces, strict=True)
        )
        return ChunksRef(reference, len(pieces), len(packed), checksum(packed))

    async def get_dump(self, ref: ChunksRef) -> bytes | None:
        """A dump; None if it is not there as it was."""
        found = await _all(self._table.get(key) for key in self._piece_keys(*ref[:2]))
        packed = b"".join(piece or b"" for piece in found)
        return packed if len(packed) == ref.size and checksum(packed) == ref.checksum else None

    async def drop_dumps(self, keep: ChunksRef | None) -> None:
        """Removes all dumps of the partition but one: no commit refers to them any more."""
        kept = frozenset() if keep is None else frozenset(self._piece_keys(*keep[:2]))
        gone = [key async for key in self._keys(b"dump/") if key not in kept]
        await _all(self._table.delete(key) for key in gone)

    def _piece_keys(self, reference: str, count: int) -> list[bytes]:
        return [b"%sdump/%s/%d" % (self._prefix, reference.encode(), at) for at in range(count)]

    # --- snapshots -------------------------------------------------------------------------

    def next_reference(self) -> bytes:
        """For the next snapshot."""
        return self._life.encode() + (self._number + 1).to_bytes(_NUMBER_BYTES, "big")

    def is_own(self, ref: SnapshotRef | None) -> bool:
        """Whether a snapshot was stored by this; then the next one may tell what changed only."""
        return ref is not None and ref.reference[:-_NUMBER_BYTES] == self._life.encode()

    async def put_snapshot(self, snapshot: Snapshot) -> list[bytes]:
        """Stores a snapshot; safe when it returns. What it supersedes: to be given to `drop` once
        a progress is committed that refers to this one."""
        self._number += 1
        life, number = self._life.encode(), self._number
        puts, superseded = [], []
        for name, packed in snapshot.entries:
            puts.append((self._entry_key(life, name, number), packed or b""))
            if (before := self._numbers.pop(name, None)) is not None:
                superseded.append(self._entry_key(life, name, before))
            if packed is None:  # hides those before it; last, so that it goes after them
                superseded.append(puts[-1][0])
            else:
                self._numbers[name] = number
        await _all(self._table.put(key, packed) for key, packed in puts)
        return superseded

    async def get_snapshot(self, ref: SnapshotRef) -> list[bytes]:
        """The objects of a snapshot, as they were when it was made."""
        life = ref.reference[:-_NUMBER_BYTES]
        most = int.from_bytes(ref.reference[-_NUMBER_BYTES:], "big")
        prefix = self._entry_prefix(life)
        newest: dict[bytes, tuple[int, bytes]] = {}
        async for key, packed in self._table.items(prefix):
            name = key[len(prefix) : -_NUMBER_BYTES]
            number = int.from_bytes(key[-_NUMBER_BYTES:], "big")
            if number <= most and number >= newest.get(name, (0, b""))[0]:
                newest[name] = number, packed
        return [packed for _, packed in newest.values() if packed]

    async def drop(self, keys: list[bytes]) -> None:
        """Removes entries that are superseded, in this order; once, also all of other lives."""
        for key in keys:
            await self._table.delete(key)
        if not self._others_gone:
            own = self._entry_prefix(self._life.encode())
            async for key in self._keys(b"snapshot/"):
                if not key.startswith(own):
                    await self._table.delete(key)
            self._others_gone = True

    def _entry_prefix(self, life: bytes) -> bytes:
        return b"%ssnapshot/%s/" % (self._prefix, life)

    def _entry_key(self, life: bytes, name: bytes, number: int) -> bytes:
        return self._entry_prefix(life) + name + number.to_bytes(_NUMBER_BYTES, "big")

    async def _keys(self, kind: bytes) -> AsyncIterator[bytes]:
        async for key in self._table.keys(self._prefix + kind):
            yield key


async def _all(calls: Iterable[Coroutine[Any, Any, Any]]) -> list[Any]:
    """What all of these give; so many are under way at a time, and further ones not made yet."""
    left = enumerate(calls)
    found: dict[int, Any] = {}

    async def work() -> None:
        for at, call in left:
            found[at] = await call

    workers = [asyncio.create_task(work()) for _ in range(_AT_ONCE)]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
    return [found[at] for at in range(len(found))]
