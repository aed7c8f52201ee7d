"""What the journal has written and not synced."""

from __future__ import annotations

from bisect import bisect_left

from penstock.store.disk import Disk
from penstock.store.flush import Flush, Sync
from penstock.wire.durability import Durability
from penstock.wire.entry import Entry

OVER_AT_ONCE = 64
_SYNCED = Durability.SYNCED


class Unsynced:
    """Entries in the order in which they were written, and who of them waits for a sync."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.bytes = 0
        self.since_us: int | None = None
        self.awaited = False
        """Some wait for a sync, and none that runs is for them."""
        self.patient_us: int | None = None
        """Since when some wait for it who are patient, and none that runs is for them."""
        self.waiting: list[Entry] = []
        """Those that are not committed before they are synced. A list of its own: there may be ten
        thousand entries that nobody waits for."""
        self._waiting_in: set[int] = set()  # their shards
        self._over: list[Entry] = []  # synced, and let go a few at a time: all at once takes long

    def let_go(self) -> None:
        """A few of those that are synced; call it all along."""
        del self._over[-OVER_AT_ONCE:]

    def add(self, flush: Flush, entries: list[Entry]) -> list[Entry]:
        """A flush was written, and these of its entries were not committed before; those that are
        by that. One whose shard waits for a sync waits for the next: entries of a shard are
        committed in their order."""
        self.entries += flush.entries
        self.bytes += flush.bytes
        if self.since_us is None:
            self.since_us = flush.started_us
        if flush.level < _SYNCED and not self._waiting_in:
            return entries
        waiting_in, committed = self._waiting_in, []
        for entry in entries:
            if entry.level >= _SYNCED or entry.shard in waiting_in:
                entry.level = max(entry.level, _SYNCED)
                self.waiting.append(entry)
                waiting_in.add(entry.shard)
                if not entry.patient:
                    self.awaited = True
                elif self.patient_us is None:
                    self.patient_us = flush.started_us
            else:
                committed.append(entry)
        return committed

    def next_sync(self, disk: Disk, end: int, now_us: int) -> Sync:
        """A sync of everything, which ends at this position."""
        self.awaited, self.patient_us = False, None
        return Sync(disk, end, len(self.entries), self.bytes, now_us)

    def synced(self, sync: Sync) -> list[Entry]:
        """A sync was run; what is committed by that. More may have been written meanwhile."""
        self._over, self.entries = self.entries[: sync.entries], self.entries[sync.entries :]
        self.bytes -= sync.bytes
        self.since_us = sync.started_us if self.entries else None
        over = bisect_left(self.waiting, sync.end, key=lambda entry: entry.location)
        committed, self.waiting = self.waiting[:over], self.waiting[over:]
        self._waiting_in = {entry.shard for entry in self.waiting}
        return committed

    def clear(self) -> None:
        """All of it is synced, or put off to be written again."""
        self.entries = []
        self.bytes = 0
        self.since_us = self.patient_us = None
        self.awaited = False
        self.waiting = []
        self._waiting_in = set()
