"""Segments that are ready before they are needed.

A recycled segment has blocks that were written before and pages in the cache; a new one has
neither, and on a machine that takes its memory from a host page by page it is written at a third of
the speed. So a node that has filled a segment makes some ahead, a slice at a time, while nobody
else needs the disk.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import suppress
from typing import TYPE_CHECKING

from penstock.store.disk import DiskError
from penstock.store.locations import SPARE, file_name

if TYPE_CHECKING:
    from penstock.engine.engine import Engine
    from penstock.engine.maintenance import Work

SLICE_BYTES = 1 << 20  # whoever comes meanwhile waits for one at most
QUIET_US = 50_000  # nothing may have been appended for so long
ROOM = 16  # times what is made must be free
NEVER_US = 1 << 62

_ZEROS = bytes(SLICE_BYTES)


class Preparing:
    """Makes spare segments, `most` at a time; each slice is a piece of maintenance of its own."""

    def __init__(self, engine: Engine, most: int) -> None:
        self._engine = engine
        self._most = most
        self._appended = -1  # when it was looked at last
        self._refused = -1  # the same when the disk refused
        self._name = ""  # of the one that is under way
        self._offset = 0
        self.made = 0
        self.due_us = NEVER_US

    def look(self, now_us: int) -> None:
        """Something was written: there may be a reason to begin."""
        if self.due_us == NEVER_US and self._is_wanted():
            self.due_us = now_us + QUIET_US

    def round(self, now_us: int) -> Generator[Work, None, None]:
        """The next slice, unless others are at work. A disk that refuses is left alone until
        something else was written."""
        journal = self._engine.journal
        if not self._is_wanted():
            self.due_us = NEVER_US
            return
        others = journal.busy or self._engine.reading
        if journal.appended_bytes != self._appended or others:
            self._appended, self.due_us = journal.appended_bytes, now_us + QUIET_US
            return
        if not self._name:
            self._name, self._offset = file_name(SPARE, self._engine.files.allocate()), 0
        done: list[bool] = []
        yield lambda: done.append(self._write())
        if not done[0]:
            self._name, self._refused = "", self._appended
        elif self._offset >= journal.segment_bytes:
            journal.add_spare(self._name)
            self._name = ""
            self.made += 1
        self.due_us = now_us if self._is_wanted() else NEVER_US

    def _is_wanted(self) -> bool:
        journal = self._engine.journal
        appended = journal.appended_bytes
        busy = appended >= journal.segment_bytes and appended != self._refused
        return busy and journal.spares + self._engine.maintenance.dead_segments < self._most

    def _write(self) -> bool:
        """Off the loop; whether it worked."""
        disk, size = self._engine.disk, self._engine.journal.segment_bytes
        try:
            if not self._offset:
                if disk.free_bytes() < ROOM * self._most * size:
                    return False
                disk.create(self._name, size)
            length = min(SLICE_BYTES, size - self._offset)
            disk.write_synced(self._name, self._offset, (memoryview(_ZEROS)[:length],))
            self._offset += length
        except DiskError:
            with suppress(DiskError):
                disk.delete(self._name)
            return False
        return True
