"""Reading a file without copying it: views of the pages that the system has of it in memory.

What is sent from there is copied once, into the socket, and needs no memory of the node's own. Only
files of which the pages are in memory are read like this, so nobody waits for the device. If a page
is dropped in that very moment, it is read again; if the device fails at that, too, the system ends
the process (SIGBUS), as it would for a part of a program that it cannot read: all that was
acknowledged is safe. Of what a client is slow to take, pages that were dropped since are read again
when it does; if the device fails then, its connection is closed.
"""

from __future__ import annotations

import mmap
import os
import sys
import threading
from collections import OrderedDict, deque
from collections.abc import Callable

import numpy as np

from penstock.wire.buffers import Buffer

LEAST_BYTES = 64 << 10  # less is copied sooner than it is looked up
MAX_MAPPED = 4  # files, unless more are in use
MAX_HELD = 16  # with those, and with deleted ones that are in use: all further reads are copies
MAX_GONE = 64  # names that are remembered; no store uses one again
_PAGE = mmap.PAGESIZE

InMemory = Callable[[int, int], bool]  # an address at the beginning of a page, and so many pages


def _find() -> InMemory | None:
    if sys.platform != "linux":
        return None
    try:
        import ctypes

        call = ctypes.CDLL(None).mincore
    except (ImportError, AttributeError, OSError):
        return None
    call.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    call.restype = ctypes.c_int

    def in_memory(address: int, pages: int) -> bool:
        found = ctypes.create_string_buffer(pages)
        return not call(address, pages * _PAGE, found) and found.raw.count(b"\1") == pages

    return in_memory


_in_memory = _find()


class _Mapping:
    """All of a file as it was when it was mapped."""

    __slots__ = ("_address", "_map", "size")

    def __init__(self, fd: int) -> None:
        """OSError or ValueError if the system cannot."""
        self.size = os.fstat(fd).st_size
        self._map = mmap.mmap(fd, self.size, prot=mmap.PROT_READ)
        self._address: int = np.frombuffer(self._map, np.uint8).ctypes.data

    def view(self, offset: int, length: int) -> memoryview | None:
        """This part of it, if all of that is in memory."""
        first = offset // _PAGE
        pages = (offset + length - 1) // _PAGE + 1 - first
        if _in_memory is None or not _in_memory(self._address + first * _PAGE, pages):
            return None
        return memoryview(self._map)[offset : offset + length]

    def close(self) -> bool:
        """Ends it, unless views of it are in use; whether it did."""
        try:
            self._map.close()
        except BufferError:
            return False
        return True


class Mappings:
    """Those of the files in one directory, by name; from any thread.

    A view stays valid as long as somebody has it, also if its file is deleted. What it shows is
    what the file holds: `let_go` says whether the file may be written anew. A deleted file that is
    in use takes up room on the disk: there are at most MAX_HELD mappings, and no views beyond.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._mapped: OrderedDict[str, _Mapping] = OrderedDict()  # the one used last at the end
        self._deleted: list[_Mapping] = []  # and still in use, when it was looked at last
        self._gone: deque[str] = deque(maxlen=MAX_GONE)

    def view(self, name: str, fd: int, offset: int, length: int) -> Buffer | None:
        """A part of a file, if it is in memory, and the system can do this."""
        if _in_memory is None or length < LEAST_BYTES:
            return None
        with self._lock:
            mapping = self._find(name, fd, offset + length)
            return None if mapping is None else mapping.view(offset, length)

    def let_go(self, name: str) -> bool:
        """Unmaps a file, unless views of it are in use; whether there are none. If so there will be
        none: whoever has just opened it gets copies."""
        with self._lock:
            mapping = self._mapped.get(name)
            if mapping is not None and not mapping.close():
                return False
            self._mapped.pop(name, None)
            self._gone.append(name)
            return True

    def forget(self, name: str) -> None:
        """The file is not known by this name any more, and nobody writes to it. Not on the event
        loop: deleted files that are out of use by now are given back to the system here, which
        takes its time, and nobody may have to wait for that."""
        with self._lock:
            mapping = self._mapped.pop(name, None)
            self._gone.append(name)
            if mapping is not None:
                self._deleted.append(mapping)
            deleted = list(self._deleted)
        closed = {id(each) for each in deleted if each.close()}
        with self._lock:
            self._deleted = [each for each in self._deleted if id(each) not in closed]

    def known_as(self, name: str) -> None:
        """A file has this name from now on, and may be read by it."""
        with self._lock:
            while name in self._gone:
                self._gone.remove(name)

    def clear(self) -> None:
        """Forgets all of them; views that are in use stay."""
        with self._lock:
            self._mapped.clear()
            self._deleted.clear()

    def _find(self, name: str, fd: int, end: int) -> _Mapping | None:
        mapping = self._mapped.get(name)
        if mapping is not None:
            self._mapped.move_to_end(name)
            if end <= mapping.size:
                return mapping
            if not mapping.close():  # it has grown, and part of it is in use
                return None
            del self._mapped[name]
        self._make_room()
        if len(self._mapped) + len(self._deleted) >= MAX_HELD or name in self._gone:
            return None
        try:
            mapping = self._mapped[name] = _Mapping(fd)
        except (OSError, ValueError):
            return None
        return mapping if end <= mapping.size else None

    def _make_room(self) -> None:
        """For one more. Those that are in use stay: that they are must not be forgotten."""
        for name in list(self._mapped)[: max(0, len(self._mapped) + 1 - MAX_MAPPED)]:
            if self._mapped[name].close():
                del self._mapped[name]
