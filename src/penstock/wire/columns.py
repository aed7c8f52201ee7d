"""Columns of a batch, read in place: values are sliced out of them, rows taken to new ones."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from penstock.wire import packing
from penstock.wire.buffers import ZEROS, Buffer, pad8
from penstock.wire.numeric import Ints, np
from penstock.wire.numeric import Longs as Longs
from penstock.wire.numeric import Rows as Rows

_WORD = 0xFFFF_FFFF
_FEW = 16  # below this NumPy's fixed cost is larger than a plain loop's


class BinaryColumn:
    """Byte strings as Arrow keeps them: int32 offsets, data, a validity bitmap if some are null.

    Views, not copies: the column is valid as long as the buffer that it was read from.
    """

    __slots__ = ("_at", "_bitmap", "_body", "_length", "count")

    def __init__(self, body: memoryview, at: int, count: int, bitmap: int, length: int) -> None:
        self._body = body
        self._at = at  # of the offsets; the bitmap is right before them
        self._bitmap = bitmap
        self._length = length
        self.count = count

    @classmethod
    def read(
        cls, body: memoryview, at: int, count: int, nullable: bool
    ) -> tuple[BinaryColumn, int]:
        """The column at `at` and the position after it; ProtocolError if it does not fit."""
        bitmap = packing.bitmap_bytes(count) if nullable else 0
        at += bitmap
        length = packing.data_length(body, at, count)
        column = cls(body, at, count, bitmap, length)
        return column, column._data_at + length + pad8(length)

    @property
    def _data_at(self) -> int:
        size = 4 * (self.count + 1)
        return self._at + size + pad8(size)

    @property
    def offsets(self) -> Ints:
        """Where each value starts in the data, and where the last one ends."""
        return np.frombuffer(self._body, np.int32, self.count + 1, self._at)

    @property
    def data(self) -> memoryview:
        """The values, one after the other."""
        start = self._data_at
        return self._body[start : start + self._length]

    @property
    def validity(self) -> memoryview | None:
        """A bit for each row, set where it is not null; None if no row is."""
        if not self._bitmap:
            return None
        start = self._at - self._bitmap
        return self._body[start : start + (self.count + 7) // 8]

    def tolist(self) -> list[bytes]:
        """All values; a null is the empty string here."""
        return packing.slice_values(self._body, self._at, self.count)

    def tolist_nullable(self) -> list[bytes | None]:
        """All values, nulls as None."""
        if not self._bitmap:
            return list(self.tolist())
        return packing.slice_nullable(self._body, self._at - self._bitmap, self.count)

    def span(self, first: int, count: int) -> list[Buffer]:
        """The parts of a new column with `count` rows from one on. Not for columns with nulls."""
        at = self._at + 4 * first
        if count <= _FEW:
            ends = struct.unpack_from(f"<{count + 1}i", self._body, at)
            start, last = ends[0], ends[-1]
            # Masked as NumPy does it: what a producer wrote may be nonsense.
            offsets = struct.pack(f"<{count + 1}I", *[(end - start) & _WORD for end in ends])
        else:
            many = np.frombuffer(self._body, np.int32, count + 1, at)
            start, last = int(many[0]), int(many[-1])
            offsets = (many - start).tobytes()
        return padded(offsets) + padded(self.data[start:last])

    def take(self, rows: Rows) -> list[Buffer]:
        """The parts of a new column with only these rows, in their order."""
        before = self.offsets
        starts = before[:-1][rows]
        widths = before[1:][rows] - starts
        offsets = np.zeros(len(rows) + 1, np.int32)
        np.cumsum(widths, out=offsets[1:])
        if len(rows) and int(rows[-1]) - int(rows[0]) + 1 == len(rows):  # contiguous: one slice
            data: Buffer = self.data[int(starts[0]) : int(before[int(rows[-1]) + 1])]
        else:
            source = np.repeat(starts - offsets[:-1], widths)
            source += np.arange(offsets[-1], dtype=np.int32)
            data = np.frombuffer(self.data, np.uint8)[source].tobytes()
        parts: list[Buffer] = []
        validity = self.validity
        if validity is not None:
            bits = np.unpackbits(np.frombuffer(validity, np.uint8), bitorder="little")
            parts += padded(np.packbits(bits[rows], bitorder="little").tobytes())
        return parts + padded(offsets.tobytes()) + padded(data)


def padded(part: Buffer) -> list[Buffer]:
    """The part, followed by the zeros that align what comes next."""
    pad = pad8(len(part))
    return [part, ZEROS[:pad]] if pad else [part]


def pack_binary(values: Sequence[bytes]) -> list[Buffer]:
    """The parts of a column that holds these values, none of them null."""
    return [packing.pack_values(values)]


def pack_nullable(values: Sequence[bytes | None]) -> list[Buffer]:
    """The parts of a column in which None is null."""
    return [packing.pack_nullable(values)]
