"""Blocking fabrics that are open when the process forks, or ends.

A forked process has the sockets of its parent, and its producers: what both push would carry the
same sequences, and one of two messages would be taken for a resend of the other. So the fabrics of
the parent are closed in it. And what a program leaves unsent when it ends is sent first: an ack, or
a task, that nobody waits for.
"""

from __future__ import annotations

import atexit
import logging
import os
from typing import Protocol
from weakref import WeakSet

from penstock.errors import ClosedError, PenstockError

EXIT_SECONDS = 5.0  # for one answer: a program must end although its node does not answer

log = logging.getLogger("penstock.client")


class Open(Protocol):
    """What is to be left in order."""

    def _forked(self, reason: ClosedError) -> None:
        """This is another process than the one that it was opened in: nothing of it may be used.
        Locks may be held by threads that are not here."""

    def _hurry(self, seconds: float) -> None:
        """Waits no longer than this for an answer from now on."""

    def close(self) -> None:
        """Sends what is unsent, and ends."""


_open: WeakSet[Open] = WeakSet()


def remember(fabric: Open) -> None:
    """It is open from now on."""
    _open.add(fabric)


def forget(fabric: Open) -> None:
    """It is closed."""
    _open.discard(fabric)


def _left_behind() -> None:
    reason = ClosedError(
        "this fabric was opened before the process was forked",
        advice="Open it, or connect, after the fork: in each process that uses it.",
    )
    for fabric in list(_open):
        fabric._forked(reason)
    _open.clear()


def _end() -> None:
    for fabric in list(_open):
        try:
            fabric._hurry(EXIT_SECONDS)
            fabric.close()
        except (PenstockError, OSError, RuntimeError) as error:
            log.warning("the program ends, and acks or tasks may be unsent: %s", error)


atexit.register(_end)
if hasattr(os, "register_at_fork"):  # not where there is no fork
    os.register_at_fork(after_in_child=_left_behind)
