"""The part of a table that one shard holds: entries with versions, time-to-live, sessions."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

from penstock.errors import ConflictError

SPARE_EXPIRIES = 1000  # of entries that are gone: so many are not worth a look
ENTRY_OVERHEAD = 160  # bytes of memory for an entry beside its key and value, roughly


@dataclass(slots=True)
class Cell:
    """A value with its version (the log number that wrote it)."""

    value: bytes
    version: int
    expires_us: int = 0
    session: int = 0
    mark: int = 0  # what its writer says to messages that wait for it


class TableShard:
    """The state machine of one table in one shard."""

    def __init__(self, stream: int) -> None:
        self.stream = stream
        self.cells: dict[bytes, Cell] = {}
        self.bytes = 0
        self.changed = 0  # log number of the last change
        self._sessions: dict[int, set[bytes]] = {}
        self._expiry: list[tuple[int, bytes]] = []
        self._sorted: list[bytes] | None = []

    def get(self, key: bytes, now_us: int) -> Cell | None:
        """The entry, unless it has expired."""
        cell = self.cells.get(key)
        if cell is None or (cell.expires_us and cell.expires_us <= now_us):
            return None
        return cell

    def check(self, key: bytes, if_version: int | None, now_us: int) -> None:
        """ConflictError unless the entry has that version; 0 stands for: there is none."""
        if if_version is None:
            return
        cell = self.get(key, now_us)
        version = 0 if cell is None else cell.version
        if version != if_version:
            raise ConflictError(f"the entry is at version {version}, not {if_version}")

    # --- fold ------------------------------------------------------------------------------

    def put(self, key: bytes, cell: Cell) -> None:
        """Writes an entry."""
        self._forget(key)
        self.cells[key] = cell
        self.bytes += len(key) + len(cell.value) + ENTRY_OVERHEAD
        if cell.session:
            self._sessions.setdefault(cell.session, set()).add(key)
        if cell.expires_us:
            heappush(self._expiry, (cell.expires_us, key))
            if len(self._expiry) > 2 * len(self.cells) + SPARE_EXPIRIES:
                self._forget_expiries()

    def _forget_expiries(self) -> None:
        """Leaves out those of entries that were written anew: they might be years ahead."""
        ends = ((cell.expires_us, key) for key, cell in self.cells.items() if cell.expires_us)
        self._expiry = sorted(ends)  # sorted is a heap, too

    def remove(self, key: bytes) -> bool:
        """Deletes an entry; whether it was there."""
        if not self._forget(key):
            return False
        self._sorted = None
        return True

    def _forget(self, key: bytes) -> bool:
        cell = self.cells.pop(key, None)
        if cell is None:
            self._sorted = None
            return False
        self.bytes -= len(key) + len(cell.value) + ENTRY_OVERHEAD
        if cell.session:
            keys = self._sessions[cell.session]
            keys.discard(key)
            if not keys:
                del self._sessions[cell.session]
        return True

    # --- questions -------------------------------------------------------------------------

    def expired(self, now_us: int, limit: int = 1000) -> list[bytes]:
        """Keys whose time is over; they stay until removed."""
        keys: list[bytes] = []
        while self._expiry and self._expiry[0][0] <= now_us and len(keys) < limit:
            expires_us, key = heappop(self._expiry)
            cell = self.cells.get(key)
            if cell is not None and cell.expires_us == expires_us:
                keys.append(key)
        return keys

    def next_due(self) -> int | None:
        """When the next entry may expire."""
        return self._expiry[0][0] if self._expiry else None

    def sessions(self) -> list[int]:
        """Sessions that entries here are bound to."""
        return list(self._sessions)

    def keys_of(self, session: int) -> list[bytes]:
        """Keys that go with a session."""
        return sorted(self._sessions.get(session, ()))

    def scan(self, prefix: bytes, after: bytes | None, limit: int, now_us: int) -> list[bytes]:
        """Keys with a prefix, in order, after a key; without those that have expired."""
        if self._sorted is None or len(self._sorted) != len(self.cells):
            self._sorted = sorted(self.cells)
        keys = self._sorted
        at = bisect_left(keys, prefix)
        if after is not None and after >= prefix:
            at = bisect_left(keys, after + b"\0")
        found: list[bytes] = []
        while at < len(keys) and len(found) < limit and keys[at].startswith(prefix):
            if self.get(keys[at], now_us) is not None:
                found.append(keys[at])
            at += 1
        return found

    # --- snapshot --------------------------------------------------------------------------

    def snapshot(self) -> list[Any]:
        """Plain data for `restore`."""
        return [
            # A mark is left out if there is none: an older release knows of none.
            (k, c.value, c.version, c.expires_us, c.session, *([c.mark] if c.mark else []))
            for k, c in self.cells.items()
        ]

    @classmethod
    def restore(cls, stream: int, rows: list[Any]) -> TableShard:
        """The table that made this snapshot."""
        table = cls(stream)
        for key, *cell in rows:
            table.put(key, Cell(*cell))
        return table
