"""Rows of a push as Arrow's columns: nothing is done row by row, but for headers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from penstock.errors import InvalidError, TooLargeError
from penstock.wire import packing
from penstock.wire.arrow import column_parts, encode_arrow, places
from penstock.wire.growth import Layout
from penstock.wire.limits import MAX_KEY_BYTES
from penstock.wire.numeric import Ints, Longs, np

COLUMNS = ("value", "key", "timestamp", "headers")
PIECE_ROWS = 1 << 16
PIECE_BYTES = 4 << 20
_TEXTS = (pa.types.is_binary, pa.types.is_string, pa.types.is_large_binary,
          pa.types.is_large_string, pa.types.is_fixed_size_binary)  # fmt: skip
_pack_headers = msgspec.msgpack.Encoder().encode


class ArrowRows:
    """The columns of one batch, or of several: value and key binary, times in microseconds as
    int64, headers packed. Those that are all missing are None."""

    def __init__(
        self,
        value: pa.Array,
        key: pa.Array | None,
        times: pa.Array | None,
        headers: pa.Array | None,
    ) -> None:
        self._columns = value, key, times, headers

    @property
    def messages(self) -> int:
        """How many."""
        return len(self._columns[0])

    @property
    def keyed(self) -> bool:
        """Whether some have keys."""
        return self._columns[1] is not None

    @property
    def keys(self) -> Sequence[bytes | None] | None:
        """Their keys, one by one."""
        column = self._columns[1]
        return None if column is None else column.to_pylist()

    def encode(self, timestamp_us: int, **settings: Any) -> bytearray:
        """A sealed batch."""
        return encode_arrow(*self._columns, timestamp_us=timestamp_us, **settings)

    def partitions(self, layout: Layout, unkeyed: Callable[[], int]) -> Longs:
        """The partition of each."""
        column = self._columns[1]
        assert column is not None
        count, missing = len(column), None
        if column.null_count:
            missing = column.is_null().to_numpy(zero_copy_only=False)
            column = column.fill_null(b"")
        keys = packing.slice_values(b"".join(column_parts(column)), 0, count)
        found = layout.partitions_of(keys, count)
        if missing is not None:
            found[missing] = unkeyed()
        return found

    def grouped(self, groups: Sequence[int] | Longs) -> Iterator[tuple[int, ArrowRows]]:
        """One batch for each group, its rows in their order."""
        numbers = np.asarray(groups)
        if numbers.max() < 1 << 16:
            numbers = numbers.astype(np.uint16)  # for which NumPy has a sort in one pass
        order = np.argsort(numbers, kind="stable")
        numbers = numbers[order]
        edges = np.flatnonzero(np.diff(numbers)) + 1
        rows = self._each(lambda column: column.take(pa.array(order))) if len(edges) else self
        starts = [0, *edges.tolist()]
        for start, end in zip(starts, [*starts[1:], len(numbers)], strict=True):
            yield int(numbers[start]), rows._slice(start, end)

    def pieces(self) -> Iterator[ArrowRows]:
        """The same rows in parts that are as large as a batch should be at most."""
        starts, start = places(self._columns[0]), 0
        while start < self.messages:
            most = int(starts[start]) + PIECE_BYTES
            fits = int(np.searchsorted(starts, most, side="right")) - 1
            end = min(max(fits, start + 1), start + PIECE_ROWS, self.messages)
            yield self._slice(start, end)
            start = end

    def _slice(self, start: int, end: int) -> ArrowRows:
        if start == 0 and end == self.messages:
            return self
        return self._each(lambda column: column.slice(start, end - start))

    def _each(self, change: Callable[[pa.Array], pa.Array]) -> ArrowRows:
        return ArrowRows(*(None if each is None else change(each) for each in self._columns))


def arrow_rows(data: pa.RecordBatch | pa.Table, now_us: int, first: int = 0) -> Iterator[ArrowRows]:
    """The messages of a table with the column `value` and, if they have such, `key`, `timestamp`
    and `headers`. InvalidError says what is wrong with it; `first` is the number of its first row
    there. A null is no key, no headers, and the time now; as a value it is refused.
    """
    strangers = [name for name in data.schema.names if name not in COLUMNS]
    if "value" not in data.schema.names or strangers:
        what = f"not {', '.join(strangers)}" if strangers else "and `value` is missing"
        raise InvalidError(
            f"a message has the columns {', '.join(COLUMNS)}, {what}",
            advice="Select or rename columns; what else there is can go into the value.",
        )
    for batch in data.to_batches() if isinstance(data, pa.Table) else [data]:
        if batch.num_rows:
            yield _rows_of(batch, now_us, first)
        first += batch.num_rows


def _rows_of(batch: pa.RecordBatch, now_us: int, first: int) -> ArrowRows:
    has = dict(zip(batch.schema.names, batch.columns, strict=True))
    value = _binary("value", has["value"])
    if value.null_count:
        row = first + int(np.flatnonzero(value.is_null().to_numpy(zero_copy_only=False))[0])
        raise InvalidError(
            f"column 'value' is null in row {row:,}: a message needs a value",
            advice="Leave such rows out, or give them an empty value.",
        )
    return ArrowRows(value, _keys(has.get("key")), _times(has.get("timestamp"), now_us),
                     _headers(has.get("headers")))  # fmt: skip


def _binary(name: str, column: pa.Array) -> pa.Array:
    """As a binary array with offsets of 32 bits; that of a string array stays where it is."""
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not any(check(kind) for check in _TEXTS):
        raise InvalidError(
            f"column {name!r} is {column.type}, not binary or string",
            advice="Make it text or bytes first; several columns go into JSON, for instance.",
        )
    try:
        return column.cast(kind).cast(pa.binary())
    except pa.ArrowInvalid as error:
        raise TooLargeError(f"column {name!r}: {error}") from error


def _keys(column: pa.Array | None) -> pa.Array | None:
    if column is None or column.null_count == len(column):
        return None
    keys = _binary("key", column)
    longest = int(_lengths(keys).max())
    if longest > MAX_KEY_BYTES:
        raise TooLargeError(f"a key of {longest:,} bytes; the limit is {MAX_KEY_BYTES:,}")
    return keys


def _lengths(column: pa.Array) -> Ints:
    return np.diff(places(column))


def _times(column: pa.Array | None, now_us: int) -> pa.Array | None:
    if column is None or column.null_count == len(column):
        return None
    if not pa.types.is_timestamp(column.type):
        raise InvalidError(f"column 'timestamp' is {column.type}, not a timestamp")
    zoned = pa.timestamp("us", tz=column.type.tz)
    times = column.cast(zoned, safe=False).cast(pa.int64())
    return times.fill_null(now_us) if times.null_count else times


def _headers(column: pa.Array | None) -> pa.Array | None:
    if column is None or column.null_count == len(column):
        return None
    kind = column.type
    if not pa.types.is_map(kind) or not pa.types.is_string(kind.key_type):
        raise InvalidError(f"column 'headers' is {kind}, not a map of string to binary")
    if not pa.types.is_binary(kind.item_type):
        column = column.cast(pa.map_(pa.string(), pa.binary()))
    if not np.diff(column.offsets.to_numpy()).any():
        return None
    rows: list[Any] = column.to_pylist()
    try:
        packed = [_pack_headers(_named(row)) if row else b"" for row in rows]
    except TypeError as error:
        raise InvalidError(f"headers: {error}") from error
    return pa.array(packed, pa.binary())


def _named(pairs: list[tuple[str, bytes | None]]) -> dict[str, bytes]:
    for name, value in pairs:
        if value is None:
            raise InvalidError(f"header {name!r} is null: names must be str and values bytes")
    return dict(pairs)  # type: ignore[arg-type]  # no None in it
