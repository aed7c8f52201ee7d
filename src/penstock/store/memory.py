"""A disk that lives in memory: for tests, and for fabrics that need not outlive their process."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.store.disk import DiskError
from penstock.wire.buffers import Buffer

_DEFAULT_CAPACITY = 1 << 40


class MemoryDisk:
    """A Disk of byte arrays. Never blocks; fails only for a wrong name or a full disk."""

    def __init__(self, capacity: int = _DEFAULT_CAPACITY) -> None:
        self.files: dict[str, bytearray] = {}
        self._capacity = capacity

    def names(self) -> list[str]:
        return list(self.files)

    def size(self, name: str) -> int:
        return len(self._file(name))

    def create(self, name: str, size: int = 0, recycle: str | None = None) -> None:
        if name in self.files:
            raise DiskError(f"{name} exists already")
        old = self._file(recycle) if recycle is not None else bytearray()
        grown = max(0, size - len(old))
        self._need(grown)
        if recycle is None:
            self.files[name] = bytearray(size)
            return
        old += bytes(grown)
        self.files[name] = self.files.pop(recycle)

    def write(self, name: str, offset: int, parts: Sequence[Buffer]) -> None:
        file = self._file(name)
        data = b"".join(parts)
        missing = offset + len(data) - len(file)
        if missing > 0:
            self._need(missing)
            file += bytes(missing)
        file[offset : offset + len(data)] = data

    def sync(self, name: str) -> None:
        self._file(name)

    def write_synced(self, name: str, offset: int, parts: Sequence[Buffer]) -> None:
        self.write(name, offset, parts)
        self.sync(name)

    def read(self, name: str, offset: int, length: int) -> bytes:
        return bytes(memoryview(self._file(name))[offset : offset + length])

    def read_now(self, name: str, offset: int, length: int) -> bytes | None:
        return self.read(name, offset, length)

    def let_go(self, name: str) -> bool:
        return True

    def delete(self, name: str) -> None:
        self._file(name)
        del self.files[name]

    def rename(self, old: str, new: str) -> None:
        self._file(old)
        self.files[new] = self.files.pop(old)

    def sync_names(self) -> None:
        """Names are as durable as they will ever be."""

    def free_bytes(self) -> int:
        return self._capacity - sum(map(len, self.files.values()))

    def _file(self, name: str) -> bytearray:
        try:
            return self.files[name]
        except KeyError:
            raise DiskError(f"no file {name}") from None

    def _need(self, size: int) -> None:
        if size > self.free_bytes():
            raise DiskError(f"no room for {size} bytes", full=True)
