"""Bytes of a stranger: they never run code, and raise nothing but errors of Penstock."""

from __future__ import annotations

import contextlib
import pickle
import sys
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tasks.shapes import Colour, Exploding, Pickled, Point, explode

from penstock.errors import InvalidError, PenstockError
from penstock.tasks.codec import Codec
from penstock.tasks.codec.kinds import Kind
from penstock.tasks.codec.packing import encode
from penstock.tasks.errors import SerialisationError

KEY = b"sixteen bytes or more"
codec = Codec(lambda package: package == "tests")
VALUES: list[Any] = [
    [1, (2, {"x": {3.5, None}})],
    {(1, 2): Point(Colour.BLUE, [b"bytes"])},
]


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_hostile_bytes_raise_only_errors_of_penstock(data: bytes) -> None:
    for read in (codec.unpack, codec.unpack_call):
        with contextlib.suppress(PenstockError):
            read(data)


@settings(deadline=None)
@given(st.sampled_from(list(Kind)), st.binary(max_size=60))
def test_hostile_extensions_raise_only_errors_of_penstock(kind: Kind, data: bytes) -> None:
    with contextlib.suppress(PenstockError):
        codec.unpack(encode(msgspec.msgpack.Ext(int(kind), data)))


@pytest.mark.parametrize("value", VALUES)
def test_damaged_values_raise_only_errors_of_penstock(value: Any) -> None:
    whole = codec.pack(value)
    for place in range(len(whole)):
        for byte in (0, 0x80, 0x91, 0xC1, 0xC7, 0xFF, whole[place] ^ 1):
            damaged = whole[:place] + bytes([byte]) + whole[place + 1 :]
            with contextlib.suppress(PenstockError):
                codec.unpack(damaged)


def extension(kind: Kind, value: Any) -> bytes:
    return encode(msgspec.msgpack.Ext(int(kind), encode(value)))


@pytest.mark.parametrize(
    "path",
    [
        "tests.tasks.shapes:Exploding",
        "tests.tasks.shapes:explode",
        "tests.tasks.shapes:Colour.__class__",
        "tests.tasks.shapes:",
        "tests.tasks.shapes",
        "tests.no_such_module:Thing",
        "os:system",
        "subprocess:Popen",
        "builtins:dict",
    ],
)
@pytest.mark.parametrize("kind", [Kind.DATACLASS, Kind.STRUCT])
def test_only_data_classes_of_trusted_packages_are_made(path: str, kind: Kind) -> None:
    with pytest.raises(SerialisationError):
        codec.unpack(extension(kind, (path, {})))
    assert Exploding.made == 0


def test_no_module_is_imported_because_bytes_name_it() -> None:
    name = "tests.tasks.test_importing_sentinel"
    with pytest.raises(SerialisationError, match="not loaded"):
        codec.unpack(extension(Kind.DATACLASS, (f"{name}:Thing", {})))
    assert name not in sys.modules


def test_classes_of_packages_that_are_not_trusted_are_refused() -> None:
    with pytest.raises(SerialisationError, match="not of a package that is trusted"):
        Codec(lambda package: False).unpack(codec.pack(Point(1, 2)))


def test_fields_that_do_not_fit_are_refused_and_missing_ones_get_their_default() -> None:
    path = "tests.tasks.shapes:Point"
    assert codec.unpack(extension(Kind.DATACLASS, (path, {"x": 1}))) == Point(1)
    with pytest.raises(SerialisationError, match="no field 'z'"):
        codec.unpack(extension(Kind.DATACLASS, (path, {"x": 1, "z": 1})))
    with pytest.raises(SerialisationError, match="without its field 'x'"):
        codec.unpack(extension(Kind.DATACLASS, (path, {})))


class Bomb:
    def __reduce__(self) -> Any:
        return explode, ()


def test_pickles_are_off_unless_both_sides_have_the_key() -> None:
    signer = Codec(lambda package: True, KEY)
    packed = signer.pack([Pickled(3)])
    assert signer.unpack(packed) == [Pickled(3)]
    with pytest.raises(SerialisationError, match="turned off"):
        codec.unpack(packed)
    with pytest.raises(SerialisationError, match="not signed with this key"):
        Codec(lambda package: True, KEY + b"!").unpack(packed)


@settings(deadline=None)
@given(st.binary(max_size=40))
def test_a_pickle_without_the_right_signature_is_never_read(signature: bytes) -> None:
    bomb = msgspec.msgpack.Ext(int(Kind.PICKLE), signature + pickle.dumps(Bomb()))
    with pytest.raises(SerialisationError):
        Codec(lambda package: True, KEY).unpack(encode(bomb))
    assert Exploding.made == 0


def test_a_short_key_is_refused() -> None:
    with pytest.raises(InvalidError, match="at least 16 bytes"):
        Codec(lambda package: True, b"short")
