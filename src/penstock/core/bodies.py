"""Reading the bodies of hot frames; ProtocolError or InvalidError if they make no sense."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.errors import InvalidError, ProtocolError
from penstock.wire.frames import PushExtra

_decode_extra = msgspec.msgpack.Decoder(PushExtra).decode


def unpack(layout: Any, body: memoryview) -> tuple[Any, ...]:
    """The fields at the beginning of a body."""
    if len(body) < layout.size:
        raise ProtocolError(f"a body of {len(body)} bytes is too short")
    fields: tuple[Any, ...] = layout.unpack_from(body)
    return fields


def read_extra(packed: memoryview) -> PushExtra:
    """The extra part of a push."""
    size = int.from_bytes(packed[:4], "little")
    if size > len(packed) - 4:
        raise ProtocolError("the extra part of a push is cut short")
    try:
        return _decode_extra(packed[4 : 4 + size])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidError(f"the extra part of a push: {error}") from error
