"""Loops that end where nothing may be sent.

The garbage collector ends a loop that nobody holds any more, and the handler of a signal may: in
any thread, at any moment. If that thread is in the middle of a call, it may have sent half of a
frame, or hold a lock, or be the one that reads: what it sent now would be taken for the rest of the
frame, and for an answer it would wait in vain. So another thread takes leave for it.
"""

from __future__ import annotations

import _thread
import logging
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

from penstock.errors import PenstockError

log = logging.getLogger("penstock.client")

# Modules whose functions hold locks or are half-way through something; except these, which call
# what the program has brought, a callback or an iterable, and hold nothing meanwhile.
HARMLESS = {
    "penstock.client.connection": {"run"},
    "penstock.client.blocking_cluster": set(),
    "penstock.client.background": {"_loop", "_flush_aged"},
    "penstock.client.settle": {
        "notify", "flush", "flush_unheard", "due", "add", "flush_settler", "settle", "refused_of",
        "give_back",
    },
    "penstock.embedded": set(),
}  # fmt: skip


def is_amid(frame: FrameType | None) -> bool:
    """Whether this function, or one that called it, is in the middle of a call of a connection.

    Looking for it where loops end costs less than noting it down in every call.
    """
    while frame is not None:
        harmless = HARMLESS.get(frame.f_globals.get("__name__", ""))
        if harmless is not None and frame.f_code.co_name not in harmless:
            return True
        frame = frame.f_back
    return False


class Partings:
    """Ends of loops, each done once. Thread safe."""

    def __init__(self) -> None:
        self._left: deque[Callable[[], None]] = deque()
        self._working = threading.Lock()  # held by whoever works them off

    def do(self, part: Callable[[], None]) -> None:
        """Does it; or has it done in a moment, if this thread is in the middle of a call. Then it
        takes no lock and waits for nothing, and an error is nobody's: leases end by themselves."""
        if not is_amid(sys._getframe(1)):
            part()
            return
        self._left.append(part)
        if self._working.acquire(blocking=False):
            try:
                # Not one of `threading`: to start that takes a lock that we may be in the midst of.
                _thread.start_new_thread(self._work, ())
            except BaseException:  # the program ends, perhaps
                self._working.release()
                raise

    def finish(self, seconds: float) -> None:
        """Waits until all is done that others were to do, for so long at most."""
        if self._working.acquire(timeout=seconds):
            self._work()

    def _work(self) -> None:
        while True:
            try:
                while self._left:
                    _do(self._left.popleft())
            finally:
                self._working.release()
            # What was added just before that has been left to us.
            if not self._left or not self._working.acquire(blocking=False):
                return


def _do(part: Callable[[], None]) -> None:
    try:
        with suppress(PenstockError):
            part()
    except Exception:
        log.exception("a loop could not be left in order; its messages come back with their leases")
