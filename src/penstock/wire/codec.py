"""Compression of batch bodies. Opening is bounded by the size that the header states."""

from __future__ import annotations

import lz4.block
import zstandard

from penstock.errors import InvalidError, ProtocolError
from penstock.wire.buffers import Buffer
from penstock.wire.columns import padded
from penstock.wire.limits import MAX_RAW_BYTES

LZ4 = 1
ZSTD = 2
NAMES = {"none": 0, "lz4": LZ4, "zstd": ZSTD}


def compress(name: str, parts: list[Buffer]) -> tuple[int, list[Buffer]]:
    """Codec number and parts of the compressed body; the parts as they are if it does not pay."""
    if name not in NAMES:
        raise InvalidError(f"compression {name!r}: use none, lz4 or zstd")
    codec = NAMES[name]
    raw = b"".join(parts)
    if codec == LZ4:
        packed: bytes = lz4.block.compress(raw, store_size=False)
    else:
        packed = zstandard.ZstdCompressor(level=3, write_content_size=True).compress(raw)
    stored = len(packed).to_bytes(8, "little") + packed
    return (codec, padded(stored)) if len(stored) < len(raw) else (0, [raw])


def decompress(codec: int, packed: memoryview, raw_length: int) -> bytes:
    """The body; ProtocolError if it is not what the header says or larger than allowed."""
    if raw_length > MAX_RAW_BYTES:
        raise ProtocolError(f"a compressed body opens to {raw_length:,} bytes; too large")
    size = int.from_bytes(packed[:8], "little")
    if size > len(packed) - 8:
        raise ProtocolError("a compressed body is cut short")
    data = bytes(packed[8 : 8 + size])
    try:
        if codec == LZ4:
            raw: bytes = lz4.block.decompress(data, uncompressed_size=raw_length)
        elif codec == ZSTD:
            if zstandard.frame_content_size(data) != raw_length:
                raise ProtocolError("a compressed body opens to another size than stated")
            raw = zstandard.ZstdDecompressor().decompress(data, max_output_size=raw_length)
        else:
            raise ProtocolError(f"unknown codec {codec}")
    except (lz4.block.LZ4BlockError, zstandard.ZstdError) as error:
        raise ProtocolError(f"a compressed body cannot be opened: {error}") from error
    if len(raw) != raw_length:
        raise ProtocolError("a compressed body opens to another size than stated")
    return raw
