"""The rows of a push: what the caller passes, taken lazily, cut into batches, and grouped."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from datetime import datetime
from itertools import accumulate, islice
from typing import Any, NamedTuple, Protocol, Self, TypeVar

from penstock.client.inputs import check_headers, key_column, moment_us
from penstock.errors import InvalidError
from penstock.wire.batch import HEADER_BYTES
from penstock.wire.encode import encode_batch, seal_values
from penstock.wire.growth import Layout
from penstock.wire.numeric import Longs
from penstock.wire.packing import pack_part, total_of

BATCH_BYTES = 1 << 20
"""A batch is closed when its values reach this. What a consumer receives, checks and copies out is
in its processor's cache all the way; four times as much is not, and takes half as long again."""
# Values taken from an iterator at once: few at first, and then so many times those that are there.
# That bounds what is held of large ones, also if they come after small ones.
_FIRST = 4
_GROWTH = 16

Headers = Mapping[str, bytes]


class PushedRows(Protocol):
    """The messages of one push, however they are kept."""

    @property
    def messages(self) -> int:
        """How many."""

    @property
    def keys(self) -> Sequence[bytes | None] | None:
        """Their keys, if they have some."""

    def encode(self, timestamp_us: int, **settings: Any) -> bytearray:
        """A sealed batch; `settings` are those of `encode_batch`."""

    def partitions(self, layout: Layout, unkeyed: Callable[[], int]) -> Sequence[int] | Longs:
        """The partition of each; those without a key go to one that is asked for."""

    def grouped(self, groups: Sequence[int] | Longs) -> Iterator[tuple[int, Self]]:
        """One batch for each group, its rows in their order."""


RowsT = TypeVar("RowsT", bound=PushedRows)


class Rows(NamedTuple):
    """The columns of one batch, as lists."""

    values: Sequence[bytes]
    keys: Sequence[bytes | None] | None = None
    headers: Sequence[Headers | None] | None = None
    timestamps_us: Sequence[int] | None = None

    @property
    def messages(self) -> int:
        """How many."""
        return len(self.values)

    def encode(self, timestamp_us: int, **settings: Any) -> bytearray:
        """A sealed batch."""
        values, keys, headers, times = self
        return encode_batch(
            values, keys=keys, headers=headers, timestamps_us=times, timestamp_us=timestamp_us,
            **settings,
        )  # fmt: skip

    def partitions(self, layout: Layout, unkeyed: Callable[[], int]) -> Sequence[int]:
        """The partition of each."""
        assert self.keys is not None
        number = unkeyed() if None in self.keys else 0
        of_key = layout.partition_of
        return [number if key is None else of_key(key) for key in self.keys]

    def grouped(self, groups: Sequence[int] | Longs) -> Iterator[tuple[int, Rows]]:
        """One batch for each group, its rows in their order."""
        members: dict[int, list[int]] = {}
        for row, group in enumerate(groups):
            members.setdefault(group, []).append(row)
        if len(members) == 1:
            yield groups[0], self
            return
        for group, chosen in members.items():
            yield group, self._chosen(chosen)

    def _chosen(self, chosen: list[int]) -> Rows:
        keys, headers, times = self.keys, self.headers, self.timestamps_us
        return Rows(
            [self.values[row] for row in chosen],
            None if keys is None else [keys[row] for row in chosen],
            None if headers is None else [headers[row] for row in chosen],
            None if times is None else [times[row] for row in chosen],
        )


class PackedRows:
    """Values alone, packed as they were cut: nothing of the caller's list is kept."""

    __slots__ = ("_buffer", "_sealed", "messages")

    keys: None = None

    def __init__(self, buffer: bytearray, messages: int) -> None:
        self._buffer = buffer
        self._sealed = False
        self.messages = messages

    def encode(self, timestamp_us: int, **settings: Any) -> bytearray:
        """A sealed batch. The first is the buffer itself; whoever has it keeps it as it is."""
        buffer = bytearray(self._buffer) if self._sealed else self._buffer
        self._sealed = True
        return seal_values(buffer, self.messages, timestamp_us, **settings)

    def partitions(self, layout: Layout, unkeyed: Callable[[], int]) -> Sequence[int]:
        """The partition of each."""
        return [unkeyed()] * self.messages

    def grouped(self, groups: Sequence[int] | Longs) -> Iterator[tuple[int, PackedRows]]:
        """They have no keys to be told apart by: all go where the first does."""
        yield int(groups[0]), self


class RowSource:
    """Values and what goes with them, taken lazily and cut into batches by count and by bytes."""

    def __init__(
        self,
        values: Iterable[bytes],
        keys: Iterable[bytes | str | None] | None,
        headers: Iterable[Headers | None] | None,
        timestamps: Iterable[datetime | float] | None,
    ) -> None:
        if isinstance(values, str | bytes | bytearray | memoryview):
            raise InvalidError("values must be a list or another iterable of bytes, not one string")
        for name, column in (("keys", keys), ("headers", headers), ("timestamps", timestamps)):
            check_as_long(name, column, values)
        # A list is sliced; of anything else a little is taken at a time.
        self._list = values if isinstance(values, list) else None
        self._at = 0
        self._values = iter(values)
        self._ahead: list[bytes] = []  # taken from them, and in no batch yet
        self._keys = None if keys is None else iter(keys)
        self._headers = None if headers is None else iter(headers)
        self._timestamps = None if timestamps is None else iter(timestamps)

    def batches(self, most: int) -> Iterator[Rows | PackedRows]:
        """Batches of at most `most` messages; none is made if a column ends before the values."""
        if self._list is not None and not (self._keys or self._headers or self._timestamps):
            yield from self._packed(self._list, most)
            return
        while values := self._take_values(most):
            count = len(values)
            keys = headers = times = None
            if self._keys is not None:
                keys = key_column(list(islice(self._keys, count)))
            if self._headers is not None:
                headers = list(islice(self._headers, count))
                for row in headers:
                    check_headers(row)
            if self._timestamps is not None:
                times = [moment_us(moment) for moment in islice(self._timestamps, count)]
            for name, column in (("keys", keys), ("headers", headers), ("timestamps", times)):
                if column is not None and len(column) < count:
                    raise InvalidError(f"there are fewer {name} than values")
            yield Rows(values, keys, headers, times)

    def _packed(self, values: list[bytes], most: int) -> Iterator[PackedRows]:
        """A list of values alone is packed where it lies: slices of it would be copied, and walked
        by the garbage collector, for nothing."""
        while self._at < len(values):
            try:
                buffer, count = pack_part(values, self._at, most, BATCH_BYTES, HEADER_BYTES)
            except TypeError as error:
                raise _not_bytes(error) from error
            self._at += count
            yield PackedRows(buffer, count)

    def _take_values(self, most: int) -> list[bytes]:
        """The next values: what their batch has room for."""
        if self._list is not None:
            taken = _fitting(self._list[self._at : self._at + most])
            self._at += len(taken)
            return taken
        ahead = self._read_ahead(most)
        taken = _fitting(ahead[:most])
        self._ahead = ahead[len(taken) :]
        return taken

    def _read_ahead(self, most: int) -> list[bytes]:
        """Values for a batch, perhaps some more. Few at first: they tell how many may follow."""
        taken = self._ahead
        size, stride = _size(taken), _FIRST
        while len(taken) < most and size < BATCH_BYTES:
            more = list(islice(self._values, min(stride, most - len(taken))))
            if not more:
                break
            size += _size(more)
            taken += more
            room = (BATCH_BYTES - size) * len(taken) // (2 * size + 1)
            stride = max(_FIRST, min(room, _GROWTH * len(taken)))
        return taken


def _fitting(values: list[bytes]) -> list[bytes]:
    """As many of the first values as make one batch; at least one."""
    if len(values) > 1 and _size(values) > BATCH_BYTES:
        ends = list(accumulate(map(len, values)))
        return values[: max(1, bisect_left(ends, BATCH_BYTES))]
    return values


def _size(values: list[bytes]) -> int:
    try:
        return total_of(values)
    except TypeError as error:
        raise _not_bytes(error) from error


def _not_bytes(error: TypeError) -> InvalidError:
    return InvalidError(f"values must be bytes: {error}")


def check_as_long(name: str, column: Iterable[object] | None, values: Iterable[bytes]) -> None:
    """InvalidError if two lists differ in length; of other iterables it is not known before."""
    if isinstance(column, Sized) and isinstance(values, Sized) and len(column) != len(values):
        raise InvalidError(f"there are {len(column):,} {name} for {len(values):,} values")

