"""Merged batches: messages that were pushed one by one, joined for the way to a client.

A merged batch is made by the node for one answer and never stored. It is a batch like any other,
with a checksum of its own; what its header and its row offsets mean is in
`docs/internals/protocol.md`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from penstock.wire.batch import HEADER, HEADER_BYTES, MAGIC, VERSION, Columns, seal
from penstock.wire.buffers import Buffer, pad8
from penstock.wire.columns import pack_binary, pack_nullable, padded
from penstock.wire.numeric import np

MERGE_FROM = 8  # fewer batches in a row are cheaper as they are
MERGE_BYTES = 4096  # a larger batch is not worth copying

# From byte 41 of a batch: codec, columns, count, timestamp, and the two offsets of one value.
_ONE = struct.Struct("<BxBI16xq24xii")
_ONE_AT = 41
_VALUE_AT = HEADER_BYTES + 8
_PAIR = struct.Struct("<ii")
_TIME = struct.Struct("<q")
_MERGEABLE = Columns.KEYS | Columns.KEY_NULLS | Columns.TIMES


OneRow = tuple[Buffer, bytes | None, int]  # value, key and timestamp of the message of a batch


def one_row(batch: Buffer) -> OneRow | None:
    """The message of a batch that can be merged; None if it has to stay as it is.

    The batch must be valid, as all that a node stores are.
    """
    if not _VALUE_AT <= len(batch) <= MERGE_BYTES:
        return None
    codec, columns, count, timestamp_us, _, end = _ONE.unpack_from(batch, _ONE_AT)
    if codec or count != 1 or columns & ~_MERGEABLE:
        return None
    end += _VALUE_AT
    if not columns:
        return batch[_VALUE_AT:end], None, timestamp_us
    return _with_columns(batch, batch[_VALUE_AT:end], columns, timestamp_us, end + pad8(end))


def _with_columns(
    batch: Buffer, value: Buffer, columns: int, timestamp_us: int, at: int
) -> OneRow:
    key: bytes | None = None
    if columns & Columns.KEYS:
        valid = True
        if columns & Columns.KEY_NULLS:
            valid, at = bool(batch[at] & 1), at + 8
        end = at + 8 + _PAIR.unpack_from(batch, at)[1]
        key = bytes(batch[at + 8 : end]) if valid else None
        at = end + pad8(end)
    if columns & Columns.TIMES:
        (timestamp_us,) = _TIME.unpack_from(batch, at)
    return value, key, timestamp_us


def merge(rows: Sequence[OneRow], base: int, owners: Sequence[int] | None = None) -> bytearray:
    """One batch of these messages. `owners`, if given, become its row offsets."""
    values, keys, times = zip(*rows, strict=True)
    columns = Columns.TIMES
    parts: list[Buffer] = [b"", *pack_binary(values)]
    if keys.count(None) < len(keys):
        columns |= Columns.KEYS
        if None in keys:
            columns |= Columns.KEY_NULLS
            parts += pack_nullable(keys)
        else:
            parts += pack_binary(keys)
    parts.append(np.array(times, np.int64).tobytes())
    if owners is not None:
        columns |= Columns.DELTAS
        parts += padded(np.array(owners, np.int32).tobytes())
    parts[0] = HEADER.pack(
        MAGIC, HEADER_BYTES, base, 0, 0, 0, 0, VERSION, 0, 0, columns, len(rows), 0, 0, times[0],
        0, 0, 0, 0, sum(map(len, parts)),
    )  # fmt: skip
    return seal(parts)
