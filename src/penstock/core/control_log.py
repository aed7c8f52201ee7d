"""The log of what concerns a whole node: definitions of streams, and sessions."""

from __future__ import annotations

from typing import Any

from penstock.core.control import Control
from penstock.core.kernel import Kernel
from penstock.core.records import Defined, Deleted, SessionBegun, SessionEnded, read_note
from penstock.core.shard import Replayed
from penstock.core.tables import Tables


class ControlLog:
    """Folds its records, and takes and loads snapshots of what they say."""

    def __init__(self, kernel: Kernel, control: Control, tables: Tables) -> None:
        self._shard = kernel.control
        self._control = control
        self._tables = tables

    def replay(self, record: Replayed) -> None:
        """Folds one record, in order; one that a snapshot has already changes nothing."""
        if record.number <= self._shard.last:
            return
        self._shard.last = record.number
        note = read_note(record.meta)
        if isinstance(note, Defined):
            self._control.defined(note.info)
        elif isinstance(note, Deleted):
            self._control.deleted(note.stream)
        elif isinstance(note, SessionBegun):
            self._tables.began(note.session, note.ttl_us)
        elif isinstance(note, SessionEnded):
            self._tables.sessions.pop(note.session, None)

    def snapshot(self) -> dict[str, Any]:
        """Definitions and sessions."""
        sessions = [(number, s.ttl_us) for number, s in self._tables.sessions.items()]
        return {
            **self._control.snapshot(),
            "number": self._shard.last,
            "sessions": sessions,
            "last_session": self._tables.last_session,
        }

    def load(self, data: dict[str, Any]) -> None:
        """The reverse; before any shard is loaded, and taken after all of them."""
        self._control.load(data)
        self._shard.last = data["number"]
        for number, ttl_us in data["sessions"]:
            self._tables.began(number, ttl_us)
        self._tables.last_session = data["last_session"]
