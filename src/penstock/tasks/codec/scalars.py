"""Types of the standard library that hold no other values."""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from pathlib import Path, PosixPath, PurePath, PurePosixPath, PureWindowsPath, WindowsPath
from typing import Any, TypeAlias
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec

from penstock.tasks.codec.kinds import Kind
from penstock.tasks.errors import SerialisationError

Zone: TypeAlias = float | str | None  # seconds east of UTC, or a name, or none

_COMPLEX = struct.Struct("<dd")
_PATHS = {"Path": Path, "PurePosixPath": PurePosixPath, "PureWindowsPath": PureWindowsPath}
_encode = msgspec.msgpack.Encoder().encode
_read_moment = msgspec.msgpack.Decoder(tuple[str, int, Zone]).decode
_read_ints = msgspec.msgpack.Decoder(tuple[int, int, int]).decode
_read_strings = msgspec.msgpack.Decoder(tuple[str, str]).decode


def pack_int(value: int) -> bytes:
    """Two's complement, as short as it goes."""
    return value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)


def _pack_moment(value: datetime | time) -> bytes:
    zone = _pack_zone(value.tzinfo)
    return _encode((value.replace(tzinfo=None, fold=0).isoformat(), value.fold, zone))


def _pack_zone(zone: tzinfo | None) -> Zone:
    if zone is None:
        return None
    if isinstance(zone, timezone):
        return zone.utcoffset(None).total_seconds()
    if isinstance(zone, ZoneInfo) and zone.key:
        return zone.key
    raise SerialisationError(
        f"a time zone of {type(zone).__qualname__} cannot be sent",
        advice="Use datetime.UTC, a fixed timezone or a ZoneInfo.",
    )


def _unpack_zone(zone: Zone) -> tzinfo | None:
    if zone is None:
        return None
    return ZoneInfo(zone) if isinstance(zone, str) else timezone(timedelta(seconds=zone))


def _unpack_datetime(data: memoryview) -> datetime:
    text, fold, zone = _read_moment(data)
    return datetime.fromisoformat(text).replace(tzinfo=_unpack_zone(zone), fold=fold)


def _unpack_time(data: memoryview) -> time:
    text, fold, zone = _read_moment(data)
    return time.fromisoformat(text).replace(tzinfo=_unpack_zone(zone), fold=fold)


def _pack_path(value: PurePath) -> bytes:
    name = "Path" if isinstance(value, Path) else type(value).__name__
    return _encode((name, str(value)))


def _unpack_path(data: memoryview) -> PurePath:
    name, text = _read_strings(data)
    made: PurePath = _PATHS[name](text)
    return made


Packer: TypeAlias = tuple[Kind, Callable[[Any], bytes]]

PACKERS: dict[type, Packer] = {
    complex: (Kind.COMPLEX, lambda value: _COMPLEX.pack(value.real, value.imag)),
    datetime: (Kind.DATETIME, _pack_moment),
    date: (Kind.DATE, lambda value: value.isoformat().encode()),
    time: (Kind.TIME, _pack_moment),
    timedelta: (
        Kind.TIMEDELTA,
        lambda value: _encode((value.days, value.seconds, value.microseconds)),
    ),
    Decimal: (Kind.DECIMAL, lambda value: str(value).encode()),
    UUID: (Kind.UUID, lambda value: value.bytes),
    bytearray: (Kind.BYTEARRAY, bytes),
    **dict.fromkeys(
        (PosixPath, WindowsPath, PurePosixPath, PureWindowsPath), (Kind.PATH, _pack_path)
    ),
}

UNPACKERS: dict[int, Callable[[memoryview], Any]] = {
    Kind.INT: lambda data: int.from_bytes(data, "little", signed=True),
    Kind.COMPLEX: lambda data: complex(*_COMPLEX.unpack(data)),
    Kind.DATETIME: _unpack_datetime,
    Kind.DATE: lambda data: date.fromisoformat(bytes(data).decode()),
    Kind.TIME: _unpack_time,
    Kind.TIMEDELTA: lambda data: timedelta(*_read_ints(data)),
    Kind.DECIMAL: lambda data: Decimal(bytes(data).decode()),
    Kind.UUID: lambda data: UUID(bytes=bytes(data)),
    Kind.PATH: _unpack_path,
    Kind.BYTEARRAY: bytearray,
}
