"""A thread that does one thing after the other, and reports to the event loop."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue

Work = Callable[[], object]
Then = Callable[[], None]
Report = Callable[[BaseException | None], None]


log = logging.getLogger("penstock.node")


class Worker:
    """Runs work off the loop. The report is called on the loop, with the error or None; if it is to
    be called before something else, `catch_up` does that."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        self._loop = loop
        self._queue: SimpleQueue[tuple[Work, Report, Then | None] | None] = SimpleQueue()
        self._done: deque[tuple[Report, BaseException | None]] = deque()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Work, report: Report, then: Then | None = None) -> None:
        """Work to do after what was submitted before. `then` is called after it, off the loop as
        well, unless it failed; the report may be called before."""
        self._queue.put((work, report, then))

    def catch_up(self) -> None:
        """Reports what has been done; on the loop."""
        while self._done:
            report, error = self._done.popleft()
            report(error)

    def stop(self) -> None:
        """Ends the thread after what was submitted, and waits for it."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            work, report, then = item
            error: BaseException | None = None
            try:
                work()
            except Exception as caught:  # reported to the loop, which decides
                error = caught
            self.finished(report, error, then)

    def finished(self, report: Report, error: BaseException | None, then: Then | None) -> None:
        """Work was done off the loop, here or elsewhere: follows from it what has to."""
        self._done.append((report, error))
        if then is not None and error is None:
            try:
                then()
            except Exception:
                log.exception("what follows work off the loop has failed")
        self._loop.call_soon_threadsafe(self.catch_up)
