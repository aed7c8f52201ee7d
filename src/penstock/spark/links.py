"""Connections of Spark's Python processes: opened when first used, kept for the next task."""

from __future__ import annotations

import atexit
import os
import threading
from typing import NamedTuple

from penstock.client.blocking import Fabric, connect
from penstock.client.blocking_streams import Queue, Topic

MOST_LINKS = 4  # of one process; the one that was opened first is closed for another


class Link(NamedTuple):
    """Where a topic or queue is. Plain values: it travels to the workers, connections do not."""

    url: str
    namespace: str
    name: str
    timeout: float

    def fabric(self) -> Fabric:
        """A connection of this process."""
        return _fabric(self.url, self.namespace, self.timeout)

    def open(self) -> Topic:
        """The topic as it is now; NotFoundError."""
        return self.fabric().topic(self.name, create=False)

    def open_queue(self) -> Queue:
        """The queue; NotFoundError."""
        return self.fabric().queue(self.name, create=False)


def close_all() -> None:
    """Ends the connections of this process."""
    with _lock:
        while os.getpid() == _owner and _open:
            _open.popitem()[1].close()


atexit.register(close_all)
_open: dict[tuple[str, str, float], Fabric] = {}
_owner = os.getpid()
_lock = threading.Lock()


def _fabric(url: str, namespace: str, timeout: float) -> Fabric:
    global _owner
    with _lock:
        if os.getpid() != _owner:  # forked: the connections are the parent's
            _open.clear()
            _owner = os.getpid()
        key = url, namespace, timeout
        if key not in _open:
            while len(_open) >= MOST_LINKS:
                _open.pop(next(iter(_open))).close()
            _open[key] = connect(url, timeout, namespace, name="spark")
        return _open[key]
