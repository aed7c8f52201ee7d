"""What a worker stores beside its commits, and when that goes again."""

from __future__ import annotations

from typing import Any

from penstock.consumers.assembler import Assembler
from penstock.consumers.progress import Progress
from penstock.consumers.states import MAX_DUMP_BYTES, MAX_INLINE_BYTES, ChunksRef, join_parts
from penstock.consumers.storage import DUMP_SECONDS, Storage


class Saving:
    """Snapshots and dumps of one partition. What they supersede goes after the next commit, and
    not before `committed` says so."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self._superseded: list[bytes] | None = None  # by a snapshot that no commit refers to yet
        self._committed: ChunksRef | None = None  # the dump that the last commit refers to
        self._next: ChunksRef | None = None  # the one that the next commit will refer to

    def opened(self, chunks: ChunksRef | None) -> None:
        """A worker begins anew with what is committed. What was stored after that, for a commit
        that failed, is no part of any snapshot that follows."""
        self.storage.begin()
        self._superseded, self._committed, self._next = None, chunks, None

    async def snapshot(self, assembler: Assembler[Any]) -> None:
        """Stores the open objects, or what changed of them; not while fragments are read again."""
        if assembler.replaying:
            return
        full = not self.storage.is_own(assembler.snapshot_ref)
        made = assembler.snapshot(self.storage.next_reference(), full=full)
        superseded = await self.storage.put_snapshot(made)
        self._superseded = (self._superseded or []) + superseded

    async def progress(self, assembler: Assembler[Any], origin: int) -> Progress:
        """What to commit; a snapshot is made first if it would be too large without, or if it would
        build on what lies before the partition's first offset."""
        progress = assembler.progress()
        is_cut_off = progress.offset < origin and not self.storage.is_own(assembler.snapshot_ref)
        if is_cut_off or len(progress.encode()) > MAX_INLINE_BYTES:
            await self.snapshot(assembler)
            progress = assembler.progress()
        return progress

    async def dump(
        self, assembler: Assembler[Any], progress: Progress, origin: int
    ) -> tuple[bytes, ChunksRef | None]:
        """Everything that is known, for the commit of a progress: within it, or in pieces. Neither
        if it is too large, unless nobody could go on without it."""
        packed = join_parts(assembler.dump())
        if len(progress.encode()) + len(packed) <= MAX_INLINE_BYTES:
            return packed, None
        if progress.offset < origin:
            self._next = await self.storage.put_dump(packed, ttl=None)
        elif len(packed) <= MAX_DUMP_BYTES:
            self._next = await self.storage.put_dump(packed, ttl=DUMP_SECONDS)
        return b"", self._next

    async def committed(self) -> None:
        """A commit is made: what no commit refers to any more goes."""
        before, superseded = self._committed, self._superseded
        self._committed, self._next, self._superseded = self._next, None, None
        if before is not None:
            await self.storage.drop_dumps(self._committed)
        if superseded is not None:
            await self.storage.drop(superseded)
