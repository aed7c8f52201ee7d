"""Reading the journal after a restart: what is torn, what is damaged, and where it ends.

A segment's header says where the journal before it ends, and is written only after everything up
to there was synced. So of all segments only the newest may be torn; a bad region in an older one
is damage, and what an older one holds beyond that end was given up while the node ran.

In the newest segment let S be the highest position that is known to have been synced: from the
`synced` fields of its records, its header and the checkpoint. A bad region below S is damage, and
reading goes on after it. At a bad region above S the journal is cut: what follows was never
promised to survive power loss, and keeping it would leave a gap in the order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from penstock.store.disk import Disk
from penstock.store.locations import JOURNAL, file_name, locate, numbers, split
from penstock.store.record import FILE_HEADER_BYTES, FileHeader
from penstock.store.scan import CHUNK_BYTES, Damage, Record, Tail, scan
from penstock.store.segments import Segment


class Cut(NamedTuple):
    """The journal ends here although more was begun; none of it was known to be synced.

    `discarded_records` counts the whole ones among it.
    """

    file: str
    offset: int
    discarded_records: int


class _Part(NamedTuple):
    """A segment as part of the journal; `end` is None where it has to be found by reading."""

    number: int
    end: int | None

    @property
    def name(self) -> str:
        return file_name(JOURNAL, self.number)


def read_journal(
    disk: Disk,
    names: Sequence[str],
    from_position: int = 0,
    *,
    synced: int = 0,
    directory: int | None = None,
) -> JournalReader:
    """The journal in those of `names` that are journal segments, from a position on.

    `synced` is what the checkpoint knows; with `directory`, files of another one are reported as
    damage and not read. Iterate once over the result, then call its `settle`.
    """
    return JournalReader(disk, names, from_position, synced, directory)


class JournalReader:
    """Iterates over Records and Damages in order, and a Cut at the end if something was torn.

    An entry may come twice, if its first segment failed: the caller skips a log number of a shard
    that it has seen. DiskError passes through.
    """

    def __init__(
        self,
        disk: Disk,
        names: Sequence[str],
        from_position: int,
        synced: int,
        directory: int | None,
    ) -> None:
        self._disk = disk
        self._from = from_position
        self._damages: list[Damage] = []
        self.synced = synced
        """Everything below this position was synced before the restart."""
        self._headers = self._read_headers(names, directory)
        self._parts = self._chain()
        self.synced = max(synced, self._newest_synced())
        self.end = from_position
        """Where the journal ends; known after the iteration."""

    def __iter__(self) -> Iterator[Record | Damage | Cut]:
        yield from self._damages
        for part in self._parts[:-1]:
            yield from self._read_older(part)
        if self._parts:
            yield from self._read_newest(self._parts[-1])

    def segments(self) -> list[Segment]:
        """All segments, oldest first, for the new journal; those that hold nothing have used 0."""
        used = dict.fromkeys(self._headers, 0)
        for part in self._parts:
            used[part.number] = self._disk.size(part.name) if part.end is None else part.end
        if self._parts and self.end >= locate(self._parts[-1].number, 0):
            used[self._parts[-1].number] = split(self.end)[1]
        return [Segment(number, size, True, locate(number, size)) for number, size in used.items()]

    def settle(self) -> None:
        """Make what was read durable, so that a new segment may build on it.

        Bytes above `synced` are written again before the sync: if an earlier sync of them failed,
        the system holds them as clean, and would report success without having them on the disk.
        """
        number, end = split(self.end)
        if self.synced >= self.end or number not in self._headers:
            return
        name = file_name(JOURNAL, number)
        at = split(self.synced)[1] if self.synced > locate(number, 0) else 0
        while at < end:
            data = self._disk.read(name, at, min(CHUNK_BYTES, end - at))
            self._disk.write(name, at, (data,))
            at += len(data)
        self._disk.sync(name)
        self._disk.sync_names()
        self.synced = self.end

    def _read_headers(
        self, names: Sequence[str], directory: int | None
    ) -> dict[int, FileHeader | None]:
        """The headers of all segments by number, ascending; None for one that does not verify."""
        headers: dict[int, FileHeader | None] = {}
        for number in numbers(list(names), JOURNAL):
            name = file_name(JOURNAL, number)
            header = FileHeader.parse(self._disk.read(name, 0, FILE_HEADER_BYTES))
            if header is not None and (header.kind != JOURNAL or header.number != number):
                header = None
            if header is not None and directory not in (None, header.directory):
                size = self._disk.size(name)
                self._damages.append(Damage(name, 0, size, "file of another data directory"))
            else:
                headers[number] = header
        return headers

    def _chain(self) -> list[_Part]:
        """The segments that make up the journal, oldest first."""
        parts: list[_Part] = []
        bound: int | None = None
        for number in reversed(self._headers):
            header = self._headers[number]
            if header is None and not parts and not self._was_synced(number):
                continue
            end = None
            if bound is not None:
                last, offset = split(bound)
                if number > last:
                    continue
                end = offset if number == last else None
            parts.append(_Part(number, end))
            bound = None if header is None else header.follows
            if header is None and locate(number, FILE_HEADER_BYTES) > self._from:
                name = file_name(JOURNAL, number)
                self._damages.append(Damage(name, 0, FILE_HEADER_BYTES, "file header"))
        return parts[::-1]

    def _was_synced(self, number: int) -> bool:
        """Whether a segment without a valid header was synced, so that its header got damaged."""
        first = locate(number, FILE_HEADER_BYTES)
        if self.synced > first:
            return True
        items = scan(self._disk, file_name(JOURNAL, number), verify_payloads=False)
        return any(isinstance(item, Record) and item.synced > first for item in items)

    def _newest_synced(self) -> int:
        """S as far as the newest segment knows it."""
        if not self._parts:
            return 0
        newest = self._parts[-1]
        header = self._headers[newest.number]
        known = 0 if header is None else header.follows
        for item in scan(self._disk, newest.name, verify_payloads=False):
            if isinstance(item, Record) and item.synced > known:
                known = item.synced
        return known

    def _start(self, part: _Part) -> int | None:
        """The offset to read a segment from; None when the checkpoint covers all of it."""
        number, offset = split(self._from)
        if part.number < number:
            return None
        return max(offset, FILE_HEADER_BYTES) if part.number == number else FILE_HEADER_BYTES

    def _read_older(self, part: _Part) -> Iterator[Record | Damage]:
        start = self._start(part)
        if start is None or (part.end is not None and start >= part.end):
            return
        for item in scan(self._disk, part.name, start, end=part.end):
            if not isinstance(item, Tail):
                yield item
            elif part.end is not None and item.offset < part.end:
                yield Damage(part.name, item.offset, part.end - item.offset, "no valid record")

    def _read_newest(self, part: _Part) -> Iterator[Record | Damage | Cut]:
        start = self._start(part)
        if start is None:
            return
        base = locate(part.number, 0)
        promised = max(self.synced - base, start)
        items = scan(self._disk, part.name, start)
        for item in items:
            if isinstance(item, Record):
                yield item
                continue
            if item.offset < promised:
                ends = promised if isinstance(item, Tail) else item.offset + item.length
                length = min(ends, promised) - item.offset
                yield _shortened(item, part.name, length)
                if isinstance(item, Damage) and ends <= promised:
                    continue
            offset = max(item.offset, promised)
            self.end = base + offset
            discarded = sum(isinstance(each, Record) for each in items)
            if isinstance(item, Damage) or (item.torn and item.offset == offset):
                yield Cut(part.name, offset, discarded)
            return


def _shortened(item: Damage | Tail, name: str, length: int) -> Damage:
    if isinstance(item, Damage):
        return item._replace(length=length)
    return Damage(name, item.offset, length, "no valid record")
