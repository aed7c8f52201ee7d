"""A thread that does one thing after the other, and reports to the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue

Work = Callable[[], object]
Report = Callable[[BaseException | None], None]


class Worker:
    """Runs work off the loop. The report is called on the loop, with the error or None."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        self._loop = loop
        self._queue: SimpleQueue[tuple[Work, Report] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Work, report: Report) -> None:
        """Work to do after what was submitted before."""
        self._queue.put((work, report))

    def stop(self) -> None:
        """Ends the thread after what was submitted, and waits for it."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            work, report = item
            error: BaseException | None = None
            try:
                work()
            except Exception as caught:  # reported to the loop, which decides
                error = caught
            self._loop.call_soon_threadsafe(report, error)
