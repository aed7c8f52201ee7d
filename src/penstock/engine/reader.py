"""Finding the batch of a record: among those just written, or on the disk."""

from __future__ import annotations

from penstock.engine.cache import RecentPayloads
from penstock.engine.delivery import Found
from penstock.errors import DamagedError, PenstockError
from penstock.store.disk import Disk, DiskError
from penstock.store.files import Files
from penstock.store.journal import Journal
from penstock.store.locations import split
from penstock.store.record import payload_of
from penstock.wire.batch import Batch
from penstock.wire.buffers import Buffer

CACHE_BYTES = 16 << 20


class BatchReader:
    """Reads batches by the location of their record."""

    def __init__(self, disk: Disk, files: Files, journal: Journal) -> None:
        self._disk = disk
        self._files = files
        self._journal = journal
        self.recent = RecentPayloads(CACHE_BYTES)

    def now(self, location: int, length: int, base: int) -> Found | None:
        """The batch, if that needs no waiting; None otherwise."""
        payload = self.recent.get(location) or self._journal.unwritten(location)
        if payload is not None:
            return Batch.parse(payload, verify=False)
        try:
            name = self._files.name_of(location)
            record = self._disk.read_now(name, split(location)[1], length)
        except (DiskError, KeyError) as error:
            return _unreadable(error)
        return None if record is None else _parse(record, base)

    def wait(self, location: int, length: int, base: int) -> Found:
        """The batch, however long it takes. For other threads than the loop's."""
        try:
            name = self._files.name_of(location)
            record = self._disk.read(name, split(location)[1], length)
        except (DiskError, KeyError) as error:
            return _unreadable(error)
        return _parse(record, base)


def _parse(record: Buffer, base: int) -> Found:
    try:
        batch = Batch.parse(payload_of(record))
    except PenstockError as error:
        return DamagedError(f"a stored batch is damaged: {error.message}")
    if batch.header.base != base:  # the node's own fields are outside the batch's checksum
        return DamagedError("a stored batch is damaged: its place does not hold")
    return batch


def _unreadable(error: Exception) -> PenstockError:
    return DamagedError(f"a stored batch cannot be read: {error}")
