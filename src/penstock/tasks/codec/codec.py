"""The codec of a task set: what both sides pack values with, and read them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec.msgpack import Ext

from penstock.errors import PenstockError
from penstock.tasks.codec.arrays import unpack_array, unpack_arrow
from penstock.tasks.codec.classes import (
    Trusted,
    enum_member,
    is_dataclass,
    is_enum,
    is_named_tuple,
    is_struct,
    make_dataclass,
    make_named_tuple,
    make_struct,
    trusted_class,
)
from penstock.tasks.codec.kinds import Kind
from penstock.tasks.codec.packing import PLAIN, Packing, Parent, encode
from penstock.tasks.codec.pickles import checked_key, unpack_signed
from penstock.tasks.codec.scalars import UNPACKERS
from penstock.tasks.errors import SerialisationError
from penstock.wire.buffers import Buffer

__all__ = ["Codec", "Parent", "Trusted", "pack_blob"]

T = TypeVar("T")
Call = tuple[list[Any], dict[str, Any]]


class Codec:
    """Packs and reads values. Threads may share it."""

    def __init__(
        self, trusted: Trusted, pickle_key: bytes | None = None, home: str = ""
    ) -> None:
        """`trusted` says of a top-level package whether classes of it may be made from bytes.
        `pickle_key`: turns on pickles, signed with it, for types that are not supported. `home`:
        the task set of the tasks that values are arguments of."""
        self.home = home
        self._trusted = trusted
        self._pickle_key = checked_key(pickle_key)
        reading = _Reading(self)
        self._unpack = msgspec.msgpack.Decoder(ext_hook=reading.extension).decode
        self._unpack_call = msgspec.msgpack.Decoder(Call, ext_hook=reading.extension).decode

    def pack(self, value: object) -> bytes:
        """A result as bytes; SerialisationError names the path to what cannot be sent."""
        if type(value) in PLAIN:
            try:
                return encode(value)
            except (OverflowError, UnicodeEncodeError):
                pass  # told about, or packed as a long integer, below
        return self._packed(lambda packing: packing.turned(value), "result")[0]

    def unpack(self, packed: Buffer, large: Sequence[Buffer] = ()) -> Any:
        """The value again; `large` are the packed values that it refers to. Arrays are views of
        what they were packed into, which must not change after this. SerialisationError if it is
        no value, or holds something that is not trusted."""
        if not large:
            return _checked(self._unpack, packed)
        reading = _Reading(self, large=large)
        return _checked(msgspec.msgpack.Decoder(ext_hook=reading.extension).decode, packed)

    def pack_call(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[bytes, list[bytes]]:
        """Arguments as bytes, and the ids of the tasks whose results are among them."""
        if PLAIN.issuperset(map(type, args)) and PLAIN.issuperset(map(type, kwargs.values())):
            try:
                return encode((args, kwargs)), []
            except (OverflowError, UnicodeEncodeError):
                pass

        def turned(packing: Packing) -> Any:
            return packing.each(list(args)), packing.members(dict(kwargs), "[{!r}]")

        return self._packed(turned, "arguments")

    def unpack_call(self, packed: Buffer, parents: Sequence[Any] = ()) -> Call:
        """The arguments again, with the parents' results in their places."""
        unpack = self._unpack_call
        if parents:
            reading = _Reading(self, parents)
            unpack = msgspec.msgpack.Decoder(Call, ext_hook=reading.extension).decode
        call: Call = _checked(unpack, packed)
        return call

    def _packed(self, turn: Callable[[Packing], Any], whole: str) -> tuple[bytes, list[bytes]]:
        try:
            try:
                packing = Packing(self._pickle_key, self.home)
                return encode(turn(packing)), list(packing.parents)
            except OverflowError:
                packing = Packing(self._pickle_key, self.home, wide=True)
                return encode(turn(packing)), list(packing.parents)
        except SerialisationError as error:
            raise error.under(whole) from error.__cause__
        except RecursionError:
            raise SerialisationError(
                f"{whole}: nested too deeply, or in itself",
                advice="Send a flat list of its parts, which name each other by number.",
            ) from None
        except UnicodeEncodeError as error:
            raise SerialisationError(f"{whole}: a string that is not text: {error}") from error


def pack_blob(index: int) -> bytes:
    """What stands for the large value of this number."""
    return encode(Ext(int(Kind.BLOB), encode(index)))


def _checked(unpack: Callable[[Buffer], Any], packed: Buffer) -> Any:
    try:
        return unpack(packed)
    except PenstockError:
        raise
    except Exception as error:  # bytes of a stranger find ways to fail that no list would foresee
        raise SerialisationError(f"bytes that are no value: {error}") from error


class _Reading:
    """Reads extensions; `parents` are the results that stand in for references, `large` the packed
    values that do."""

    def __init__(
        self, codec: Codec, parents: Sequence[Any] = (), large: Sequence[Buffer] = ()
    ) -> None:
        self._codec = codec
        self._parents = parents
        self._large = large

    def extension(self, kind: int, data: memoryview) -> Any:
        if unpacker := UNPACKERS.get(kind):
            return unpacker(data)
        if reader := _READERS.get(kind):
            return reader(self, data)
        raise SerialisationError(
            f"a value of the unknown kind {kind}",
            advice="Both sides must run releases of Penstock that know it.",
        )

    def nested(self, data: memoryview, kind: type[T]) -> T:
        """What lies in an extension, which must be of this type."""
        value = msgspec.msgpack.Decoder(ext_hook=self.extension).decode(data)
        if type(value) is not kind:
            raise SerialisationError(f"a {type(value).__name__} where a {kind.__name__} belongs")
        return value

    def _class(self, path: Any, base: Callable[[type], bool]) -> Any:
        if type(path) is not str:
            raise SerialisationError("a class without an import path")
        return trusted_class(path, base, self._codec._trusted)

    def enum(self, data: memoryview) -> Any:
        path, name, value = self.nested(data, list)
        return enum_member(self._class(path, is_enum), name, value)

    def dataclass(self, data: memoryview) -> Any:
        path, held = self.nested(data, list)
        return make_dataclass(self._class(path, is_dataclass), held)

    def named_tuple(self, data: memoryview) -> Any:
        path, held = self.nested(data, list)
        return make_named_tuple(self._class(path, is_named_tuple), held)

    def struct(self, data: memoryview) -> Any:
        path, held = self.nested(data, list)
        return make_struct(self._class(path, is_struct), held)

    def parent(self, data: memoryview) -> Any:
        index = self.nested(data, int)
        if not 0 <= index < len(self._parents):
            raise SerialisationError(f"the result of parent {index} is not at hand")
        return self._parents[index]

    def blob(self, data: memoryview) -> Any:
        index = self.nested(data, int)
        if not 0 <= index < len(self._large):
            raise SerialisationError(f"the large value {index} is not at hand")
        return self._codec._unpack(self._large[index])

    def pickle(self, data: memoryview) -> Any:
        return unpack_signed(data, self._codec._pickle_key)


_READERS: dict[int, Callable[[_Reading, memoryview], Any]] = {
    Kind.TUPLE: lambda reading, data: tuple(reading.nested(data, list)),
    Kind.SET: lambda reading, data: set(reading.nested(data, list)),
    Kind.FROZENSET: lambda reading, data: frozenset(reading.nested(data, list)),
    Kind.PAIRS: lambda reading, data: dict(reading.nested(data, list)),
    Kind.RANGE: lambda reading, data: range(*reading.nested(data, list)),
    Kind.ENUM: _Reading.enum,
    Kind.DATACLASS: _Reading.dataclass,
    Kind.STRUCT: _Reading.struct,
    Kind.NAMED_TUPLE: _Reading.named_tuple,
    Kind.PARENT: _Reading.parent,
    Kind.PICKLE: _Reading.pickle,
    Kind.BLOB: _Reading.blob,
    Kind.ARRAY: lambda _, data: unpack_array(data),
    Kind.ARROW: lambda _, data: unpack_arrow(data),
}
