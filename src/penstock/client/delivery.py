"""Reading what a pop or a subscription delivers: grants, each with its batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, repeat
from typing import TYPE_CHECKING, TypeVar

from penstock.client.settle import Settler, refused_of
from penstock.client.steps import Steps
from penstock.core.runs import full, mask_of, rows_of
from penstock.errors import InvalidError, LeaseLostError, ProtocolError
from penstock.wire.batch import MAX_BASE_BITS, Batch, Columns
from penstock.wire.columns import Longs, Rows
from penstock.wire.frames import COUNT, FRAME_BYTES, GRANT, GrantHead, Settle, SettleItem
from penstock.wire.numeric import np
from penstock.wire.plain import read_batch
from penstock.wire.tuples import new_tuple

if TYPE_CHECKING:
    import pyarrow as pa

_DELTAS = int(Columns.DELTAS)
_HEADS_AT = FRAME_BYTES + COUNT.size

T = TypeVar("T")


class Granted:
    """One grant and its batch: rows that one lease covers."""

    __slots__ = (
        "_first_row", "_own_rows", "acks", "batch", "deliveries", "grant", "positions", "settler",
        "shard",
    )  # fmt: skip

    def __init__(
        self, head: GrantHead, batch: Batch, settler: Settler, own_rows: Rows | None = None
    ) -> None:
        """`own_rows`: which rows of a merged batch are granted, in the order of positions."""
        self.grant, first, count, self.shard, self.deliveries, _, _ = head
        if not count:
            raise ProtocolError("a grant of no message")
        self.batch = batch
        self._own_rows = own_rows
        self.settler = settler
        self.acks = settler.acks
        self.positions: range | list[int]
        header = batch.header
        if own_rows is not None:
            self._first_row = -1  # they are not in a row
            self.positions = range(first, first + count)
        elif header.columns & _DELTAS:
            self._first_row, self.positions = _rows_between(batch, first, first + count)
        else:
            self._first_row = first - header.base
            self.positions = range(first, first + count)
            if self._first_row < 0 or self._first_row + count > header.count:
                raise ProtocolError("a grant covers positions that its batch does not have")

    def row(self, position: int) -> int:
        """The row of the batch that has this position."""
        at = self.positions.index(position)
        return self._first_row + at if self._own_rows is None else int(self._own_rows[at])

    @property
    def rows(self) -> slice:
        """Which rows of the batch are granted."""
        return slice(self._first_row, self._first_row + len(self.positions))

    @property
    def owners(self) -> Iterator[Granted]:
        """The grant of each row."""
        return repeat(self, len(self.positions))

    @property
    def values(self) -> Sequence[bytes]:
        """The values of the granted rows."""
        column = self.batch.values
        return column if len(self.positions) == len(column) else column[self.rows]

    def read_values(self) -> list[bytes]:
        """The same in a list of the caller's own; nothing is kept of it here."""
        column = self.batch.read_values()
        return column if len(self.positions) == len(column) else column[self.rows]

    def item(self, op: int, position: int, count: int, arg: int = 0) -> SettleItem:
        """A settlement of positions under this grant."""
        return SettleItem(op, self.shard, count, self.grant, position, arg)

    def items(self, op: int, arg: int = 0) -> list[SettleItem]:
        """A settlement of all granted rows; one item unless positions are missing between them."""
        positions = self.positions
        if isinstance(positions, range):
            return [self.item(op, positions[0], len(positions), arg)]
        ends = np.flatnonzero(np.diff(positions) != 1).tolist()
        starts = [0, *(end + 1 for end in ends)]
        stops = [*(end + 1 for end in ends), len(positions)]
        return [
            self.item(op, positions[start], stop - start, arg)
            for start, stop in zip(starts, stops, strict=True)
        ]

    def chosen(self, op: int, mask: int, arg: int = 0) -> list[SettleItem]:
        """A settlement of the granted rows whose bits are set: one item with a mask."""
        count = len(self.positions)
        if not mask:
            return []
        if mask == full(count):
            return self.items(op, arg)
        first = self.positions[0]
        if not isinstance(self.positions, range):
            mask = mask_of(np.asarray(self.positions, np.int64)[rows_of(mask)] - first)
        return [SettleItem(op, self.shard, mask.bit_length(), self.grant, first, arg, mask)]


class Merged:
    """Several grants that share a merged batch: its rows, in order, each of one of the grants."""

    __slots__ = ("_by_grant", "_owner", "batch", "grants", "positions")

    rows = slice(None)

    def __init__(self, heads: Sequence[GrantHead], batch: Batch, settler: Settler) -> None:
        self.batch = batch
        self._owner = _owners(heads, batch)
        self._by_grant = np.argsort(self._owner, kind="stable")
        counts = np.array([head.count for head in heads])
        ends = np.cumsum(counts)
        firsts = np.array([head.position for head in heads], np.int64)
        positions = np.empty(len(self._owner), np.int64)
        ascending = np.arange(len(positions)) + np.repeat(firsts - ends + counts, counts)
        positions[self._by_grant] = ascending
        self.positions: list[int] = positions.tolist()
        self.grants = [
            Granted(head, batch, settler, self._by_grant[end - head.count : end])
            for head, end in zip(heads, ends.tolist(), strict=True)
        ]

    @property
    def settler(self) -> Settler:
        """Of all the grants."""
        return self.grants[0].settler

    @property
    def owners(self) -> Iterator[Granted]:
        """The grant of each row."""
        return map(self.grants.__getitem__, self._owner.tolist())

    @property
    def values(self) -> Sequence[bytes]:
        """The values, in order."""
        return self.batch.values

    def read_values(self) -> list[bytes]:
        """The same in a list of the caller's own; nothing is kept of it here."""
        return self.batch.read_values()

    def items(self, op: int, arg: int = 0) -> list[SettleItem]:
        """A settlement of all rows: one item for each grant."""
        return [item for each in self.grants for item in each.items(op, arg)]

    def chosen(self, op: int, mask: int, arg: int = 0) -> list[SettleItem]:
        """A settlement of the rows whose bits are set: one item for each grant that has some."""
        if mask == full(len(self.positions)):
            return self.items(op, arg)
        wanted = np.zeros(len(self.positions), np.bool_)
        wanted[rows_of(mask)] = True
        mask = mask_of(np.flatnonzero(wanted[self._by_grant]))
        return _chosen(self.grants, op, mask, arg)


Part = Granted | Merged  # of a delivery


def _owners(heads: Sequence[GrantHead], batch: Batch) -> Longs:
    """Which of the grants each row of a merged batch belongs to."""
    owners = batch.offsets
    if (
        not batch.header.columns & _DELTAS
        or batch.header.base
        or not 0 <= int(owners.min()) <= int(owners.max()) < len(heads)
        or np.bincount(owners, minlength=len(heads)).tolist() != [head.count for head in heads]
        or any(head.position >> MAX_BASE_BITS for head in heads)
    ):
        raise ProtocolError("the rows of a merged batch are not those of its grants")
    return owners


def _rows_between(batch: Batch, start: int, end: int) -> tuple[int, list[int]]:
    first, last = np.searchsorted(batch.offsets, [start, end]).tolist()
    if first == last:
        raise ProtocolError("a grant covers no row of its batch")
    return first, batch.offsets[first:last].tolist()


def read_grants(answer: bytearray, settler: Settler) -> list[Part]:
    """The grants in the answer to a pop or in a delivery; they are views on the frame.

    ProtocolError if the frame is not what it says; DamagedError if a batch fails its checksum.
    """
    if len(answer) < _HEADS_AT:
        raise ProtocolError("a delivery without its counts")
    count, _ = COUNT.unpack_from(answer, FRAME_BYTES)
    at = _HEADS_AT + count * GRANT.size
    view = memoryview(answer)
    if at > len(answer):
        raise ProtocolError("a delivery is shorter than its grants")
    if count == 1:  # most deliveries are, where messages come one after the other
        head = new_tuple(GrantHead, GRANT.unpack_from(answer, _HEADS_AT))
        if not head.shared and head.length == len(answer) - at:
            return [Granted(head, read_batch(view[at:]), settler)]
    parts: list[Part] = []
    heads = map(GrantHead._make, GRANT.iter_unpack(view[_HEADS_AT:at]))
    for head in heads:
        batch = read_batch(view[at : at + head.length])
        at += head.length
        if head.shared:
            group = [head, *islice(heads, head.shared - 1)]
            if len(group) < head.shared or any(each.length for each in group[1:]):
                raise ProtocolError("a merged batch lacks some of its grants")
            parts.append(Merged(group, batch, settler))
        else:
            parts.append(Granted(head, batch, settler))
    if at != len(answer):
        raise ProtocolError("a delivery is longer than its batches")
    return parts


class LeasedBatch:
    """Messages that were popped together, column by column. Base of both shells' Delivery."""

    def __init__(self, granted: list[Part]) -> None:
        self._granted = granted
        self._settler = granted[0].settler
        self._values: list[bytes] | None = None

    def __len__(self) -> int:
        return sum(len(each.positions) for each in self._granted)

    @property
    def values(self) -> list[bytes]:
        """The values, in order. The list is the delivery's: read it, do not change it."""
        if self._values is None:
            granted = self._granted
            if len(granted) == 1:
                self._values = granted[0].read_values()
            else:
                self._values = _concatenated(each.read_values() for each in granted)
        return self._values

    @property
    def keys(self) -> list[bytes | None]:
        """The keys, None where there is none."""
        return _concatenated(each.batch.keys[each.rows] for each in self._granted)

    @property
    def headers(self) -> list[dict[str, bytes]]:
        """The headers of each message."""
        return _concatenated(each.batch.headers[each.rows] for each in self._granted)

    @property
    def timestamps(self) -> Longs:
        """Microseconds since 1970, UTC."""
        return np.concatenate([each.batch.timestamps[each.rows] for each in self._granted])

    @property
    def deliveries(self) -> list[int]:
        """How often each has been delivered, this time included."""
        return [owner.deliveries for each in self._granted for owner in each.owners]

    @property
    def shards(self) -> list[int]:
        """The shard that each is in."""
        return [owner.shard for each in self._granted for owner in each.owners]

    def to_arrow(self) -> pa.Table:
        """Columns value, key, timestamp and headers, a chunk for each batch, on the memory that was
        received; needs pyarrow (`pip install penstock[arrow]`). Row by row as `values`, so `ack`
        takes the numbers of its rows."""
        from penstock.wire.arrow import table_of

        return table_of([(each.batch, each.rows) for each in self._granted])

    def _items(
        self, op: int, arg: int = 0, rows: Sequence[int] | Rows | None = None
    ) -> list[SettleItem]:
        """Settlements of all messages, or of those in some rows of the delivery."""
        if rows is None:
            return _concatenated(each.items(op, arg) for each in self._granted)
        chosen, count = np.asarray(rows, np.intp), len(self)
        if len(chosen) and not 0 <= int(chosen.min()) <= int(chosen.max()) < count:
            raise InvalidError(f"rows of this delivery are 0 to {count - 1}")
        return _chosen(self._granted, op, mask_of(chosen), arg)


    def _extended(self, lease: int, rows: Sequence[int] | Rows | None = None) -> Steps[None]:
        """Extends leases of all messages, or of those in some rows; LeaseLostError names all rows
        whose leases are lost."""
        items = self._items(Settle.EXTEND, lease, rows)
        refused = yield from refused_of(self._settler, items)
        for _, error in refused:
            if isinstance(error, LeaseLostError):
                lost = [item for item, why in refused if isinstance(why, LeaseLostError)]
                error.rows = tuple(self._rows_of(lost))
            raise error

    def _rows_of(self, items: Iterable[SettleItem]) -> Iterator[int]:
        by_grant: dict[tuple[int, int], list[SettleItem]] = {}
        for item in items:
            by_grant.setdefault((item.shard, item.grant), []).append(item)
        places = (
            each
            for part in self._granted
            for each in zip(part.owners, part.positions, strict=True)
        )
        for row, (owner, position) in enumerate(places):
            found = by_grant.get((owner.shard, owner.grant), ())
            if any(_covers(item, position) for item in found):
                yield row


def _covers(item: SettleItem, position: int) -> bool:
    at = position - item.position
    return 0 <= at < item.count and (not item.mask or bool(item.mask >> at & 1))


def _chosen(parts: Iterable[Part], op: int, mask: int, arg: int) -> list[SettleItem]:
    """Settlements of the rows of several parts, one after the other, whose bits are set."""
    items: list[SettleItem] = []
    for part, count in _stretches(parts):
        bits = mask & full(count)
        if count == len(part.positions):
            items += part.chosen(op, bits, arg)
        elif bits:
            assert isinstance(part, Granted)
            first, span = part.positions[0], bits.bit_length()
            whole = bits == full(count)
            item = SettleItem(op, part.shard, span, part.grant, first, arg, 0 if whole else bits)
            items.append(item)
        mask >>= count
    return items


def _stretches(parts: Iterable[Part]) -> list[tuple[Part, int]]:
    """Parts, and how many rows there are from each on of the same grant, without a gap."""
    found: list[tuple[Part, int]] = []
    first: Part | None = None
    rows = 0
    for part in parts:
        count = len(part.positions)
        if first is not None and _goes_on(part, first, rows):
            rows += count
            found[-1] = first, rows
        else:
            first, rows = part, count
            found.append((part, count))
    return found


def _goes_on(part: Part, first: Part, rows: int) -> bool:
    """Whether this is more of the same grant, right behind the so many rows from `first` on."""
    if not (isinstance(part, Granted) and isinstance(first, Granted)):
        return False
    if part.grant != first.grant or part.shard != first.shard:
        return False
    positions, before = part.positions, first.positions
    if not (isinstance(positions, range) and isinstance(before, range)):
        return False
    return positions[0] == before[0] + rows


def _concatenated(columns: Iterable[Sequence[T]]) -> list[T]:
    whole: list[T] = []
    for column in columns:
        whole += column
    return whole
