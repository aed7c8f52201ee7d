"""Checking and converting what users pass: an error says what is wrong before anything is sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from penstock.errors import InvalidError, TooLargeError
from penstock.wire.durability import Durability
from penstock.wire.limits import MAX_ID_BYTES, MAX_KEY_BYTES, MAX_LEASE_MS, MAX_NAME_BYTES
from penstock.wire.messages import OPTION_TYPES, Options

DEFAULT_PORT = 7411
_SCHEME = "penstock"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_ORDERED = {True: "queue", False: "no"}
OptionsT = TypeVar("OptionsT", bound=Options)


def address_of(url: str) -> tuple[str, int]:
    """Host and port of `penstock://host:port`, `host:port` or `host`."""
    text = url if "://" in url else f"{_SCHEME}://{url}"
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise InvalidError(f"address {url!r}: {error}") from error
    if parts.username is not None or parts.password is not None:  # which must not be shown
        raise InvalidError(f"the address of {host}: there are no users and passwords yet")
    if parts.scheme != _SCHEME or not host or parts.path not in ("", "/") or parts.query:
        raise InvalidError(f"address {url!r}: use penstock://host:port or host:port")
    return host, DEFAULT_PORT if port is None else port


def addresses_of(url: str) -> list[tuple[str, int]]:
    """Those of `penstock://host:port,host:port`: nodes of one cluster."""
    if not isinstance(url, str):
        raise InvalidError(f"an address is `penstock://host:port`, not {url!r}")
    scheme, found, rest = url.rpartition("://")
    return [address_of(f"{scheme}{found}{each.strip()}") for each in rest.split(",")]


def check_timeout(timeout: float) -> float:
    """The deadline of every call, in seconds."""
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
        raise InvalidError(f"timeout must be a number of seconds, not {timeout!r}")
    return timeout


def check_wait(timeout: float) -> None:
    """How long to wait for messages, in seconds; 0: not at all."""
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout >= 0:
        raise InvalidError(f"timeout must be a number of seconds, 0 or more, not {timeout!r}")


def check_version(version: int | None) -> int | None:
    """The version that an entry must have, if any."""
    if version is None or (type(version) is int and version >= 0):
        return version
    raise InvalidError(f"if_version must be a version as put() returns it, or 0, not {version!r}")


def check_stream(kind: str, found: object, wanted: type[object]) -> None:
    """InvalidError if something else than an opened queue, topic or table was given."""
    if not isinstance(found, wanted):
        given = f"the name {found!r}" if isinstance(found, str) else repr(found)
        raise InvalidError(f"this takes a {kind} as `fabric.{kind}(...)` gives it, not {given}")


def check_name(name: str) -> str:
    """A name of a queue, topic, table, group or producer."""
    if not isinstance(name, str) or not name:
        raise InvalidError(f"a name must be a string that is not empty, not {name!r}")
    if len(name.encode()) > MAX_NAME_BYTES:
        raise TooLargeError(f"a name of {len(name.encode())} bytes; the limit is {MAX_NAME_BYTES}")
    return name


def key_bytes(key: bytes | str, limit: int = MAX_KEY_BYTES, what: str = "a key") -> bytes:
    """A key, or whatever it is, as bytes: str is encoded as UTF-8."""
    if isinstance(key, str):
        key = key.encode()
    elif not isinstance(key, bytes):
        raise InvalidError(f"{what} must be bytes or str, not {type(key).__name__}")
    if len(key) > limit:
        raise TooLargeError(f"{what} of {len(key):,} bytes; the limit is {limit:,}")
    return key


def id_bytes(message_id: bytes | str) -> bytes:
    """A caller's id as bytes; not empty, as the empty id would be everybody's."""
    packed = key_bytes(message_id, MAX_ID_BYTES, "an id")
    if not packed:
        raise InvalidError("an id must not be empty")
    return packed


def key_column(keys: Sequence[bytes | str | None]) -> list[bytes | None]:
    """Many keys as bytes."""
    kinds = set(map(type, keys))
    if kinds == {bytes}:
        plain: list[bytes] = keys  # type: ignore[assignment]  # every one was looked at
        if max(map(len, plain)) <= MAX_KEY_BYTES:
            return plain  # type: ignore[return-value]  # bytes are among bytes | None
    return [None if key is None else key_bytes(key) for key in keys]


def check_headers(headers: Mapping[str, bytes] | None) -> None:
    """Headers are a map of str to bytes."""
    if headers is None:
        return
    if not isinstance(headers, Mapping):
        raise InvalidError(f"headers must be a mapping, not {type(headers).__name__}")
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, bytes):
            raise InvalidError(f"header {name!r}: names must be str and values bytes")


def moment_us(moment: object) -> int:
    """A time in microseconds since 1970: an aware datetime, or seconds since 1970."""
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise InvalidError("a datetime without time zone: use datetime.now(UTC) or the like")
        return (moment - _EPOCH) // _MICROSECOND
    if isinstance(moment, int | float) and not isinstance(moment, bool):
        return int(moment * 1_000_000)
    raise InvalidError(f"a time must be a datetime or seconds since 1970, not {moment!r}")


def moment_of(time_us: int) -> datetime:
    """The inverse of `moment_us`, in UTC."""
    return _EPOCH + timedelta(microseconds=time_us)


def milliseconds(name: str, seconds: float, most_ms: int = 0xFFFFFFFF) -> int:
    """A duration for the wire; rounded up, so that a short one is not none."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0:
        raise InvalidError(f"{name} must be a number of seconds, 0 or more, not {seconds!r}")
    if seconds * 1000 > most_ms:
        raise InvalidError(f"{name} of {seconds} s is over the limit of {most_ms / 1000:.0f} s")
    return -int(-seconds * 1000 // 1)


def lease_ms(lease: float | None) -> int:
    """A lease for the wire; 0 means the queue's."""
    if lease is None:
        return 0
    value = milliseconds("lease", lease, MAX_LEASE_MS)
    if not value:
        raise InvalidError("a lease of 0 seconds is over before it starts")
    return value


def due_us(delay: float, at: object | None) -> int:
    """When a message becomes visible: 0 now, < 0 so long after arrival, > 0 at a time."""
    if at is not None:
        if delay:
            raise InvalidError("delay and at exclude each other")
        return max(moment_us(at), 1)
    return -1000 * milliseconds("delay", delay, 1 << 50) if delay else 0


def durability_level(name: str | None) -> int:
    """The level of a name; the lowest for None, as the queue's own is then the higher."""
    if name is None:
        return 0
    try:
        return int(Durability.named(name))
    except (ValueError, AttributeError) as error:
        raise InvalidError(f"{error}") from error


def stream_options(kind: str, given: Mapping[str, Any]) -> dict[str, Any] | None:
    """The settings that were given, as the wire has them: `lease=30.0` becomes `lease_ms=30000`."""
    if not given:
        return None
    fields = OPTION_TYPES[kind].__struct_fields__
    settings: dict[str, Any] = {}
    for name, value in given.items():
        if name in fields:
            settings[name] = _ORDERED.get(value, value) if name == "ordered" else value
        elif f"{name}_ms" in fields:
            settings[f"{name}_ms"] = milliseconds(name, value, 1 << 50)
        else:
            known = ", ".join(field.removesuffix("_ms") for field in fields)
            raise InvalidError(f"a {kind} has no setting {name!r}; there are {known}")
    read_options(OPTION_TYPES[kind], settings)
    if "durability" in settings:
        durability_level(settings["durability"])
    return settings


def read_options(kind: type[OptionsT], settings: Mapping[str, Any]) -> OptionsT:
    """Settings as their type, without those that only a newer node knows."""
    known = {name: settings[name] for name in kind.__struct_fields__ if name in settings}
    try:
        return msgspec.convert(known, kind)
    except msgspec.ValidationError as error:
        raise InvalidError(f"settings: {error}") from error
