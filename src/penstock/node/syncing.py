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
        self.busy = False  # a sync was not reported yet
        self._worker = worker
        self._syncer = _syncing.Syncer()
        self._jobs: deque[Job] = deque()
        self._thread = threading.Thread(target=self._run, name="penstock-sync", daemon=True)
        self._thread.start()

    def begin(self, disk: FileDisk, name: str, report: Report, then: Then) -> None:
        """Syncs a file. As `Worker.submit`, but only if it is not `busy`."""

        def reported(error: BaseException | None) -> None:
            self.busy = False
            report(error)

        handle = disk.begin(name)
        self._jobs.append((disk, handle, name, reported, then))
        self.busy = True
        if not self._syncer.ask(handle.fd):
            raise RuntimeError("a sync is under way, or all is over")

    def stop(self) -> None:
        """Ends the thread."""
        self._syncer.finish()
        self._thread.join()

    def _run(self) -> None:
        while (failed := self._syncer.serve()) is not None:
            disk, handle, name, report, then = self._jobs.popleft()
            error: BaseException | None = None
            if failed:
                error = disk_error("sync", name, OSError(failed, os.strerror(failed)))
            try:
                disk.end(handle)
            except OSError as caught:  # of a file that was to be closed: nothing is known of it
                error = error or disk_error("close", name, caught)
            self._worker.finished(report, error, then)
