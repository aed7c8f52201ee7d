"""Reservations: which grants of a queue's shard they hold, and what a home shard knows of a key.

A reservation has two sides. In every shard that it has messages of, it is a list of grants under a
key and a number: leases of `TENTATIVE_US` at first, of `RESERVED_US`, which is for ever, once it is
sealed. In the home shard of the key it is a page of a book: which shards have how much of it. Only
the home decides what a reservation is and how it ends, and its outbox brings that to the shards.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from penstock.core.lost import gives_lost
from penstock.core.outbox import EndReserved, KeepReserved
from penstock.core.records import (
    BooksForgotten,
    Folds,
    ReservationRefused,
    ReservationSealed,
    ReservationsEnded,
    Reserved,
)
from penstock.errors import ConflictError, LimitError
from penstock.wire import messages as m

if TYPE_CHECKING:
    from penstock.core.shard import Shard

TENTATIVE_US = 3_600_000_000
RESERVED_US = 1 << 60
MAX_OPEN = 16  # reservations of one key
MAX_BOOKS = 20_000  # of one shard
KEPT_US = 90 * 86_400 * 1_000_000  # after the last change of a book in which nothing is open


class ReservedGrants:
    """The grants of one queue in one shard that belong to reservations, in order."""

    __slots__ = ("_names", "_of_grant")

    def __init__(self) -> None:
        self._names: dict[tuple[str, int], list[int]] = {}
        self._of_grant: dict[int, tuple[str, int]] = {}

    def __len__(self) -> int:
        return len(self._of_grant)

    def __iter__(self) -> Iterator[int]:
        return iter(self._of_grant)

    def __contains__(self, grant: int) -> bool:
        return grant in self._of_grant

    def add(self, key: str, number: int, grants: list[int]) -> None:
        """A reservation has these grants, too."""
        held = self._names.setdefault((key, number), [])
        held += grants
        held.sort()
        self._of_grant.update(dict.fromkeys(grants, (key, number)))

    def of(self, key: str, number: int) -> list[int]:
        """The grants of a reservation, ascending; none if it is not known here."""
        return list(self._names.get((key, number), ()))

    def ended(self, grant: int) -> None:
        """Nothing of a grant is leased any more."""
        name = self._of_grant.pop(grant, None)
        if name is not None:
            self._names[name].remove(grant)
            if not self._names[name]:
                del self._names[name]

    def snapshot(self) -> list[Any]:
        """Plain data for `restore`."""
        return [(key, number, grants) for (key, number), grants in self._names.items()]

    @classmethod
    def restore(cls, rows: list[Any]) -> ReservedGrants:
        """The grants that made this snapshot."""
        reserved = cls()
        for key, number, grants in rows:
            reserved.add(key, number, grants)
        return reserved


@dataclass(slots=True)
class Book:
    """What a home knows of a key: numbers up to `through` are finished, up to `last` were used, and
    the reservations that are open."""

    through: int = 0
    last: int = 0
    at_us: int = 0
    open: dict[int, m.Reservation] = field(default_factory=dict)

    def find(self, number: int) -> m.Reservation | None:
        """The reservation with a number; None if there is none, and it may be made. ConflictError
        if it is over, LimitError if too many are open."""
        if number in self.open:
            return self.open[number]
        if number <= self.through:
            raise ConflictError(f"reservation {number} is finished")
        if number <= self.last:
            raise ConflictError(
                f"reservation {number} was released, or passed over",
                advice=f"The next number is {self.last + 1}.",
            )
        if len(self.open) >= MAX_OPEN:
            raise LimitError(
                f"{len(self.open)} reservations of this key are open",
                advice="Finish some, or have an operator release them.",
            )
        return None


class Books:
    """By queue and key, the one that was idle for longest first."""

    def __init__(self) -> None:
        self.books: dict[tuple[int, str], Book] = {}

    def find(self, stream: int, key: str) -> Book:
        """The book of a key; an empty one, which is nowhere, if there is none."""
        return self.books.get((stream, key)) or Book()

    def changed(self, stream: int, key: str, at_us: int) -> Book:
        """The book of a key, to be changed by whoever asks."""
        book = self.books.pop((stream, key), None) or Book()
        book.at_us = at_us
        self.books[stream, key] = book
        return book

    def has_room(self, stream: int, key: str) -> None:
        """LimitError if a new key cannot be remembered."""
        if (stream, key) not in self.books and len(self.books) >= MAX_BOOKS:
            raise LimitError(f"{MAX_BOOKS:,} keys of reservations are remembered in one shard")

    def idle(self, now_us: int) -> list[tuple[int, str]]:
        """Up to two that may be forgotten: so many for each new one, and they get fewer."""
        oldest = islice(self.books.items(), 2)
        return [
            name for name, book in oldest if not book.open and book.at_us + KEPT_US <= now_us
        ]

    def drop_stream(self, stream: int) -> None:
        """A queue is gone."""
        for name in [name for name in self.books if name[0] == stream]:
            del self.books[name]

    def snapshot(self) -> list[Any]:
        """Plain data for `restore`."""
        return [
            (*name, b.through, b.last, b.at_us,
             [(r.number, r.since_us, r.parts) for r in b.open.values()])
            for name, b in self.books.items()
        ]  # fmt: skip

    @classmethod
    def restore(cls, rows: list[Any]) -> Books:
        """The books that made this snapshot."""
        books = cls()
        for stream, key, through, last, at_us, pages in rows:
            book = books.books[stream, key] = Book(through, last, at_us)
            for number, since_us, parts in pages:
                held = [m.ReservedPart(*part) for part in parts]
                book.open[number] = m.Reservation(key, number, held, since_us)
        return books


# --- fold: what the notes say ------------------------------------------------------------------


def _reserved(shard: Shard, note: Reserved, number: int, now_us: int) -> None:
    queue = shard.queue(note.stream)
    given: list[int] = []
    for each in note.grants:  # one after the other: what is lost depends on what was leased before
        if not gives_lost(queue, each, shard.torn):
            queue.granted(each, now_us)
            given.append(each.number)
    queue.leases.reserved.add(note.key, note.number, given)


def _sealed(shard: Shard, note: ReservationSealed, number: int, now_us: int) -> None:
    book = shard.books.changed(note.stream, note.key, note.at_us)
    book.last = max(book.last, note.number)
    book.open[note.number] = m.Reservation(note.key, note.number, note.parts, note.at_us)
    for index, part in enumerate(note.parts):
        keep = KeepReserved(note.stream, note.key, note.number)
        shard.outbox.add(part.shard, number, index, keep)


def _ended(shard: Shard, note: ReservationsEnded, number: int, now_us: int) -> None:
    book = shard.books.changed(note.stream, note.key, note.at_us)
    book.through = max(book.through, note.through)
    book.last = max(book.last, note.through)
    index = 0
    for each in note.numbers:
        reservation = book.open.pop(each, None)
        for part in () if reservation is None else reservation.parts:
            end = EndReserved(note.stream, note.key, each, note.acked)
            shard.outbox.add(part.shard, number, index, end)
            index += 1


def _refused(shard: Shard, note: ReservationRefused, number: int, now_us: int) -> None:
    for index, target in enumerate(note.shards):
        end = EndReserved(note.stream, note.key, note.number, False)
        shard.outbox.add(target, number, index, end)


def _forgotten(shard: Shard, note: BooksForgotten, number: int, now_us: int) -> None:
    for stream, key in note.books:
        shard.books.books.pop((stream, key), None)


RESERVATION_NOTES: Folds = {
    Reserved: _reserved,
    ReservationSealed: _sealed,
    ReservationRefused: _refused,
    ReservationsEnded: _ended,
    BooksForgotten: _forgotten,
}
