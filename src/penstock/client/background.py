"""The one thread of a blocking fabric: it flushes acks that wait, and has sessions kept alive.

It starts when there is something to do and ends when there was nothing for a second. It waits for
no answer itself: whenever a session is to be kept alive, another thread asks for that, and ends.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import Protocol

from penstock.client.connection import Connection
from penstock.client.settle import Settler, settlers_of
from penstock.errors import ClosedError, PenstockError

log = logging.getLogger("penstock.client")

_TICK_S = 0.025  # acks are flushed when they were there at two ticks: after 25 to 50 ms
_IDLE_TICKS = 40


class Kept(Protocol):
    """A session that must be kept alive."""

    def keep_due(self, now: float) -> bool:
        """Whether it is time."""

    def keep(self) -> None:
        """Does it."""


def _keeper(session: Kept) -> threading.Thread:
    return threading.Thread(target=_keep, args=(session,), name="penstock-session", daemon=True)


def _keep(session: Kept) -> None:
    try:
        with contextlib.suppress(PenstockError):  # it says so itself
            session.keep()
    except Exception:
        log.exception("a session could not be kept alive; that is tried again")


class Background:
    """Thread safe. After `close`, nothing is attended any more."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._settlers: set[Settler] = set()
        self._aged: set[Settler] = set()
        self._sessions: dict[Kept, threading.Thread | None] = {}  # and who keeps each alive
        self._make_locks()

    def _make_locks(self) -> None:
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def attend(self, settler: Settler) -> None:
        """Flushes this settler's acks from now on, until there are none for a while. Not after
        `close`: then it stays unattended."""
        with self._lock:
            if self._stop.is_set():
                return
            settler.attended = True
            self._settlers.add(settler)
            self._ensure_thread()

    def add_session(self, session: Kept) -> None:
        """Keeps a session alive."""
        with self._lock:
            self._sessions[session] = None
            self._ensure_thread()

    def remove_session(self, session: Kept) -> None:
        """Stops keeping it alive."""
        with self._lock:
            self._sessions.pop(session, None)

    def close(self) -> list[Settler]:
        """Ends the thread; settlers with something unsent or unanswered are left to the caller."""
        with self._lock:
            self._stop.set()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        settlers = list(self._settlers)
        for settler in settlers:
            settler.attended = False  # whoever adds an ack from now on hears that it is too late
        return [settler for settler in settlers if settler.busy]

    def forked(self, reason: ClosedError) -> None:
        """This is another process: the thread is not here, and may have held locks. Nothing is
        attended any more, and whoever settles something hears the reason."""
        self._make_locks()
        self._stop.set()
        self._settlers.clear()
        self._sessions.clear()
        for settler in settlers_of(self.attend):
            settler.forked(reason)

    def _ensure_thread(self) -> None:
        if self._thread is None and not self._stop.is_set():
            self._thread = threading.Thread(target=self._loop, name="penstock", daemon=True)
            self._thread.start()

    def _loop(self) -> None:
        idle = 0
        while not self._stop.wait(_TICK_S):
            try:
                busy = self._flush_aged()
                self._keep_sessions()
                with contextlib.suppress(PenstockError):  # told to whoever waits for an answer
                    self._connection.poll()
            except Exception:  # of a callback, perhaps: acks and sessions need this thread
                log.exception("what is done in the background has failed, and goes on")
                busy = True
            idle = 0 if busy else idle + 1
            if idle >= _IDLE_TICKS and self._retire():
                return

    def _flush_aged(self) -> bool:
        waiting = {settler for settler in list(self._settlers) if settler.waiting}
        for settler in waiting & self._aged:
            settler.flush_unheard()
        self._aged = waiting - self._aged
        return bool(waiting)

    def _keep_sessions(self) -> None:
        now = time.monotonic()
        with self._lock:
            for session, keeper in self._sessions.items():
                unanswered = keeper is not None and keeper.is_alive()
                if not unanswered and session.keep_due(now):
                    self._sessions[session] = keeper = _keeper(session)
                    keeper.start()

    def _retire(self) -> bool:
        with self._lock:
            for settler in list(self._settlers):
                settler.attended = False
                if settler.busy:  # perhaps an ack came in between, and relied on us
                    settler.attended = True
                else:
                    self._settlers.discard(settler)
            if self._settlers or self._sessions:
                return False
            self._thread = None
            return True
