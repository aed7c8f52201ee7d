"""Large values, written and read on an event loop: by clients and pullers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Sequence

from penstock.tasks.blobs.blob import Blob, Joining, cut
from penstock.tasks.blobs.files import Directory
from penstock.tasks.blobs.pieces import PatientPieces, Pieces
from penstock.tasks.errors import TaskError
from penstock.tasks.names import shown
from penstock.wire.buffers import Buffer

_AT_ONCE = 8  # pieces of a value on their way


class BlobStore:
    """Writes what is referred to before anybody is told of it, reads it, and removes it early."""

    def __init__(self, pieces: Pieces, directory: Directory | None = None) -> None:
        self._pieces = pieces
        self._patient = PatientPieces(pieces)  # what is told of is there, and is waited for
        self._directory = directory

    async def write(self, blob: Blob, packed: Buffer) -> None:
        """Durable as a whole when it returns. Otherwise what is left of it expires."""
        if not blob.piece:
            await asyncio.to_thread(needed(self._directory, blob).write, blob, packed)
            return
        ttl_s, under_way = blob.ttl_s(time.time()), list[Awaitable[None]]()
        for key, piece in cut(blob, packed):
            under_way.append(self._pieces.put(key, piece, ttl_s))
            if len(under_way) == _AT_ONCE:
                await asyncio.gather(*under_way)
                under_way.clear()
        await asyncio.gather(*under_way)

    async def read(self, blob: Blob) -> Buffer:
        """The value; TaskError if it is not there any more."""
        if not blob.checked().piece:
            return there(await asyncio.to_thread(needed(self._directory, blob).read, blob), blob)
        joining, keys = Joining(blob), blob.keys
        for at in range(0, len(keys), _AT_ONCE):
            some = keys[at : at + _AT_ONCE]
            read = await asyncio.gather(*map(self._patient.get, some))
            for key, piece in zip(some, read, strict=True):
                joining.add(key, piece)
        return there(joining.whole, blob)

    async def remove(self, blobs: Sequence[Blob]) -> None:
        """Nobody needs them any more. What cannot be removed now will expire."""
        for blob in blobs:
            if blob.piece:
                await self._pieces.remove(blob.checked().keys)
            elif self._directory is not None:
                self._directory.remove(blob)


def needed(directory: Directory | None, blob: Blob) -> Directory:
    """The directory; TaskError if there is none to look in."""
    if directory is None:
        raise TaskError(
            f"a value of {blob.size:,} bytes is in the file {blob.file_name}",
            advice="Give client and workers the directory they share (directory=, --directory).",
        )
    return directory


def there(whole: Buffer | None, blob: Blob) -> Buffer:
    """A value that was read; TaskError if it was not there."""
    if whole is None:
        raise TaskError(
            f"a value of {blob.size:,} bytes of task {shown(blob.task)} is not kept any more",
            advice="Keep outcomes for longer than others may need them.",
        )
    return whole
