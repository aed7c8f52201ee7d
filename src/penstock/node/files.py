"""The real disk: one directory of files."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

from penstock.errors import InUseError
from penstock.node.mapping import Mappings
from penstock.node.warming import Warmer
from penstock.node.writeback import begin_writing
from penstock.store.disk import DiskError
from penstock.wire.buffers import Buffer
from penstock.wire.packing import unfilled

MAX_OPEN_FILES = 64
_MAX_PARTS = min(1024, os.sysconf("SC_IOV_MAX"))
WRITE_BYTES = 256 << 10
"""Written by one call. From 1 MiB on, Linux takes the pages of a file in blocks of that size, which
are seldom at hand: new files are then written at a sixth of the speed."""
AHEAD_BYTES = 1 << 20  # so much is there before the disk begins with it
LOCK_NAME = "LOCK"
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_WOULD_BLOCK = frozenset({errno.EAGAIN, errno.EWOULDBLOCK})
_READ_NOW = getattr(os, "RWF_NOWAIT", 0)
_SYNCED = getattr(os, "RWF_DSYNC", 0)
_sync_data = getattr(os, "fdatasync", os.fsync)


class Handle:
    """An open file; closed when it was dropped and nobody uses it any more."""

    __slots__ = ("dropped", "fd", "users")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.users = 0
        self.dropped = False


class FileDisk:
    """A Disk on a directory, which is made if missing and held by one process at a time.

    InUseError if another process has it open. File descriptors are kept, at most MAX_OPEN_FILES of
    those that nobody uses at the moment. Close it to let the directory go.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._mutex = threading.Lock()
        self._handles: OrderedDict[str, Handle] = OrderedDict()
        self._mappings = Mappings()
        self._warmer = Warmer()
        self._can_read_now = bool(_READ_NOW)
        self._can_write_synced = bool(_SYNCED)
        with _disk_errors("open", str(self.path)):
            self.path.mkdir(parents=True, exist_ok=True)
            self._directory = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                self._lock = self._take_lock()
            except BaseException:
                os.close(self._directory)
                raise

    def close(self) -> None:
        """Close all files and let the directory go; no call may be running."""
        self._warmer.stop()
        with self._mutex:
            handles = list(self._handles.values())
            self._handles.clear()
        self._mappings.clear()
        for handle in handles:
            os.close(handle.fd)
        os.close(self._lock)
        os.close(self._directory)

    def names(self) -> list[str]:
        """The names of all files, in no particular order."""
        with _disk_errors("list", str(self.path)):
            return [name for name in os.listdir(self._directory) if name != LOCK_NAME]

    def size(self, name: str) -> int:
        """The size of a file in bytes, preallocated space included."""
        with _disk_errors("stat", name):
            return os.stat(name, dir_fd=self._directory).st_size

    def create(self, name: str, size: int = 0, recycle: str | None = None) -> None:
        """Make a file of `size` bytes, from `recycle` if given; see Disk.create."""
        with _disk_errors("create", name):
            if recycle is not None:
                self._require_absent(name)
                self._rename(recycle, name)
            flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if recycle is None else 0)
            fd = os.open(name, flags, 0o640, dir_fd=self._directory)
            try:
                if size > os.fstat(fd).st_size:
                    os.posix_fallocate(fd, 0, size)
                    if recycle is None:
                        self._warmer.made(fd, size)
            except OSError:
                os.close(fd)
                if recycle is None:
                    with suppress(OSError):
                        os.unlink(name, dir_fd=self._directory)
                raise
            with self._mutex:
                self._keep(name, Handle(fd))

    def write(self, name: str, offset: int, parts: Sequence[Buffer]) -> None:
        """Write all parts from `offset`; durable only after `sync`. With what is large the disk
        begins at once, so that a sync has less to wait for."""
        size = sum(map(len, parts))
        if size > WRITE_BYTES or len(parts) > _MAX_PARTS:
            with _Use(self, "write", name) as fd:
                self._write_much(fd, offset, parts, size)
            return
        try:  # the same in fewer steps: this is on the way of every single message
            handle = self.begin(name)
            try:
                done = os.pwritev(handle.fd, parts, offset)
                if done < size:
                    _write_rest(handle.fd, parts, offset, done, 0)
            finally:
                self.end(handle)
        except OSError as error:
            raise disk_error("write", name, error) from error

    def write_synced(self, name: str, offset: int, parts: Sequence[Buffer]) -> None:
        """Write all parts, which are durable when it returns; see Disk.write_synced.

        One call for what is small, where the system can: between two of them this thread would
        wait for the others. Of what is large the disk writes the beginning while the rest comes.
        """
        with _Use(self, "write", name) as fd:
            size = sum(map(len, parts))
            if size > WRITE_BYTES:
                self._write_much(fd, offset, parts, size)
                _sync_data(fd)
                return
            if self._can_write_synced:
                try:
                    _write(fd, offset, parts, _SYNCED)
                    return
                except OSError as error:
                    if error.errno != errno.EOPNOTSUPP:
                        raise
                    self._can_write_synced = False
            _write(fd, offset, parts)
            _sync_data(fd)

    def _write_much(self, fd: int, offset: int, parts: Sequence[Buffer], size: int) -> None:
        began_ns = time.perf_counter_ns()
        _write(fd, offset, parts, ahead=True)
        self._warmer.wrote(offset + size, size, time.perf_counter_ns() - began_ns)

    def sync(self, name: str) -> None:
        """Make everything written to the file durable."""
        with _Use(self, "sync", name) as fd:
            _sync_data(fd)

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Read up to `length` bytes; fewer only at the end of the file. May block."""
        with _Use(self, "read", name) as fd:
            data = os.pread(fd, length, offset)
            while 0 < len(data) < length:
                more = os.pread(fd, length - len(data), offset + len(data))
                if not more:
                    break
                data += more
            return data

    def read_now(self, name: str, offset: int, length: int) -> Buffer | None:
        """Like `read`, but None when it would have to wait, or when that cannot be known. What is
        large is not copied; see Disk.let_go."""
        if not self._can_read_now:
            return None
        with _Use(self, "read", name) as fd:
            if (view := self._mappings.view(name, fd, offset, length)) is not None:
                return view
            buffer = unfilled(length)
            try:
                done = os.preadv(fd, (buffer,), offset, _READ_NOW)
            except OSError as error:
                if error.errno == errno.EOPNOTSUPP:
                    self._can_read_now = False
                elif error.errno not in _WOULD_BLOCK:
                    raise
                return None
        return buffer if done == length else None

    def let_go(self, name: str) -> bool:
        """Whether nobody has a part of the file any more; see Disk.let_go."""
        return self._mappings.let_go(name)

    def delete(self, name: str) -> None:
        """Remove a file; durable only after `sync_names`."""
        with _disk_errors("delete", name):
            os.unlink(name, dir_fd=self._directory)
            self._forget(name)  # not if it fails: whoever has parts of it still has

    def rename(self, old: str, new: str) -> None:
        """Give a file another name, replacing a file of that name; durable after `sync_names`."""
        with _disk_errors("rename", old):
            self._rename(old, new)

    def sync_names(self) -> None:
        """Make all creations, deletions and renamings durable."""
        with _disk_errors("sync", str(self.path)):
            os.fsync(self._directory)

    def free_bytes(self) -> int:
        """Room left for new data."""
        with _disk_errors("stat", str(self.path)):
            stats = os.fstatvfs(self._directory)
            return stats.f_bavail * stats.f_frsize

    def _take_lock(self) -> int:
        fd = os.open(
            LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640, dir_fd=self._directory
        )
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            if error.errno in _WOULD_BLOCK:
                raise InUseError(f"{self.path} is open in another process") from None
            raise
        return fd

    def begin(self, name: str) -> Handle:
        """An open file, which is not closed until `end`."""
        with self._mutex:
            handle = self._handles.get(name)
            if handle is None:
                fd = os.open(name, os.O_RDWR | os.O_CLOEXEC, dir_fd=self._directory)
                handle = self._keep(name, Handle(fd))
            else:
                self._handles.move_to_end(name)
            handle.users += 1
            return handle

    def end(self, handle: Handle) -> None:
        """A file is not used any more."""
        with self._mutex:
            handle.users -= 1
            if handle.dropped and not handle.users:
                os.close(handle.fd)

    def _keep(self, name: str, handle: Handle) -> Handle:
        """Remember an open file, dropping the one that was not used for longest."""
        self._handles[name] = handle
        if len(self._handles) > MAX_OPEN_FILES:
            _, oldest = self._handles.popitem(last=False)
            _drop(oldest)
        return handle

    def _forget(self, name: str) -> None:
        self._mappings.forget(name)
        with self._mutex:
            handle = self._handles.pop(name, None)
            if handle is not None:
                _drop(handle)

    def _require_absent(self, name: str) -> None:
        try:
            os.stat(name, dir_fd=self._directory)
        except FileNotFoundError:
            return
        raise FileExistsError(errno.EEXIST, "exists already", name)

    def _rename(self, old: str, new: str) -> None:
        self._forget(old)
        self._forget(new)
        os.rename(old, new, src_dir_fd=self._directory, dst_dir_fd=self._directory)
        self._mappings.known_as(new)


class _Use:
    """The descriptor of a file, which is not closed in the block; its errors are those of the disk.
    A class, as this is on the way of every small write: a generator takes several times as long.
    """

    __slots__ = ("_action", "_disk", "_handle", "_name")

    def __init__(self, disk: FileDisk, action: str, name: str) -> None:
        self._disk = disk
        self._action = action
        self._name = name

    def __enter__(self) -> int:
        try:
            self._handle = self._disk.begin(self._name)
        except OSError as error:
            raise disk_error(self._action, self._name, error) from error
        return self._handle.fd

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._disk.end(self._handle)
        if isinstance(error, OSError):
            raise disk_error(self._action, self._name, error) from error


def _drop(handle: Handle) -> None:
    handle.dropped = True
    if not handle.users:
        os.close(handle.fd)


def _write(
    fd: int, offset: int, parts: Sequence[Buffer], flags: int = 0, ahead: bool = False
) -> None:
    """With `ahead` the disk begins before all is there."""
    begun = offset
    for some, size in _portions(parts):
        done = _pwritev(fd, some, offset, flags)
        if done < size:
            _write_rest(fd, some, offset, done, flags)
        offset += size
        if ahead and offset - begun >= AHEAD_BYTES:
            begin_writing(fd, begun, offset - begun)
            begun = offset


def _portions(parts: Sequence[Buffer]) -> Iterator[tuple[Sequence[Buffer], int]]:
    """What is written call by call, and the bytes of it: no more than WRITE_BYTES, of no more parts
    than a call takes."""
    size = sum(map(len, parts))
    if size <= WRITE_BYTES and len(parts) <= _MAX_PARTS:
        yield parts, size
        return
    portion: list[Buffer] = []
    size = 0
    for part in parts:
        if size + len(part) < WRITE_BYTES and len(portion) < _MAX_PARTS - 1:  # most are small
            portion.append(part)
            size += len(part)
            continue
        rest = memoryview(part)
        while len(rest):
            piece = rest[: WRITE_BYTES - size]
            portion.append(piece)
            size += len(piece)
            rest = rest[len(piece) :]
            if size == WRITE_BYTES or len(portion) == _MAX_PARTS:
                yield portion, size
                portion, size = [], 0
    if portion:
        yield portion, size


def _pwritev(fd: int, parts: Sequence[Buffer], offset: int, flags: int) -> int:
    """Flags are named only if there are some: not every system knows any."""
    return os.pwritev(fd, parts, offset, flags) if flags else os.pwritev(fd, parts, offset)


def _write_rest(fd: int, parts: Sequence[Buffer], offset: int, done: int, flags: int) -> None:
    """Go on after a short write; the rest is joined, because this is rare."""
    rest = memoryview(b"".join(parts))[done:]
    offset += done
    while rest:
        written = _pwritev(fd, (rest,), offset, flags)
        if not written:
            raise OSError(errno.EIO, "a write made no progress")
        rest = rest[written:]
        offset += written


@contextmanager
def _disk_errors(action: str, name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise disk_error(action, name, error) from error


def disk_error(action: str, name: str, error: OSError) -> DiskError:
    """What a disk raises where the system said that."""
    text = f"cannot {action} {name}: {error.strerror or error}"
    return DiskError(text, full=error.errno in _FULL)
