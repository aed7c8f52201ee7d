"""Packing lists of byte strings into columns and slicing them out again, compiled if possible.

Every function tries the compiled module (`_packing.c`) first, if it was built and the environment
does not set `PENSTOCK_PURE`. The code below that is its twin: it runs without it, and it takes or
refuses what is not plain, such as a bytearray among the values or offsets that go back.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import pairwise

from penstock.errors import ProtocolError, TooLargeError
from penstock.wire.buffers import ZEROS, Buffer, pad8
from penstock.wire.numeric import Ints, np

PURE = bool(os.environ.get("PENSTOCK_PURE"))  # nothing that is compiled is used
COMPILED = False  # whether the compiled module is used
if not PURE:
    with suppress(ImportError):
        from penstock.wire import _packing

        COMPILED = True

_FEW = 8  # below this NumPy's fixed cost is larger than a plain loop's
_PAIR = struct.Struct("<ii")


def unfilled(size: int) -> bytearray:
    """A buffer for a caller who fills all of it, or drops it: what is in it is not known."""
    if COMPILED and (buffer := _packing.unfilled(size)) is not None:
        return buffer
    return bytearray(size)


def _look_in_python(_: memoryview) -> bytearray | None:
    return None


only_frame = _packing.only_frame if COMPILED else _look_in_python
"""A copy of a buffer if it is one small frame and nothing else; None if it is not, or that would
have to be looked for in Python."""


def bitmap_bytes(count: int) -> int:
    """The size of a validity bitmap with its padding."""
    size = (count + 7) // 8
    return size + pad8(size)


def total_of(values: Sequence[bytes]) -> int:
    """The bytes of all values together; TypeError if one has no length."""
    if COMPILED and (total := _packing.total_of(values)) is not None:
        return total
    return sum(map(len, values))


def lengths_of(values: Sequence[bytes]) -> Ints:
    """The length of every value; TypeError if one has none."""
    return np.fromiter(map(len, values), np.int32, len(values))


def pack_values(values: Sequence[bytes], front: int = 0) -> bytearray:
    """A column of these values, none of them null, after `front` zeros for the caller to fill.

    TypeError if a value is not bytes; TooLargeError if they are more than a column holds.
    """
    if COMPILED and (packed := _packing.pack_values(values, front)) is not None:
        return packed
    return _join(bytes(front), values)


def pack_part(
    values: Sequence[bytes], start: int, most: int, limit: int, front: int = 0
) -> tuple[bytearray, int]:
    """A column as of `pack_values`, of those from `start` on, at most `most` of them, and after the
    first no more than fit into `limit` bytes; and how many these are. Errors as there."""
    if COMPILED and (packed := _packing.pack_part(values, start, most, limit, front)) is not None:
        return packed
    part = values[start : start + most]
    if total_of(part) > limit and len(part) > 1:
        ends = np.cumsum(lengths_of(part), dtype=np.int64)
        part = part[: max(1, int(np.searchsorted(ends, limit, side="right")))]
    return _join(bytes(front), part), len(part)


def pack_nullable(values: Sequence[bytes | None]) -> bytearray:
    """A column in which None is null; errors as of `pack_values`."""
    if COMPILED and (packed := _packing.pack_nullable(values)) is not None:
        return packed
    valid = np.fromiter((value is not None for value in values), np.bool_, len(values))
    bitmap = np.packbits(valid, bitorder="little").tobytes()
    front = bitmap + ZEROS[: pad8(len(bitmap))]
    return _join(front, [b"" if value is None else value for value in values])


def pack_keys(keys: Sequence[bytes | None]) -> tuple[bytearray, bool]:
    """A column of keys, and whether it is a nullable one; errors as of `pack_values`."""
    # Looking for None costs more than packing, so that comes first.
    if COMPILED and (packed := _packing.pack_values(keys, 0)) is not None:
        return packed, False
    if None in keys:
        return pack_nullable(keys), True
    return pack_values(keys), False  # type: ignore[arg-type]  # no None in it


def data_length(body: Buffer, at: int, count: int) -> int:
    """The bytes of data of a column of `count` values whose offsets start at `at`.

    ProtocolError unless the offsets ascend from 0 and they and the data are inside the body.
    """
    if COMPILED and (length := _packing.data_length(body, at, count)) is not None:
        return length
    if count == 1:
        return _only_value(body, at)
    offsets, _ = _read_offsets(body, at, count)
    return int(offsets[-1])


def slice_values(body: Buffer, at: int, count: int) -> list[bytes]:
    """The values of the column whose offsets start at `at`; copies. Errors as of `data_length`."""
    if COMPILED and (values := _packing.slice_values(body, at, count)) is not None:
        return values
    if count == 1:
        start = at + _PAIR.size
        return [bytes(memoryview(body)[start : start + _only_value(body, at)])]
    offsets, start = _read_offsets(body, at, count)
    data = bytes(memoryview(body)[start : start + int(offsets[-1])])
    if count >= _FEW:
        widths = np.diff(offsets)
        if int(widths.min()) == int(widths.max()):
            return list(_fixed_width(int(widths[0]), count).unpack(data))
    return [data[start:end] for start, end in pairwise(offsets.tolist())]


def slice_nullable(body: Buffer, at: int, count: int) -> list[bytes | None]:
    """The values of the column whose validity bitmap starts at `at`, nulls as None."""
    if COMPILED and (found := _packing.slice_nullable(body, at, count)) is not None:
        return found
    values: list[bytes | None] = list(slice_values(body, at + bitmap_bytes(count), count))
    bitmap = np.frombuffer(body, np.uint8, (count + 7) // 8, at)
    bits = np.unpackbits(bitmap, bitorder="little")
    for row in np.flatnonzero(bits[:count] == 0).tolist():
        values[row] = None
    return values


@lru_cache(maxsize=64)
def _fixed_width(width: int, count: int) -> struct.Struct:
    return struct.Struct(f"{width}s" * count)


def _join(front: bytes, values: Sequence[bytes]) -> bytearray:
    data = b"".join(values)
    if len(data) > 0x7FFFFFFF:
        raise TooLargeError("a column holds at most 2 GiB")
    if len(values) == 1:
        packed = _PAIR.pack(0, len(data))
    else:
        offsets = np.zeros(len(values) + 1, np.int32)
        np.cumsum(lengths_of(values), out=offsets[1:])
        if int(offsets[-1]) != len(data):
            raise TooLargeError("a value changed its length, or the column holds over 2 GiB")
        packed = offsets.tobytes()
    pads = ZEROS[: pad8(len(packed))], ZEROS[: pad8(len(data))]
    return bytearray().join((front, packed, pads[0], data, pads[1]))


def _only_value(body: Buffer, at: int) -> int:
    """The length of the value of a column of one; NumPy would cost more than all the rest."""
    room = len(body) - at - _PAIR.size
    if at < 0 or room < 0:
        raise ProtocolError("column offsets reach past the end of the batch")
    first, end = _PAIR.unpack_from(body, at)
    if first or not 0 <= end <= room:
        raise ProtocolError("column offsets are not ascending inside the batch")
    return int(end)


def _read_offsets(body: Buffer, at: int, count: int) -> tuple[Ints, int]:
    """Offsets that were checked, and where the data starts."""
    size = 4 * (count + 1)
    if at < 0 or count < 0 or at + size > len(body):
        raise ProtocolError("column offsets reach past the end of the batch")
    offsets: Ints = np.frombuffer(body, np.int32, count + 1, at)
    start = at + size + pad8(size)
    # Compared, not subtracted: a difference of hostile offsets may wrap around.
    back = offsets[0] != 0 or bool((offsets[1:] < offsets[:-1]).any())
    if back or start + int(offsets[-1]) > len(body):
        raise ProtocolError("column offsets are not ascending inside the batch")
    return offsets, start
