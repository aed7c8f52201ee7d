"""Finding the batches of records: among those just written, or on the disk."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

from penstock.engine.cache import RecentPayloads
from penstock.errors import DamagedError, PenstockError
from penstock.store.disk import Disk, DiskError
from penstock.store.files import Files
from penstock.store.journal import Journal
from penstock.store.locations import OFFSET_BITS, split
from penstock.store.record import payload_of
from penstock.wire.batch import HEADER_BYTES, MAGIC, Batch, checksum_of
from penstock.wire.buffers import Buffer
from penstock.wire.entry import RECORD_HEADER_BYTES, payload_location

CACHE_BYTES = 16 << 20
TOGETHER_BYTES = 1 << 20  # so much is read at once
GAP_BYTES = 4096  # between two records: reading it costs less than another read

Found = Buffer | PenstockError  # the bytes of a stored batch, or why they cannot be had
_NOTHING: Mapping[int, Found] = MappingProxyType({})

Place = tuple[int, int, int]  # where a record is, its length, and the base of its batch

_SIZES = struct.Struct("<II")  # of the meta and the payload, in the header of a record
_SIZES_AT = 40
_BATCH = struct.Struct("<4sIQ16xQ")  # magic, length, base and checksum of a batch


class BatchReader:
    """Reads batches by the location of their records. Those next to each other are read at once."""

    def __init__(self, disk: Disk, files: Files, journal: Journal) -> None:
        self._disk = disk
        self._files = files
        self._journal = journal
        self.recent = RecentPayloads(CACHE_BYTES)

    def now(self, places: Sequence[Place]) -> list[Found] | None:
        """The batches, if that needs no waiting; None otherwise."""
        found = self.known(places)
        missing = [place for place in places if place[0] not in found]
        for group in _together(sorted(missing)):
            if not self._read(group, self._disk.read_now, found):
                return None
        return [found[place[0]] for place in places]

    def known(self, places: Sequence[Place]) -> dict[int, Found]:
        """Those of the batches, by location, that are in memory."""
        found: dict[int, Found] = {}
        for location, _, _ in places:
            payload = self.recent.get(location) or self._journal.unwritten(location)
            if payload is not None:
                found[location] = payload
        return found

    def wait(self, places: Sequence[Place], known: Mapping[int, Found] = _NOTHING) -> list[Found]:
        """The batches, however long it takes. For other threads than the loop's.

        `known` are taken as they are: what is kept in memory only may not be on the disk yet.
        """
        found = dict(known)
        missing = [place for place in places if place[0] not in found]
        for group in _together(sorted(missing)):
            self._read(group, self._disk.read, found)
        return [found[place[0]] for place in places]

    def _read(
        self,
        group: list[Place],
        read: Callable[[str, int, int], Buffer | None],
        found: dict[int, Found],
    ) -> bool:
        """Reads records that lie together; False if that would have to wait."""
        start = group[0][0]
        size = group[-1][0] + group[-1][1] - start
        try:
            data = read(self._files.name_of(start), split(start)[1], size)
        except (DiskError, KeyError) as error:
            if len(group) > 1:  # each has its own fate
                return all(self._read([place], read, found) for place in group)
            found[start] = DamagedError(f"a stored batch cannot be read: {error}")
            return True
        if data is None:
            return False
        view = memoryview(data)
        for location, length, base in group:
            at = location - start
            found[location] = _checked(view[at : at + length], base)
        return True


def _together(places: Sequence[Place]) -> Iterator[list[Place]]:
    """Groups of records that lie close to each other. The places must be in ascending order."""
    group: list[Place] = []
    start = end = 0
    for place in places:
        location, length, _ = place
        near = end <= location <= end + GAP_BYTES and location + length - start <= TOGETHER_BYTES
        if not (near and group and location >> OFFSET_BITS == start >> OFFSET_BITS):
            if group:
                yield group
            group, start = [], location
        group.append(place)
        end = location + length
    if group:
        yield group


def _checked(record: memoryview, base: int) -> Found:
    """The batch in a record, if its checksum holds and it is the one that should be there."""
    if len(record) >= RECORD_HEADER_BYTES:
        meta_bytes, payload_bytes = _SIZES.unpack_from(record, _SIZES_AT)
        start = payload_location(0, meta_bytes)
        payload = record[start : start + payload_bytes]
        if len(payload) >= HEADER_BYTES:
            magic, length, found, checksum = _BATCH.unpack_from(payload)
            same = magic == MAGIC and length == len(payload) and found == base
            if same and checksum_of(payload) == checksum:  # whatever else there is to the record
                return payload
    return _explained(record, base)


def _explained(record: memoryview, base: int) -> PenstockError:
    """What is wrong with the batch in a record."""
    try:
        batch = Batch.parse(payload_of(record))
    except PenstockError as error:
        return DamagedError(f"a stored batch is damaged: {error.message}")
    held = "its place" if batch.header.base != base else "its record"
    return DamagedError(f"a stored batch is damaged: {held} does not hold")
