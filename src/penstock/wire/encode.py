"""Making a batch from a producer's lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from penstock.errors import InvalidError, TooLargeError
from penstock.wire import codec as codecs
from penstock.wire.batch import (
    _ORIGIN,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    VERSION,
    Columns,
    Origin,
    seal,
)
from penstock.wire.buffers import Buffer
from penstock.wire.columns import Ints, pack_binary, pack_nullable, padded
from penstock.wire.limits import MAX_BATCH_MESSAGES, MAX_PRIORITY

_pack_headers = msgspec.msgpack.Encoder().encode


def encode_batch(
    values: Sequence[bytes],
    *,
    timestamp_us: int,
    keys: Sequence[bytes | None] | None = None,
    timestamps_us: Sequence[int] | None = None,
    headers: Sequence[Mapping[str, bytes] | None] | None = None,
    producer: int = 0,
    sequence: int = 0,
    priority: int = 0,
    due_us: int = 0,
    ttl_ms: int = 0,
    generation: int = 0,
    instance: int = 0,
    compression: str = "none",
    origin: Origin | None = None,
    lengths: Ints | None = None,
) -> bytearray:
    """A sealed batch. The lists must be equally long and are not kept.

    `lengths` are those of the values, if the caller knows them already.
    InvalidError names the argument that is wrong; TooLargeError the limit that was passed.
    """
    count = len(values)
    _check(count, priority, keys, timestamps_us, headers)
    try:
        columns, parts = _body(values, keys, timestamps_us, headers, origin, lengths)
    except TypeError as error:
        raise InvalidError(f"values and keys must be bytes: {error}") from error
    raw_length = sum(map(len, parts))
    codec = 0
    if compression != "none":
        codec, parts = codecs.compress(compression, parts)
    header = HEADER.pack(
        MAGIC, HEADER_BYTES, 0, 0, 0, 0, 0, VERSION, codec, priority, columns, count, producer,
        sequence, timestamp_us, due_us, ttl_ms, generation, instance, raw_length,
    )  # fmt: skip
    return seal([header, *parts])


def _check(count: int, priority: int, *columns: Sequence[object] | None) -> None:
    if not 0 < count <= MAX_BATCH_MESSAGES:
        raise TooLargeError(f"a batch has 1 to {MAX_BATCH_MESSAGES:,} messages, not {count:,}")
    if not 0 <= priority <= MAX_PRIORITY:
        raise InvalidError(f"priority {priority}: use 0 (lowest) to {MAX_PRIORITY}")
    for column in columns:
        if column is not None and len(column) != count:
            raise InvalidError(f"a column has {len(column)} entries for {count} values")


def _body(
    values: Sequence[bytes],
    keys: Sequence[bytes | None] | None,
    timestamps_us: Sequence[int] | None,
    headers: Sequence[Mapping[str, bytes] | None] | None,
    origin: Origin | None,
    lengths: Ints | None,
) -> tuple[int, list[Buffer]]:
    columns = 0
    parts: list[Buffer] = []
    if origin is not None:
        columns |= Columns.ORIGIN
        parts.append(_ORIGIN.pack(*origin))
    parts += pack_binary(values, lengths)
    if keys is not None:
        columns |= Columns.KEYS
        if None in keys:
            columns |= Columns.KEY_NULLS
            parts += pack_nullable(keys)
        else:
            parts += pack_binary(keys)  # type: ignore[arg-type]  # no None in it
    if timestamps_us is not None:
        columns |= Columns.TIMES
        parts += padded(np.asarray(timestamps_us, np.int64).tobytes())
    if headers is not None:
        columns |= Columns.HEADERS
        parts += pack_binary([_pack_headers(row) if row else b"" for row in headers])
    return columns, parts
