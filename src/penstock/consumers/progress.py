"""What a group commits of one partition, so that another owner comes to the same open objects.

A new owner reads from `offset` (the safe offset) on. Up to `through` it has been read before: what
`ignore` covers belongs to objects that are over and is skipped, the rest is folded again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec
import xxhash

from penstock.consumers.fragments import NEVER_US
from penstock.errors import ProtocolError

VERSION = 1
_NAME_BYTES = 32  # longer keys are named by a hash of this length


class Ignored(NamedTuple):
    """Fragments of a key that objects which are over have used up, or that were late.

    They are those that were read before offset `through` and are not after (`last_us`,
    `last_offset`) by time and offset. An offset alone would not do: fragments of the next object
    of the key may have come before the last ones of this.
    """

    through: int
    last_us: int
    last_offset: int

    def covers(self, time_us: int, offset: int) -> bool:
        """Whether a fragment of the key is among them."""
        return offset < self.through and (time_us, offset) <= (self.last_us, self.last_offset)


class SnapshotRef(NamedTuple):
    """Open objects that are stored somewhere, as they were before `offset` was read."""

    reference: bytes
    offset: int
    high_us: int
    watermark_us: int


class Progress(NamedTuple):
    """Where a partition's consumer stands. `high_us`: the highest time read before `offset`.

    `advances`: (offset, highest time) where the clock moved time on before that offset was read.
    `ended`: names of objects of the snapshot that are over since.
    """

    offset: int
    through: int
    high_us: int = NEVER_US
    ignore: tuple[tuple[bytes, Ignored], ...] = ()
    advances: tuple[tuple[int, int], ...] = ()
    snapshot: SnapshotRef | None = None
    ended: tuple[bytes, ...] = ()

    @classmethod
    def start(cls, offset: int = 0) -> Progress:
        """Nothing has been read; begin here."""
        return cls(offset, offset)

    def encode(self) -> bytes:
        """A compact form: offsets and times are kept as differences, of one to five bytes."""
        safe, base_us = self.offset, max((each.last_us for _, each in self.ignore), default=0)
        ignore = [
            (name, each.through - safe, base_us - each.last_us, each.through - each.last_offset)
            for name, each in self.ignore
        ]
        body = _Body(
            safe,
            self.through - safe,
            self.high_us,
            base_us,
            ignore,
            [(offset - safe, to_us - base_us) for offset, to_us in self.advances],
            self.snapshot,
            list(self.ended),
        )
        return bytes((VERSION,)) + msgspec.msgpack.encode(body)

    @classmethod
    def decode(cls, packed: bytes) -> Progress:
        """What `encode` made; ProtocolError if it is something else, or of a newer version."""
        if packed[:1] != bytes((VERSION,)):
            raise ProtocolError("not a consumer's progress, or of a version that is not known here")
        try:
            body = msgspec.msgpack.decode(memoryview(packed)[1:], type=_Body)
        except msgspec.MsgspecError as error:
            raise ProtocolError(f"a consumer's progress is damaged: {error}") from error
        safe, base_us = body.offset, body.base_us
        ignore = [
            (name, Ignored(safe + through, base_us - ago_us, safe + through - back))
            for name, through, ago_us, back in body.ignore
        ]
        return cls(
            safe,
            safe + body.read,
            body.high_us,
            tuple(ignore),
            tuple((safe + offset, base_us + ahead_us) for offset, ahead_us in body.advances),
            body.snapshot,
            tuple(body.ended),
        )


class _Body(msgspec.Struct, array_like=True, frozen=True):
    offset: int
    read: int
    high_us: int
    base_us: int
    ignore: list[tuple[bytes, int, int, int]]
    advances: list[tuple[int, int]]
    snapshot: SnapshotRef | None
    ended: list[bytes]


def name_of(key: bytes) -> bytes:
    """The key itself if it is short, otherwise a hash. The length tells one from the other."""
    if len(key) < _NAME_BYTES:
        return key
    return xxhash.xxh3_128_digest(key) + xxhash.xxh3_128_digest(key, seed=1)


class IgnoreList:
    """The entries of a partition, ascending by the offset before which they count."""

    def __init__(self, entries: Iterable[tuple[bytes, Ignored]] = ()) -> None:
        self._by_name: dict[bytes, tuple[Ignored, ...]] = {}
        for name, entry in entries:
            self.add(name, entry)

    def __len__(self) -> int:
        return len(self._by_name)

    def add(self, name: bytes, entry: Ignored) -> None:
        """Objects of a key are over up to here; earlier entries that this one covers go."""
        before = self._by_name.pop(name, ())
        end = entry[1:]
        kept = tuple(each for each in before if each[1:] > end) if before else ()
        self._by_name[name] = (*kept, entry)

    def prune(self, safe_offset: int) -> None:
        """Drops what a reader that starts at this offset does not meet."""
        self._by_name = {
            name: entries
            for name, entries in self._by_name.items()
            if entries[-1].through > safe_offset
        }

    def clear(self) -> None:
        """Drops all."""
        self._by_name.clear()

    def covers(self, name: bytes, time_us: int, offset: int) -> bool:
        """Whether a fragment was used up by an object that is over, or was late."""
        entries = self._by_name.get(name)
        return entries is not None and any(each.covers(time_us, offset) for each in entries)

    def entries(self) -> tuple[tuple[bytes, Ignored], ...]:
        """All entries, by name."""
        return tuple((name, each) for name, found in self._by_name.items() for each in found)
