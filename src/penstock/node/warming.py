"""Memory for new files, from a second processor.

What is written goes to pages of the system's memory first. On a machine that gets its memory from a
host page by page, a page that nobody has used for a while costs ten times what it takes to fill it;
whoever writes many of them waits for nothing else, while other processors are idle. So where that
is seen, a thread reads the later part of each new file, which needs no device, as nothing is there
yet: by the time the writer comes there, it has its pages.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from queue import Empty, Full, Queue

from penstock.machine import cores

OWN_BYTES = 24 << 20  # of a file: so far the writer gets its pages itself, and shows what they cost
SLOW_NS = 1.0  # for each byte: at least three times what it takes to copy one, and to note it
_SLICE_BYTES = 256 << 10
_MOST_WAITING = 1  # files, beside the one that is read: more of them come too late

_File = tuple[int, int]  # descriptor and size


class Warmer:
    """Of one directory; from any thread. Nothing depends on it: it does what it can."""

    def __init__(self) -> None:
        self._slow = False
        self._waiting: Queue[_File | None] = Queue(_MOST_WAITING)
        self._thread: threading.Thread | None = None
        self._stopped = cores() < 2

    def wrote(self, end: int, size: int, taken_ns: int) -> None:
        """So many bytes were written to a file, up to this offset, and it took so long."""
        if end <= OWN_BYTES:
            self._slow = taken_ns > size * SLOW_NS

    def made(self, fd: int, size: int) -> None:
        """A new file of this size is written next, from its beginning. Nobody is held up; the
        descriptor stays the caller's."""
        if not self._slow or size <= OWN_BYTES or self._stopped:
            return
        with suppress(OSError, RuntimeError):  # there are too many files, or threads
            own = os.dup(fd)
            try:
                self._waiting.put_nowait((own, size))
            except Full:
                os.close(own)
                return
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="penstock-warmer", daemon=True)
                thread.start()
                self._thread = thread

    def stop(self) -> None:
        """Ends the thread, which is at a slice at most, and waits for it."""
        self._stopped = True
        with suppress(Empty):
            while (file := self._waiting.get_nowait()) is not None:
                os.close(file[0])
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join()

    def _run(self) -> None:
        scratch = memoryview(bytearray(_SLICE_BYTES))
        while (file := self._waiting.get()) is not None:
            fd, size = file
            try:
                for offset in range(OWN_BYTES, size, _SLICE_BYTES):
                    if self._stopped or not os.preadv(fd, (scratch,), offset):
                        break
            except OSError:
                continue
            finally:
                os.close(fd)
