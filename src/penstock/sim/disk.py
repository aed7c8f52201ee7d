"""A disk that loses power, tears writes, fills up and fails.

What is durable is kept apart from what is only written. A process that dies loses nothing that was
written; a power loss keeps of every unsynced write all, nothing or torn parts, and of the unsynced
changes of names any first part. What was synced always survives.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.sim.world import World
from penstock.store.disk import DiskError
from penstock.wire.buffers import Buffer

SECTOR_BYTES = 512


class Died(BaseException):
    """The process or the machine stops in the middle of a disk call. No error of the disk."""


class Inode:
    """The content of a file: as programs see it, as it is durable, and what lies between."""

    __slots__ = ("data", "durable", "writes")

    def __init__(self, size: int) -> None:
        self.data = bytearray(size)
        self.durable = bytearray(size)
        self.writes: list[tuple[int, bytes]] = []


class SimDisk:
    """A `store.disk.Disk` in memory with the failures of a real one.

    `full_until_us` and `failing_until_us` are times of trouble; in the latter every call that
    changes something fails with `failure_rate`. `die_in` counts such calls down and then raises
    Died in the middle of one; `die_writing` does so in the next write of at least so many bytes.
    """

    def __init__(self, world: World, slow_reads: float = 0.2) -> None:
        self.world = world
        self.slow_reads = slow_reads
        self.inodes: dict[str, Inode] = {}
        self.full_until_us = 0
        self.failing_until_us = 0
        self.failure_rate = 0.5
        self.die_in: int | None = None
        self.die_writing: int | None = None
        self.failures = 0
        self._name_states: list[dict[str, Inode]] = [{}]

    # --- Disk ------------------------------------------------------------------------------

    def names(self) -> list[str]:
        return list(self.inodes)

    def size(self, name: str) -> int:
        return len(self._inode(name).data)

    def create(self, name: str, size: int = 0, recycle: str | None = None) -> None:
        self._trouble(f"create {name}", room=True)
        if name in self.inodes:
            raise DiskError(f"{name} exists already")
        if recycle is None:
            self.inodes[name] = Inode(size)
        else:
            inode = self._inode(recycle)
            del self.inodes[recycle]
            self.inodes[name] = inode
            for image in (inode.data, inode.durable):
                image.extend(bytes(max(0, size - len(image))))
        self._names_changed()

    def write(self, name: str, offset: int, parts: Sequence[Buffer]) -> None:
        inode = self._inode(name)
        data = b"".join(parts)
        if self.die_writing is not None and len(data) >= self.die_writing:
            self.die_in = 1
        try:
            self._trouble(f"write {name}", room=True)
        except (DiskError, Died):
            self._put(inode, offset, data[: self.world.between(0, len(data))])
            raise
        self._put(inode, offset, data)

    def sync(self, name: str) -> None:
        inode = self._inode(name)
        try:
            self._trouble(f"sync {name}")
        except DiskError:
            # As Linux does it: what was not saved counts as clean, and no later sync saves it.
            self._keep_some(inode)
            raise
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
        inode = self._inode(name)
        if self.world.chance(self.slow_reads):
            return None
        return bytes(inode.data[offset : offset + length])

    def let_go(self, name: str) -> bool:
        return True

    def delete(self, name: str) -> None:
        self._trouble(f"delete {name}")
        self._inode(name)
        del self.inodes[name]
        self._names_changed()

    def rename(self, old: str, new: str) -> None:
        self._trouble(f"rename {old}")
        inode = self._inode(old)
        del self.inodes[old]
        self.inodes[new] = inode
        self._names_changed()

    def sync_names(self) -> None:
        self._trouble("sync names")
        self._name_states = [dict(self.inodes)]

    def free_bytes(self) -> int:
        return 0 if self.world.now_us < self.full_until_us else 1 << 40

    # --- faults ----------------------------------------------------------------------------

    def lose_power(self) -> None:
        """Everything that was not synced is at the mercy of chance."""
        self.inodes = dict(self.world.random.choice(self._name_states))
        self._name_states = [dict(self.inodes)]
        for name in sorted(self.inodes):
            inode = self.inodes[name]
            self._keep_some(inode)
            inode.data = bytearray(inode.durable)

    def live_on(self) -> None:
        """Whatever was to die in a disk call does not."""
        self.die_in = self.die_writing = None

    def flip(self, name: str, offset: int) -> None:
        """One bit of a file changes, on the disk and in the cache."""
        inode, bit = self._inode(name), 1 << self.world.between(0, 7)
        for image in (inode.data, inode.durable):
            if offset < len(image):
                image[offset] ^= bit

    def _trouble(self, action: str, room: bool = False) -> None:
        if self.die_in is not None:
            self.die_in -= 1
            if self.die_in <= 0:
                self.live_on()
                raise Died(action)
        now_us = self.world.now_us
        if room and now_us < self.full_until_us:
            self.failures += 1
            raise DiskError(f"no room: {action}", full=True)
        if now_us < self.failing_until_us and self.world.chance(self.failure_rate):
            self.failures += 1
            raise DiskError(f"input/output error: {action}")

    def _put(self, inode: Inode, offset: int, data: bytes) -> None:
        if data:
            _overlay(inode.data, offset, data)
            inode.writes.append((offset, data))

    def _keep_some(self, inode: Inode) -> None:
        chance = self.world.random
        for offset, data in inode.writes:
            fate = chance.random()
            if fate < 0.3:
                _overlay(inode.durable, offset, data)
            elif fate < 0.45:
                _overlay(inode.durable, offset, data[: chance.randint(0, len(data))])
            elif fate < 0.6:
                start, end = sorted(chance.randint(0, len(data)) for _ in range(2))
                _overlay(inode.durable, offset + start, data[start:end])
            elif fate < 0.75:
                self._keep_sectors(inode, offset, data)
        inode.writes = []

    def _keep_sectors(self, inode: Inode, offset: int, data: bytes) -> None:
        at = 0
        while at < len(data):
            sector_end = ((offset + at) // SECTOR_BYTES + 1) * SECTOR_BYTES
            end = min(len(data), sector_end - offset)
            if self.world.chance(0.5):
                _overlay(inode.durable, offset + at, data[at:end])
            at = end

    def _names_changed(self) -> None:
        self._name_states.append(dict(self.inodes))

    def _inode(self, name: str) -> Inode:
        try:
            return self.inodes[name]
        except KeyError:
            raise DiskError(f"no file {name}") from None


def _overlay(image: bytearray, offset: int, data: bytes) -> None:
    if offset > len(image):
        image.extend(bytes(offset - len(image)))
    image[offset : offset + len(data)] = data
