"""Syncs that begin at once, while the loop goes on.

A thread of Python that is woken waits until the loop gives the interpreter's lock away, which it
does when it has worked off what it is at. The compiled `_syncing` waits and syncs without it. Where
it is not there, or for a disk that is no folder, there is none of this.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from contextlib import suppress

from penstock.node.files import FileDisk, Handle, disk_error
from penstock.node.worker import Report, Then, Worker
from penstock.store.disk import Disk
from penstock.wire.packing import PURE

COMPILED = False  # whether there is such a thread
if not PURE and sys.platform == "linux":
    with suppress(ImportError):
        from penstock.node import _syncing

        COMPILED = True


Job = tuple[FileDisk, Handle, str, Report, Then]


def may_begin(disk: Disk) -> bool:
    """Whether files of a disk can be synced so."""
    return COMPILED and isinstance(disk, FileDisk)


class Syncing:
    """One thread; it reports like the worker that it stands beside, and in its order."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._syncer = _syncing.Syncer()
        self._jobs: deque[Job] = deque()
        self._thread = threading.Thread(target=self._run, name="penstock-sync", daemon=True)
        self._thread.start()

    def begin(self, disk: FileDisk, name: str, report: Report, then: Then) -> None:
        """Syncs a file; the last sync was reported. As `Worker.submit`."""
        handle = disk.begin(name)
        self._jobs.append((disk, handle, name, report, then))
        if not self._syncer.ask(handle.fd):
            raise RuntimeError("a sync is under way, or all is over")

    def stop(self) -> None:
        """Ends the thread."""
        self._syncer.finish()
        self._thread.join()

    def _run(self) -> None:
        while (failed := self._syncer.serve()) is not None:
            disk, handle, name, report, then = self._jobs.popleft()
            disk.end(handle)
            cause = OSError(failed, os.strerror(failed)) if failed else None
            error = None if cause is None else disk_error("sync", name, cause)
            self._worker.finished(report, error, then)
