"""A value on its way to bytes: what plain msgpack would forget becomes an extension."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

import msgspec
from msgspec.msgpack import Ext

from penstock.tasks.codec.arrays import is_array, is_arrow, pack_array, pack_arrow
from penstock.tasks.codec.classes import fields_of, is_dataclass, is_named_tuple, known_path
from penstock.tasks.codec.frames import is_frame, pack_frame
from penstock.tasks.codec.kinds import Kind
from penstock.tasks.codec.pickles import pack_signed
from penstock.tasks.codec.scalars import PACKERS, pack_int
from penstock.tasks.errors import SerialisationError
from penstock.wire.buffers import Buffer

PLAIN = frozenset({int, str, float, bool, type(None), bytes})  # msgpack keeps them as they are
_WITHOUT_INT = PLAIN - {int}
_SUPPORTED = (
    "Plain data, tuples, sets, datetime, Decimal, UUID, Path, dataclasses, named tuples, Structs, "
    "Enums, NumPy, Arrow and DataFrames can be sent; for other types, give both sides the same "
    "pickle_key."
)
encode = msgspec.msgpack.Encoder().encode


_INSTEAD = [  # of what people send most, by the names of classes, which need not be loaded here
    ("pandas.core.frame.DataFrame", "Send pandas.DataFrame(…) of it."),
    ("pandas.core.series.Series", "Send series.to_numpy(), or pyarrow.Array.from_pandas(series)."),
    ("polars.dataframe.frame.DataFrame", "Send polars.DataFrame(…) of it."),
    ("polars.lazyframe.frame.LazyFrame", "Send its .collect()."),
    ("pandas._libs.tslibs.timestamps.Timestamp", "Send its .to_pydatetime()."),
    ("builtins.dict", "Send dict(…) of it."),
    ("builtins.tuple", "Send a dataclass instead, or tuple(…) of it."),
    ("builtins.list", "Send list(…) of it."),
    ("builtins.generator", "Send list(…) of it."),
    ("concurrent.futures._base.Future", "Send its result; only futures of tasks stand for theirs."),
]


def _advice(kind: type) -> str:
    names = {f"{each.__module__}.{each.__qualname__}" for each in kind.__mro__}
    return next((advice for name, advice in _INSTEAD if name in names), _SUPPORTED)


def _made_of_fields(kind: type) -> Kind | None:
    if issubclass(kind, msgspec.Struct):
        return Kind.STRUCT
    if is_dataclass(kind):
        return Kind.DATACLASS
    return Kind.NAMED_TUPLE if is_named_tuple(kind) else None


def _ext(kind: Kind, data: Buffer) -> Ext:
    return Ext(int(kind), data)  # msgspec takes no subclass of int


class Parent:
    """A value that another task will give: as an argument, it makes that task a parent of this."""

    id: bytes
    """The id of that task."""
    kept: bool = True
    """Whether its outcome is kept, for others to find."""
    home: str = ""
    """The task set that it is of, with the namespace, if that is known."""

    def strange(self, home: str) -> bool:
        """Whether it is known to be of another task set than this one."""
        return bool(self.home and home and self.home != home)


class Packing:
    """Turns one value into what msgspec packs as it is. `parents`: ids of the tasks whose results
    are in it, in the order of their first mention."""

    def __init__(self, pickle_key: bytes | None, home: str = "", wide: bool = False) -> None:
        """`home`: the task set whose outcomes can be found, if that is known. `wide`: it has
        integers beyond 64 bits somewhere, so look at every one."""
        self._pickle_key = pickle_key
        self._home = home
        self._plain = _WITHOUT_INT if wide else PLAIN
        self.parents: dict[bytes, int] = {}

    def turned(self, value: Any) -> Any:
        """The value itself if it is plain through and through, else something that stands for it.
        SerialisationError with the path to what cannot be sent."""
        kind = type(value)
        if kind in self._plain:
            return value
        if found := _CONTAINERS.get(kind):
            return found(self, value)
        if packer := PACKERS.get(kind):
            return _ext(packer[0], packer[1](value))
        return self._other(kind, value)

    def each(self, values: Any) -> Any:
        """As `turned`, for everything in a sequence."""
        if self._plain.issuperset(map(type, values)):
            return values
        turned = []
        for index, value in enumerate(values):
            try:
                turned.append(self.turned(value))
            except SerialisationError as error:
                raise error.under(f"[{index}]") from error.__cause__
        return turned

    def mapping(self, value: dict[Any, Any]) -> Any:
        """A dict with plain keys as one, any other as pairs."""
        if not self._plain.issuperset(map(type, value)):
            return self._nested(Kind.PAIRS, [self.each(pair) for pair in value.items()])
        if self._plain.issuperset(map(type, value.values())):
            return value
        return self.members(value, "[{!r}]")

    def members(self, value: dict[Any, Any], step: str) -> dict[Any, Any]:
        """A dict with what stands for its values; `step` leads to one of them in an error."""
        turned = {}
        for name, each in value.items():
            try:
                turned[name] = self.turned(each)
            except SerialisationError as error:
                raise error.under(step.format(name)) from error.__cause__
        return turned

    def _int(self, value: int) -> Any:
        return value if -(1 << 63) <= value < 1 << 64 else _ext(Kind.INT, pack_int(value))

    def _set(self, kind: Kind, value: Any) -> Ext:
        if self._plain.issuperset(map(type, value)):
            return self._nested(kind, list(value))
        try:
            return self._nested(kind, [self.turned(each) for each in value])
        except SerialisationError as error:
            raise error.under("{…}") from error.__cause__

    def _nested(self, kind: Kind, turned: Any) -> Ext:
        return _ext(kind, encode(turned))

    def _parent(self, value: Parent) -> Ext:
        if not value.kept:
            raise SerialisationError(
                f"the outcome of {value!r} is not kept, so no other task can use it",
                advice="Submit that task with keep=seconds.",
            )
        if value.strange(self._home):
            raise SerialisationError(
                f"{value!r} is of the task set {value.home!r}; a task of {self._home!r} would wait "
                "for it in vain",
                advice="Submit both to one task set, or send what its result() gives.",
            )
        return self._nested(Kind.PARENT, self.parents.setdefault(value.id, len(self.parents)))

    def _other(self, kind: type, value: Any) -> Any:
        if isinstance(value, Parent):
            return self._parent(value)
        if isinstance(value, Enum):
            whole = value.name is not None and value.name in kind.__members__  # type: ignore[attr-defined]
            told = (value.name, None) if whole else (None, value.value)
            return self._nested(Kind.ENUM, (known_path(kind), *told))
        if what := _made_of_fields(kind):
            held = self.members(fields_of(value), ".{}")
            return self._nested(what, (known_path(kind), held))
        if is_array(value):
            return _ext(Kind.ARRAY, pack_array(value))
        if is_arrow(value):
            return _ext(Kind.ARROW, pack_arrow(value))
        if is_frame(value):
            return _ext(Kind.ARROW, pack_frame(value))
        if self._pickle_key is not None:
            return _ext(Kind.PICKLE, pack_signed(value, self._pickle_key))
        name = kind.__qualname__
        article = "an" if name[0] in "aeiouAEIOU" else "a"
        raise SerialisationError(f"{article} {name} cannot be sent", advice=_advice(kind))


_CONTAINERS: dict[type, Callable[[Packing, Any], Any]] = {
    int: Packing._int,
    list: Packing.each,
    dict: Packing.mapping,
    tuple: lambda packing, value: packing._nested(Kind.TUPLE, packing.each(value)),
    set: lambda packing, value: packing._set(Kind.SET, value),
    frozenset: lambda packing, value: packing._set(Kind.FROZENSET, value),
    range: lambda packing, value: packing._nested(
        Kind.RANGE, packing.each((value.start, value.stop, value.step))
    ),
}
