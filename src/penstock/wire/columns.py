"""Columns of a batch: packing and slicing many byte strings at once, in C."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from penstock.errors import ProtocolError, TooLargeError
from penstock.wire.buffers import ZEROS, Buffer, pad8

Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]
Rows = npt.NDArray[np.intp]

_FEW = 8  # below this NumPy's fixed cost is larger than a plain loop's
_OFFSETS_OF_ONE = struct.Struct("<ii")


@lru_cache(maxsize=64)
def _fixed_width(width: int, count: int) -> struct.Struct:
    return struct.Struct(f"{width}s" * count)


class BinaryColumn:
    """Byte strings as Arrow keeps them: int32 offsets, data, a validity bitmap if some are null.

    Views, not copies: the column is valid as long as the buffer that it was read from.
    """

    __slots__ = ("count", "data", "offsets", "validity")

    def __init__(self, offsets: Ints, data: memoryview, validity: memoryview | None = None) -> None:
        self.offsets = offsets
        self.data = data
        self.validity = validity
        self.count = len(offsets) - 1

    @classmethod
    def read(
        cls, body: memoryview, at: int, count: int, nullable: bool
    ) -> tuple[BinaryColumn, int]:
        """The column at `at` and the position after it; ProtocolError if it does not fit."""
        validity = None
        if nullable:
            size = (count + 7) // 8
            validity = body[at : at + size]
            at += size + pad8(size)
        size = 4 * (count + 1)
        if at + size > len(body):
            raise ProtocolError("column offsets reach past the end of the batch")
        offsets: Ints = np.frombuffer(body, np.int32, count + 1, at)
        at += size + pad8(size)
        end = at + int(offsets[-1])
        # Compared, not subtracted: a difference of hostile offsets may wrap around.
        if offsets[0] != 0 or end > len(body) or bool((offsets[1:] < offsets[:-1]).any()):
            raise ProtocolError("column offsets are not ascending inside the batch")
        return cls(offsets, body[at:end], validity), end + pad8(end - at)

    def tolist(self) -> list[bytes]:
        """All values; a null is the empty string here."""
        if self.count == 1:
            return [bytes(self.data)]
        widths = np.diff(self.offsets)
        if self.count >= _FEW and int(widths.min()) == int(widths.max()):
            return list(_fixed_width(int(widths[0]), self.count).unpack(self.data))
        data = bytes(self.data)
        return [data[start:end] for start, end in pairwise(self.offsets.tolist())]

    def tolist_nullable(self) -> list[bytes | None]:
        """All values, nulls as None."""
        values: list[bytes | None] = list(self.tolist())
        if self.validity is not None:
            bits = np.unpackbits(np.frombuffer(self.validity, np.uint8), bitorder="little")
            for row in np.flatnonzero(bits[: self.count] == 0).tolist():
                values[row] = None
        return values

    def __getitem__(self, row: int) -> bytes:
        return bytes(self.data[int(self.offsets[row]) : int(self.offsets[row + 1])])

    def take(self, rows: Rows) -> list[Buffer]:
        """The parts of a new column with only these rows, in their order."""
        starts = self.offsets[:-1][rows]
        widths = self.offsets[1:][rows] - starts
        offsets = np.zeros(len(rows) + 1, np.int32)
        np.cumsum(widths, out=offsets[1:])
        if len(rows) and int(rows[-1]) - int(rows[0]) + 1 == len(rows):  # contiguous: one slice
            data: Buffer = self.data[int(starts[0]) : int(self.offsets[int(rows[-1]) + 1])]
        else:
            source = np.repeat(starts - offsets[:-1], widths)
            source += np.arange(offsets[-1], dtype=np.int32)
            data = np.frombuffer(self.data, np.uint8)[source].tobytes()
        parts: list[Buffer] = []
        if self.validity is not None:
            bits = np.unpackbits(np.frombuffer(self.validity, np.uint8), bitorder="little")
            parts += padded(np.packbits(bits[rows], bitorder="little").tobytes())
        return parts + padded(offsets.tobytes()) + padded(data)


def padded(part: Buffer) -> list[Buffer]:
    """The part, followed by the zeros that align what comes next."""
    pad = pad8(len(part))
    return [part, ZEROS[:pad]] if pad else [part]


def lengths_of(values: Sequence[bytes]) -> Ints:
    """The length of every value; TypeError if one is not bytes."""
    return np.fromiter(map(len, values), np.int32, len(values))


def pack_binary(values: Sequence[bytes], lengths: Ints | None = None) -> list[Buffer]:
    """The parts of a column that holds these values, none of them null.

    `lengths` are theirs, if the caller knows them: finding them out is a third of the work.
    """
    count = len(values)
    data = b"".join(values)
    if len(data) > 0x7FFFFFFF:
        raise TooLargeError("a column holds at most 2 GiB")
    if count == 1:
        return [_OFFSETS_OF_ONE.pack(0, len(data)), *padded(data)]
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(lengths_of(values) if lengths is None else lengths, out=offsets[1:])
    if int(offsets[-1]) != len(data):
        raise TooLargeError("a value changed its length, or the column holds over 2 GiB")
    return padded(offsets.tobytes()) + padded(data)


def pack_nullable(values: Sequence[bytes | None]) -> list[Buffer]:
    """The parts of a column in which None is null."""
    valid = np.fromiter((value is not None for value in values), np.bool_, len(values))
    bitmap = np.packbits(valid, bitorder="little").tobytes()
    return padded(bitmap) + pack_binary([b"" if value is None else value for value in values])
