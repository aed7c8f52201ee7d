"""Where the batches of one sequence of positions are: packed columns, about 45 bytes a batch."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from penstock.wire.numeric import np

_WALK = 4096  # messages of one walk, so that a grant ends in one step
_FOLLOWERS = 64  # batches that one grant takes along, for the same reason
_TRIM_FROM = 1024  # rows; below this a dead prefix is not worth moving memory


class Stored(NamedTuple):
    """One batch: where it starts and lies, and how many messages it covers, holds, has live."""

    base: int
    span: int  # positions that belong to it
    rows: int  # messages that are stored: fewer than span once finished ones were left out
    live: int
    location: int
    length: int
    arrived_us: int
    stamped: int  # the base that stands in the stored bytes: another one if it was staged first

    @property
    def moved(self) -> tuple[int, int] | None:
        """What readers must find instead of what stands in the stored bytes, base and arrival;
        None if that is right."""
        return None if self.stamped == self.base else (self.base, self.arrived_us)

    @property
    def live_bytes(self) -> int:
        """Bytes that are not free yet, as `BatchIndex.finish` counts them."""
        return self.length - self.length * (self.rows - self.live) // self.rows


class Room(NamedTuple):
    """How far batches are taken along with others."""

    messages: int
    max_bytes: int
    stop: int | None  # a position
    before_us: int | None  # when what comes first elsewhere arrived


class BatchIndex:
    """Batches in order of position. Appended at the end; finished anywhere.

    `span` positions belong to a batch; `live` of them are not finished. A batch whose last message
    is finished keeps its row (with location 0) until the rows before it are gone too.
    """

    __slots__ = (
        "_arrived", "_base", "_dead", "_first", "_length", "_live", "_location", "_rows",
        "_shown", "_span", "_stamps")  # fmt: skip

    def __init__(self) -> None:
        self._base = array("Q")
        self._span = array("I")
        self._rows = array("I")
        self._live = array("I")
        self._location = array("Q")
        self._length = array("I")
        self._arrived = array("Q")
        self._first = 0  # rows before it are finished
        self._dead = 0  # finished rows after it
        self._stamps: dict[int, int] = {}  # base: what stands in the bytes, if that is another
        self._shown: dict[int, int] = {}  # the reverse

    def __len__(self) -> int:
        return len(self._base) - self._first - self._dead

    def append(self, base: int, span: int, location: int, length: int, arrived_us: int) -> None:
        """Adds a batch after all others; all its messages are live."""
        self._base.append(base)
        self._span.append(span)
        self._rows.append(span)
        self._live.append(span)
        self._location.append(location)
        self._length.append(length)
        self._arrived.append(arrived_us)

    def is_single(self, position: int) -> bool:
        """Whether the batch that holds a position has no other; the position must be there."""
        return self._span[bisect_right(self._base, position, self._first) - 1] == 1

    def row_of(self, position: int) -> int:
        """The row whose span holds the position, or -1."""
        row = bisect_right(self._base, position, self._first) - 1
        if row < self._first or position >= self._base[row] + self._span[row]:
            return -1
        return row

    def next_row(self, position: int) -> int:
        """The first row that starts at or after the position, or -1."""
        row = bisect_right(self._base, position - 1, self._first) if position else self._first
        return row if row < len(self._base) else -1

    @property
    def rows_end(self) -> int:
        """The number after the last row."""
        return len(self._base)

    @property
    def newest_us(self) -> int:
        """When the last batch arrived; 0 if there is none."""
        return self._arrived[-1] if self._arrived else 0

    def base_at(self, time_us: int, otherwise: int) -> int:
        """The base of the first batch that arrived at or after a time."""
        row = bisect_left(self._arrived, time_us, self._first)
        return self._base[row] if row < len(self._base) else otherwise

    def at(self, row: int) -> Stored:
        """The batch in a row."""
        return Stored(
            self._base[row], self._span[row], self._rows[row], self._live[row],
            self._location[row], self._length[row], self._arrived[row],
            self._stamps.get(self._base[row], self._base[row]),
        )  # fmt: skip

    def stamp(self, base: int, stamped: int) -> None:
        """The batch at `base` has another base in its stored bytes, by which it can be found."""
        self._stamps[base] = stamped
        self._shown[stamped] = base

    def has_stamp(self, stamped: int) -> bool:
        """Whether a batch is here that has this base in its stored bytes, and not as its own."""
        return stamped in self._shown

    def _unstamp(self, base: int) -> None:
        self._shown.pop(self._stamps.pop(base, -1), None)

    def arrived_at(self, position: int) -> int:
        """When the batch that holds a position arrived; the position must be there."""
        return self._arrived[bisect_right(self._base, position, self._first) - 1]

    def find(self, position: int) -> Stored | None:
        """The batch that holds a position, or has this base in its bytes, if any of it is live."""
        row = self.row_of(self._shown.get(position, position))
        return None if row < 0 or not self._live[row] else self.at(row)

    def finish(self, position: int, count: int) -> tuple[int, int]:
        """`count` messages of the batch that holds the position are finished.

        Returns its location and how many bytes of it are free by that: in proportion, and the rest
        with the last message, so that the sum is the batch's length.
        """
        row = self.row_of(position)
        assert row >= 0, "finish of an unknown position"
        return self._finish(row, count)

    def finish_run(self, position: int, mask: int, messages: int) -> list[tuple[int, int]]:
        """As `finish`, for the messages of a mask, which has so many: they are of one batch or of
        neighbouring ones, or each is a batch of its own."""
        row = self.row_of(position)
        assert row >= 0, "finish of an unknown position"
        span = self._span[row]
        if messages == 1 or (span != 1 and position + mask.bit_length() <= self._base[row] + span):
            return [self._finish(row, messages)]
        if span != 1:
            return self._finish_neighbours(row, position, mask)
        return self._finish_singles(row, position, mask)

    def _finish(self, row: int, count: int) -> tuple[int, int]:
        freed = self._free(row, count)
        if not self._live[row]:
            self._trim()
        return freed

    def _free(self, row: int, count: int) -> tuple[int, int]:
        """As `finish`; rows keep their numbers."""
        length, rows, live = self._length[row], self._rows[row], self._live[row]
        assert count <= live, "more finished than live"
        location = self._location[row]
        freed = length * (rows - live + count) // rows - length * (rows - live) // rows
        self._live[row] = live - count
        if live == count:
            self._unstamp(self._base[row])
            self._location[row] = 0
            self._dead += 1
        return location, freed

    def _finish_neighbours(self, row: int, position: int, mask: int) -> list[tuple[int, int]]:
        freed: list[tuple[int, int]] = []
        while mask:
            width = self._base[row] + self._span[row] - position
            if part := mask & (1 << width) - 1:
                freed.append(self._free(row, part.bit_count()))
            mask >>= width
            position, row = position + width, row + 1
            if mask and (row == len(self._base) or self._base[row] != position):
                shift = (mask & -mask).bit_length() - 1  # rows between are gone
                position, mask = position + shift, mask >> shift
                row = self.row_of(position)
                assert row >= 0, "finish of an unknown position"
        self._trim()
        return freed

    def move(self, base: int, old: int, new: int, length: int, rows: int) -> Stored | None:
        """The batch was copied elsewhere, `rows` messages of it. As it was before, or None if it
        is gone meanwhile."""
        row = self.row_of(self._shown.get(base, base))
        if row < 0 or self._location[row] != old:
            return None
        before = self.at(row)
        self._location[row], self._length[row], self._rows[row] = new, length, rows
        return before

    def singles(self, position: int, stop: int | None, skips: set[int]) -> Singles | None:
        """A walk over batches of one message, if the one at the position is live and such a batch.

        It ends before the position `stop`, and before a batch whose base is in `skips`.
        """
        row = self.row_of(position)
        if row < 0 or self._span[row] != 1 or not self._live[row]:
            return None
        return Singles(self, row, position, stop, skips)

    def followers(self, position: int, skips: set[int], room: Room) -> tuple[int, int, int]:
        """Live batches of several messages from a position on, one right behind the other, as far
        as there is room: how many, and their messages and bytes."""
        messages, max_bytes, stop, before_us = room
        row = bisect_left(self._base, position, self._first)
        first, span, size = row, 0, 0
        while row < len(self._base) and row - first < _FOLLOWERS:
            count, length = self._span[row], self._length[row]
            if self._base[row] != position or self._live[row] != count or count == 1:
                break
            if span + count > messages or size + length > max_bytes:
                break
            if position == stop or position in skips:
                break
            if before_us is not None and self._arrived[row] >= before_us:
                break
            span, size, position, row = span + count, size + length, position + count, row + 1
        return row - first, span, size

    def places(self, position: int, count: int) -> list[tuple[int, int]] | None:
        """Location and length of `count` neighbouring batches of one message each; None if one of
        them is gone, or they must be looked at one by one, because of what stands in their bytes.
        """
        row = self.row_of(position)
        end = row + count
        if row < 0 or self._stamps or end > len(self._base):
            return None
        if self._base[end - 1] != position + count - 1:
            return None
        return list(zip(self._location[row:end], self._length[row:end], strict=True))

    def parts(self, position: int, mask: int) -> list[tuple[int, int]]:
        """The mask of a run cut at the ends of batches: positions and masks, lowest bits set.
        Where the run begins there may be nothing any more."""
        cut: list[tuple[int, int]] = []
        while mask:
            shift = (mask & -mask).bit_length() - 1
            position, mask = position + shift, mask >> shift
            row = self.row_of(position)
            assert row >= 0, "a run of an unknown position"
            width = self._base[row] + self._span[row] - position
            cut.append((position, mask & (1 << width) - 1))
            position, mask = position + width, mask >> width
        return cut

    def _finish_singles(self, row: int, position: int, mask: int) -> list[tuple[int, int]]:
        count = mask.bit_length()
        end = row + count
        if not mask & mask + 1 and end <= len(self._base) and self._live[row:end].count(1) == count:
            freed = list(zip(self._location[row:end], self._length[row:end], strict=True))
            self._live[row:end] = array("I", bytes(4 * count))
            self._location[row:end] = array("Q", bytes(8 * count))
        else:
            freed = self._finish_each(row, position, mask)
        if self._stamps:
            for shift in range(count):
                if mask >> shift & 1:
                    self._unstamp(position + shift)
        self._dead += len(freed)
        self._trim()
        return freed

    def _finish_each(self, row: int, position: int, mask: int) -> list[tuple[int, int]]:
        freed: list[tuple[int, int]] = []
        while mask:
            shift = (mask & -mask).bit_length() - 1
            position, mask = position + shift, mask >> shift
            row += shift
            if row >= len(self._base) or self._base[row] != position:  # rows between are gone
                row = self.row_of(position)
            assert self._live[row] == 1, "finish of a finished message"
            freed.append((self._location[row], self._length[row]))
            self._live[row] = self._location[row] = 0
            position, mask, row = position + 1, mask >> 1, row + 1
        return freed

    def rows(self) -> Iterator[Stored]:
        """All batches with live messages, oldest first. Do not finish any meanwhile."""
        return (self.at(row) for row in range(self._first, len(self._base)) if self._live[row])

    def first(self) -> Stored | None:
        """The oldest batch with live messages."""
        self._trim()
        return self.at(self._first) if self._first < len(self._base) else None

    def _trim(self) -> None:
        first, end = self._first, len(self._base)
        while first < end and not self._live[first]:
            first += 1
        self._dead -= first - self._first
        self._first = first
        if first >= _TRIM_FROM and first * 2 > end:
            for column in self._columns():
                del column[:first]
            self._first = 0
        elif self._dead >= _TRIM_FROM and self._dead * 3 > end - first:
            self._drop_dead()

    def _drop_dead(self) -> None:
        keep = np.flatnonzero(np.frombuffer(self._live, np.uint32)).tolist()
        for column in self._columns():
            column[:] = array(column.typecode, [column[row] for row in keep])
        self._first = self._dead = 0

    def _columns(self) -> tuple[array[int], ...]:
        return (
            self._base, self._span, self._rows, self._live, self._location, self._length,
            self._arrived,
        )  # fmt: skip

    def relocate(self, places: Mapping[int, tuple[int, int]]) -> int:
        """All batches lie elsewhere: location and length of each by its old location. One that is
        not named cannot be read any more. By how many live bytes they have grown."""
        grown = 0
        for row, old in enumerate(self._location):
            if self._live[row]:
                before = self.at(row)
                new, length = places.get(old, (0, before.length))
                self._location[row], self._length[row] = new, length
                if length != before.length:
                    grown += self.at(row).live_bytes - before.live_bytes
        return grown

    def snapshot(self) -> list[bytes]:
        """The columns as bytes, finished rows in front left out; then, if there are any, bases and
        what stands in the bytes instead."""
        columns = [column[self._first :].tobytes() for column in self._columns()]
        if self._stamps:
            columns += [array("Q", part).tobytes() for part in (self._stamps, self._shown)]
        return columns

    @classmethod
    def restore(cls, columns: list[bytes]) -> BatchIndex:
        """The index that made this snapshot."""
        index = cls()
        own = index._columns()
        for column, data in zip(own, columns[: len(own)], strict=True):
            column.frombytes(data)
        if stamps := columns[len(own) :]:
            for base, stamped in zip(*(array("Q", part) for part in stamps), strict=True):
                index.stamp(base, stamped)
        index._dead = index._live.count(0)
        return index


class Singles:
    """A walk over neighbouring batches of one live message each: a lease covers them all.

    `arrived_us` and `length` are those of the next one, which `step` takes. Nothing may be appended
    or finished meanwhile.
    """

    __slots__ = ("_index", "_row", "_skips", "_stop", "arrived_us", "count", "first", "length")

    def __init__(
        self, index: BatchIndex, row: int, first: int, stop: int | None, skips: set[int]
    ) -> None:
        self._index = index
        self._row = row
        self._stop = stop
        self._skips = skips
        self.first = first
        self.count = 0  # taken so far
        self.arrived_us = index._arrived[row]
        self.length = index._length[row]

    def step(self) -> bool:
        """Takes one; whether another follows."""
        index = self._index
        self.count += 1
        self._row = row = self._row + 1
        if row >= len(index._base) or index._span[row] != 1 or not index._live[row]:
            return False
        base = self.first + self.count
        if index._base[row] != base or base == self._stop or base in self._skips:
            return False
        if self.count >= _WALK:
            return False
        self.arrived_us = index._arrived[row]
        self.length = index._length[row]
        return True
