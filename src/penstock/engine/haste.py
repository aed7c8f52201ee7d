"""A push of which the disk, and perhaps all who wait, get what they get before the core does.

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
    """One such push, from when it is written until its flush is there. Whoever has made it keeps it
    before anything is written: should all else fail, its flush is not there, or another one."""

    def __init__(self, foreseen: Foreseen, disk: Disk) -> None:
        self.foreseen = foreseen
        self._disk = disk
        self.error: DiskError | None = None  # why it is not written
        self.sent: list[Reply] = []
        """In the order in which they left, if that did not have to wait for a sync."""

    def write(self) -> None:
        """To the system."""
        foreseen = self.foreseen
        try:
            self._disk.write(foreseen.name, foreseen.offset, (foreseen.records,))
        except DiskError as error:
            self.error = error

    def send(self, send: Send) -> None:
        """What is written is sent, unless it waits for a sync."""
        if self.error is not None or self.foreseen.synced:
            return
        for reply in self.foreseen.replies:
            if not send(*reply):
                return
            self.sent.append(reply)

    def end(self, flush: Flush) -> DiskError | None:
        """Call it instead of running the flush; what running it would have raised."""
        name, location, records, _, _ = self.foreseen
        if not self.foreseen.is_what(flush):
            kinds = [(entry.shard, entry.kind, entry.number) for entry in flush.entries]
            places = [(piece.name, piece.offset, piece.end) for piece in flush.pieces]
            raise UnforeseenError(
                f"{len(records)} bytes were written for a push at {location} in {name}, and logged "
                f"was {kinds} at {places}"
            )
        for entry in flush.entries:
            entry.answered = entry.reply in self.sent
        return self.error
