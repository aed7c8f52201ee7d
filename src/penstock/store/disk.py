"""The disk as the store sees it: a flat set of named files, and the ways it can fail."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from penstock.wire.buffers import Buffer


class DiskError(Exception):
    """A disk operation failed; nothing is known about how much of it happened.

    `full` says that there was no room, which may pass; any other failure is taken as the disk's.
    """

    def __init__(self, text: str, full: bool = False) -> None:
        super().__init__(text)
        self.full = full


class Disk(Protocol):
    """One directory of files. Every method may raise DiskError.

    Calls for different files may run in different threads, and a read may run while the same file
    is written or synced. A buffer passed in belongs to the caller again when the call returns.
    """

    def names(self) -> list[str]:
        """The names of all files, in no particular order."""
        ...

    def size(self, name: str) -> int:
        """The size of a file in bytes, preallocated space included."""
        ...

    def create(self, name: str, size: int = 0, recycle: str | None = None) -> None:
        """Make a file of `size` bytes; the name is durable only after `sync_names`.

        With `recycle` that file is renamed, its content stays in place, and it grows if it is
        smaller than `size`. It is an error if `name` exists.
        """
        ...

    def write(self, name: str, offset: int, parts: Sequence[Buffer]) -> None:
        """Write all parts one after the other from `offset`; durable only after `sync`."""
        ...

    def sync(self, name: str) -> None:
        """Make everything written to the file durable."""
        ...

    def write_synced(self, name: str, offset: int, parts: Sequence[Buffer]) -> None:
        """Write all parts, which are durable when it returns; what was written before may not be.

        If it fails, the file is as after a `sync` that failed.
        """
        ...

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Read up to `length` bytes; fewer only at the end of the file. May block."""
        ...

    def read_now(self, name: str, offset: int, length: int) -> Buffer | None:
        """Like `read`, but None when it would have to wait for the device.

        It may be a part of the file itself: who writes to that place changes it.
        """
        ...

    def let_go(self, name: str) -> bool:
        """Whether all that `read_now` gave of a file is out of use; nobody reads it any more.

        If not, the file must not be written anew. It may be deleted, and takes up room until then.
        """
        ...

    def delete(self, name: str) -> None:
        """Remove a file; durable only after `sync_names`. It is an error if there is none."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Give a file another name, replacing a file of that name; durable after `sync_names`."""
        ...

    def sync_names(self) -> None:
        """Make all creations, deletions and renamings durable."""
        ...

    def free_bytes(self) -> int:
        """Room left for new data."""
        ...
