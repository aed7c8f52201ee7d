"""Which data files there are, how much of each is live, and which are worth cleaning."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from penstock.store.locations import (
    FILE_NUMBER_MAX,
    JOURNAL,
    OFFSET_BITS,
    SHARD,
    file_name,
    numbers,
)
from penstock.store.record import FILE_HEADER_BYTES, NO_SHARD

_DUMP_HEAD = struct.Struct("<II")
_DUMP_FILE = struct.Struct("<IIQQBB2xI")


@dataclass(slots=True)
class DataFile:
    """A journal or shard segment: `used` is where its records end, `live` how much is wanted."""

    number: int
    kind: str
    shard: int = NO_SHARD
    used: int = 0
    live: int = 0
    sealed: bool = False

    @property
    def name(self) -> str:
        """Its name on the disk."""
        return file_name(self.kind, self.number)

    @property
    def records(self) -> int:
        """Bytes of records. The file's header is not one: a small file could never be clean."""
        return max(0, self.used - FILE_HEADER_BYTES)

    @property
    def dead(self) -> int:
        """Bytes of records that nobody wants."""
        return self.records - self.live


class Limits(NamedTuple):
    """When a file is worth cleaning."""

    keep_journal: int = 16
    """Sealed journal segments that may stay, however live they are."""
    dead_percent: int = 50
    """A file is cleaned when at least this part of it is dead."""
    dead_bytes: int = 256 << 20
    """So much may be dead, in all files that are partly live, before one of them is cleaned. Most
    of what is in a queue dies soon: who waits a little has nothing to copy."""


class Files:
    """All data files of a directory. Lives in the thread of the event loop.

    Live bytes are counted in whole records: the owner of a batch calls `stored` with the length of
    its record once, and `freed` with parts of that length as its rows die. Counting payloads only
    would make a file of small records look half dead for ever, and have it cleaned without end.
    """

    def __init__(self, next_number: int = 1) -> None:
        self._files: dict[int, DataFile] = {}
        self._next = next_number
        self.live_bytes = 0

    def __contains__(self, number: int) -> bool:
        return number in self._files

    def __getitem__(self, number: int) -> DataFile:
        return self._files[number]

    def get(self, number: int) -> DataFile | None:
        """The file of this number, or None."""
        return self._files.get(number)

    def __len__(self) -> int:
        return len(self._files)

    def all(self) -> list[DataFile]:
        """Every known file, oldest first."""
        return sorted(self._files.values(), key=lambda file: file.number)

    @property
    def used_bytes(self) -> int:
        """Bytes used in all files."""
        return sum(file.used for file in self._files.values())

    @property
    def next_number(self) -> int:
        """The number that the next file gets, unless another is reserved before."""
        return self._next

    def allocate(self) -> int:
        """A file number that was never used before; OverflowError when there are no more."""
        number = self._next
        if number > FILE_NUMBER_MAX:
            raise OverflowError("no file numbers are left in this data directory")
        self._next = number + 1
        return number

    def reserve(self, names: Iterable[str]) -> None:
        """Never allocate a number that one of these files on the disk carries already."""
        found = list(names)
        for kind in {name[:1] for name in found}:
            self._next = max([self._next, *(number + 1 for number in numbers(found, kind))])

    def add(self, file: DataFile) -> None:
        """A file exists from now on."""
        self._files[file.number] = file

    def drop(self, number: int) -> None:
        """A file is gone, with what it held."""
        file = self._files.pop(number, None)
        if file is not None:
            self.live_bytes -= file.live

    def name_of(self, location: int) -> str:
        """The name of the file that a location lies in; KeyError when it was dropped."""
        return self._files[location >> OFFSET_BITS].name

    def stored(self, location: int, length: int) -> None:
        """`length` bytes at `location` are live; KeyError when the file is not known."""
        self._files[location >> OFFSET_BITS].live += length
        self.live_bytes += length

    def freed(self, location: int, length: int) -> None:
        """`length` bytes at `location` died. Clamped at what is live; a dropped file is ignored.

        Parts of a batch are rounded by the caller, so their sum may pass the whole by a little.
        """
        file = self._files.get(location >> OFFSET_BITS)
        if file is not None:
            length = min(length, file.live)
            file.live -= length
            self.live_bytes -= length

    def freed_all(self, places: list[tuple[int, int]]) -> None:
        """The same for many: locations and lengths. Most lie in one file."""
        sizes: dict[int, int] = {}
        for location, length in places:
            number = location >> OFFSET_BITS
            sizes[number] = sizes.get(number, 0) + length
        for number, length in sizes.items():
            self.freed(number << OFFSET_BITS, length)

    def victims(self, limits: Limits = Limits()) -> list[int]:  # noqa: B008
        """Numbers of the files to clean, most dead first; see the function `victims`."""
        return victims(self._files.values(), limits)

    def orphans(self, names: Iterable[str]) -> list[str]:
        """Shard segments on the disk that are not known: copies that no checkpoint refers to.

        A crash between cleaning and its checkpoint leaves them; the originals still exist.
        """
        found = list(names)
        orphaned = (number for number in numbers(found, SHARD) if number not in self._files)
        return [file_name(SHARD, number) for number in orphaned]

    def dump(self) -> bytes:
        """The table for a checkpoint."""
        parts = [_DUMP_HEAD.pack(self._next, len(self._files))]
        parts += [
            _DUMP_FILE.pack(
                file.number, file.shard, file.used, file.live, ord(file.kind), file.sealed, 0
            )
            for file in self.all()
        ]
        return b"".join(parts)

    @classmethod
    def load(cls, data: bytes) -> Files:
        """The table that `dump` wrote."""
        next_number, count = _DUMP_HEAD.unpack_from(data)
        files = cls(next_number)
        for index in range(count):
            at = _DUMP_HEAD.size + index * _DUMP_FILE.size
            number, shard, used, live, kind, sealed, _ = _DUMP_FILE.unpack_from(data, at)
            files.add(DataFile(number, chr(kind), shard, used, live, bool(sealed)))
            files.live_bytes += live
        return files


def victims(files: Iterable[DataFile], limits: Limits) -> list[int]:
    """Numbers of the files to clean, in order: most dead first, then the overdue by age.

    - A sealed journal segment, and any shard segment, is worth cleaning when `dead_percent` of it
      is dead, and all such files together hold more than `dead_bytes` that nobody wants. An open
      shard segment counts too: there may be one for each shard, and together they would hold more
      than a constant. One without any live byte needs no copying: it is always chosen.
    - Of the sealed journal segments the oldest beyond `keep_journal` are cleaned however live they
      are, so that the journal stays short and replay of a shard becomes sequential.

    A number in the list says nothing about when the file may go: a journal segment is needed until
    a durable checkpoint covers it, and a cleaned file until one covers its moves.
    What is not chosen is less than `dead_percent` dead, or the open journal segment; hence at the
    default used <= 2 x live + `dead_bytes` + one segment and the headers once the list is worked
    off.
    """
    candidates = [file for file in files if file.sealed or (file.kind == SHARD and file.used)]
    dead = [file for file in candidates if _is_dead(file, limits.dead_percent)]
    if sum(file.dead for file in dead if file.live) <= limits.dead_bytes:
        dead = [file for file in dead if not file.live]
    dead.sort(key=lambda file: (file.live / max(1, file.records), -file.used, file.number))
    chosen = {file.number for file in dead}
    journal = sorted(
        file.number for file in candidates if file.kind == JOURNAL and file.number not in chosen
    )
    overdue = journal[: max(0, len(journal) - limits.keep_journal)]
    return [file.number for file in dead] + overdue


def _is_dead(file: DataFile, percent: int) -> bool:
    return file.live == 0 or file.dead * 100 >= file.records * percent
