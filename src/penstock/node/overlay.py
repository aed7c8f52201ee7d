"""A data directory that can be read, and seemingly written: what is written stays in memory.

For looking at a directory without changing it. It takes no lock; see `hold_shared`.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from penstock.errors import InUseError
from penstock.node.files import LOCK_NAME
from penstock.store.disk import DiskError
from penstock.wire.buffers import Buffer

BLOCK_BYTES = 64 << 10


class _File:
    """A file as it looks: blocks that were written, above a real file or above zeros."""

    __slots__ = ("blocks", "real", "real_bytes", "size")

    def __init__(self, real: Path | None, real_bytes: int, size: int) -> None:
        self.real = real
        self.real_bytes = real_bytes
        self.size = size
        self.blocks: dict[int, bytearray] = {}

    def read(self, offset: int, length: int) -> bytes:
        """Bytes from `offset`; fewer only at the end of the file."""
        end = min(offset + length, self.size)
        if not self.blocks:
            return self._below(offset, max(0, end - offset))
        parts: list[bytes | bytearray] = []
        while offset < end:
            number, at = divmod(offset, BLOCK_BYTES)
            size = min(BLOCK_BYTES - at, end - offset)
            block = self.blocks.get(number)
            parts.append(self._below(offset, size) if block is None else block[at : at + size])
            offset += size
        return b"".join(parts)

    def write(self, offset: int, data: memoryview) -> None:
        """Keeps the bytes in memory, in copies of the blocks that they touch."""
        self.size = max(self.size, offset + len(data))
        while data:
            number, at = divmod(offset, BLOCK_BYTES)
            block = self.blocks.get(number)
            if block is None:
                below = self._below(number * BLOCK_BYTES, BLOCK_BYTES)
                block = self.blocks[number] = bytearray(below)
            size = min(BLOCK_BYTES - at, len(data))
            block[at : at + size] = data[:size]
            data = data[size:]
            offset += size

    def _below(self, offset: int, length: int) -> bytes:
        """What was there before anything was written; zeros where the file has grown."""
        wanted = max(0, min(length, self.real_bytes - offset))
        if self.real is None or not wanted:
            return bytes(length)
        try:
            with self.real.open("rb", buffering=0) as file:
                return os.pread(file.fileno(), wanted, offset).ljust(length, b"\0")
        except OSError as error:
            raise DiskError(f"cannot read {self.real.name}: {error.strerror or error}") from error


class OverlayDisk:
    """A Disk over a real directory that it never changes. DiskError if it cannot be read.

    The set of files is that of the moment when it was made.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._files: dict[str, _File] = {}
        try:
            for entry in os.scandir(self.path):
                if entry.is_file() and entry.name != LOCK_NAME:
                    size = entry.stat().st_size
                    self._files[entry.name] = _File(Path(entry.path), size, size)
        except OSError as error:
            raise DiskError(f"cannot list {self.path}: {error.strerror or error}") from error

    def names(self) -> list[str]:
        """The names of all files."""
        return list(self._files)

    def size(self, name: str) -> int:
        """The size of a file in bytes."""
        return self._file(name).size

    def create(self, name: str, size: int = 0, recycle: str | None = None) -> None:
        """A file of zeros that takes no memory, or `recycle` under another name."""
        if name in self._files:
            raise DiskError(f"{name} exists already")
        if recycle is None:
            self._files[name] = _File(None, 0, size)
        else:
            self.rename(recycle, name)
            self._files[name].size = max(self._files[name].size, size)

    def write(self, name: str, offset: int, parts: Sequence[Buffer]) -> None:
        """Keeps all parts in memory."""
        self._file(name).write(offset, memoryview(b"".join(parts)))

    def sync(self, name: str) -> None:
        """Nothing is ever durable here."""
        self._file(name)

    def write_synced(self, name: str, offset: int, parts: Sequence[Buffer]) -> None:
        """Keeps all parts in memory."""
        self.write(name, offset, parts)
        self.sync(name)

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Bytes as if all that was written were in the file."""
        return self._file(name).read(offset, length)

    def read_now(self, name: str, offset: int, length: int) -> bytes | None:
        """It cannot be known whether the real file would have to be waited for."""
        return None

    def let_go(self, name: str) -> bool:
        """What is read is always a copy."""
        return True

    def delete(self, name: str) -> None:
        """The file is not seen any more; the real one stays."""
        self._file(name)
        del self._files[name]

    def rename(self, old: str, new: str) -> None:
        """The file is seen under another name; the real one keeps its own."""
        self._file(old)
        self._files[new] = self._files.pop(old)

    def sync_names(self) -> None:
        """Nothing is ever durable here."""

    def free_bytes(self) -> int:
        """Memory is not counted; what is written to look at a directory is little."""
        return 1 << 40

    def _file(self, name: str) -> _File:
        try:
            return self._files[name]
        except KeyError:
            raise DiskError(f"no file {name}") from None


@contextmanager
def hold_shared(path: str | os.PathLike[str]) -> Iterator[None]:
    """Keeps nodes from opening a data directory while others look at it too.

    InUseError if a node has it open. A directory without a lock file was never opened, or copied.
    """
    try:
        fd = os.open(Path(path, LOCK_NAME), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield
        return
    except OSError as error:
        raise DiskError(f"cannot open {LOCK_NAME}: {error.strerror or error}") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise InUseError(f"{path} is open in another process") from None
    try:
        yield
    finally:
        os.close(fd)
