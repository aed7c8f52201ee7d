"""A disk that loses power and fails, and the helpers that several tests share."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from penstock.store.disk import DiskError
from penstock.wire.buffers import Buffer
from penstock.wire.encode import encode_batch


class Inode:
    def __init__(self, size: int) -> None:
        self.data = bytearray(size)
        self.durable = bytearray(size)
        self.writes: list[tuple[int, bytes]] = []


class CrashDisk:
    """Keeps what is durable apart from what is only written.

    Losing power keeps any subset of the writes since the last sync, each torn at any byte, and any
    prefix of the changes of names since they were last synced. A failed sync keeps some writes and
    forgets the others for ever, as Linux does: a later sync will not bring them to the disk.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.inodes: dict[str, Inode] = {}
        self.name_states: list[dict[str, Inode]] = [{}]
        self.failing: set[str] = set()
        self.patience = 0.4
        self.writes_left: int | None = None

    def names(self) -> list[str]:
        return list(self.inodes)

    def size(self, name: str) -> int:
        return len(self._inode(name).data)

    def create(self, name: str, size: int = 0, recycle: str | None = None) -> None:
        if self._fails("create"):
            raise DiskError("create failed")
        if name in self.inodes:
            raise DiskError(f"{name} exists")
        if recycle is not None:
            self.inodes[name] = self.inodes.pop(recycle)
            assert len(self.inodes[name].data) >= size
        else:
            self.inodes[name] = Inode(size)
        self._names_changed()

    def write(self, name: str, offset: int, parts: Sequence[Buffer]) -> None:
        data = b"".join(parts)
        if self._fails("write") or self.writes_left == 0:
            self._put(self._inode(name), offset, data[: self.random.randint(0, len(data))])
            raise DiskError("write failed")
        if self.writes_left is not None:
            self.writes_left -= 1
        self._put(self._inode(name), offset, data)

    def sync(self, name: str) -> None:
        inode = self._inode(name)
        if self._fails("sync"):
            self._keep_some(inode)
            inode.writes = []
            raise DiskError("sync failed")
        for offset, data in inode.writes:
            _overlay(inode.durable, offset, data)
        inode.writes = []

    def write_synced(self, name: str, offset: int, parts: Sequence[Buffer]) -> None:
        inode = self._inode(name)
        earlier, inode.writes = inode.writes, []
        try:
            self.write(name, offset, parts)
            self.sync(name)
        finally:
            inode.writes[:0] = earlier  # which it does not make durable

    def read(self, name: str, offset: int, length: int) -> bytes:
        return bytes(self._inode(name).data[offset : offset + length])

    def read_now(self, name: str, offset: int, length: int) -> bytes | None:
        return self.read(name, offset, length)

    def let_go(self, name: str) -> bool:
        return True

    def delete(self, name: str) -> None:
        self._inode(name)
        del self.inodes[name]
        self._names_changed()

    def rename(self, old: str, new: str) -> None:
        self.inodes[new] = self.inodes.pop(old)
        self._names_changed()

    def sync_names(self) -> None:
        self.name_states = [dict(self.inodes)]

    def free_bytes(self) -> int:
        return 1 << 40

    def lose_power(self) -> None:
        self.inodes = dict(self.random.choice(self.name_states))
        self.name_states = [dict(self.inodes)]
        self.failing = set()
        for inode in set(self.inodes.values()):
            self._keep_some(inode)
            inode.writes = []
            inode.data = bytearray(inode.durable)

    def flip(self, name: str, offset: int) -> None:
        """Damage one bit, on the disk and in the cache."""
        inode = self._inode(name)
        for image in (inode.data, inode.durable):
            if offset < len(image):
                image[offset] ^= 1 << self.random.randint(0, 7)

    def _keep_some(self, inode: Inode) -> None:
        for offset, data in inode.writes:
            fate = self.random.random()
            if fate < 0.4:
                _overlay(inode.durable, offset, data)
            elif fate < 0.7:
                start, end = sorted(self.random.randint(0, len(data)) for _ in range(2))
                _overlay(inode.durable, offset + start, data[start:end])

    def _put(self, inode: Inode, offset: int, data: bytes) -> None:
        _overlay(inode.data, offset, data)
        inode.writes.append((offset, data))

    def _fails(self, action: str) -> bool:
        """Whether an armed failure strikes now; it may also wait for a later call."""
        if action not in self.failing or self.random.random() < self.patience:
            return False
        self.failing.discard(action)
        return True

    def _names_changed(self) -> None:
        self.name_states.append(dict(self.inodes))

    def _inode(self, name: str) -> Inode:
        try:
            return self.inodes[name]
        except KeyError:
            raise DiskError(f"no file {name}") from None


def _overlay(image: bytearray, offset: int, data: bytes) -> None:
    if offset > len(image):
        image += bytes(offset - len(image))
    image[offset : offset + len(data)] = data


def make_batch(size: int, fill: int = 0, rows: int = 1) -> bytes:
    values = [bytes([(fill + row) & 255]) * size for row in range(rows)]
    return bytes(encode_batch(values, timestamp_us=fill))


@pytest.fixture(scope="session")
def crash_disk() -> type[CrashDisk]:
    return CrashDisk


@pytest.fixture(scope="session")
def batch_of():
    return make_batch
