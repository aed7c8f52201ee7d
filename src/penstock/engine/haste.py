"""A push of which the disk, and all who wait, get what they get before the core works on it.

See `engine.foresight`. What the core makes of it then is compared with that, to the byte: a node
that finds a difference ends. What is on its disk then is a log like any other.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.engine.foresight import Foreseen, Reply
from penstock.store.disk import Disk, DiskError
from penstock.store.flush import Flush

Send = Callable[[int, bytes], bool]  # to a connection, at once; whether it did


class UnforeseenError(Exception):
    """The core has made something else of a push than what was written and sent for it."""


class Hasty:
    """One such push, from when it is written until its flush is there."""

    def __init__(self, foreseen: Foreseen, disk: Disk, send: Send) -> None:
        """Writes, and sends if that has worked."""
        self._foreseen = foreseen
        self._error: DiskError | None = None
        self.sent: list[Reply] = []
        """In the order in which they left."""
        try:
            disk.write(foreseen.name, foreseen.offset, (foreseen.records,))
        except DiskError as error:
            self._error = error
            return
        for reply in foreseen.replies:
            if not send(*reply):
                return
            self.sent.append(reply)

    def end(self, flush: Flush) -> DiskError | None:
        """Call it instead of running the flush; what running it would have raised."""
        if not self._foreseen.is_what(flush):
            raise UnforeseenError(f"written for a push: {self._foreseen}; but logged: {flush}")
        for entry in flush.entries:
            entry.answered = entry.reply in self.sent
        return self._error
