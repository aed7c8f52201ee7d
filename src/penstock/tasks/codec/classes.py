"""Dataclasses, named tuples, Structs and Enums: a class by its import path, and what the instance
holds."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from enum import Enum
from typing import Any, TypeAlias, TypeVar

import msgspec

from penstock.tasks.errors import SerialisationError
from penstock.tasks.importing import loaded, package_of, path_of

Trusted: TypeAlias = Callable[[str], bool]
T = TypeVar("T")


def known_path(kind: type) -> str:
    """The import path of a class; SerialisationError if others would not find it there."""
    path = path_of(kind)
    if loaded(path) is not kind:
        raise SerialisationError(
            f"{path} is another class, or none",
            advice="Define the class at the top level of a module, under its own name.",
        )
    return path


def trusted_class(path: str, base: Callable[[type], bool], trusted: Trusted) -> type:
    """The class of an import path, if its package is trusted, its module is loaded and `base`
    holds of it."""
    if not trusted(package_of(path)):
        raise SerialisationError(
            f"{path} is not of a package that is trusted here",
            advice="Declare a task in that package, or allow the package.",
        )
    found = loaded(path)
    if not isinstance(found, type):
        raise SerialisationError(
            f"{path} is not loaded here",
            advice="Import its module in the module of the task.",
        )
    if not base(found):
        raise SerialisationError(f"{path} is no dataclass, named tuple, Struct or Enum, as it was")
    return found


def is_enum(kind: type) -> bool:
    """Whether it is an Enum."""
    return issubclass(kind, Enum)


def is_dataclass(kind: type) -> bool:
    """Whether it is a dataclass itself, not merely derived from one."""
    return "__dataclass_fields__" in vars(kind)


def is_struct(kind: type) -> bool:
    """Whether it is a Struct of msgspec."""
    return issubclass(kind, msgspec.Struct)


def is_named_tuple(kind: type) -> bool:
    """Whether it is a named tuple: of `collections`, or of `typing`."""
    fields = getattr(kind, "_fields", None)
    return issubclass(kind, tuple) and type(fields) is tuple and hasattr(kind, "_field_defaults")


def fields_of(value: Any) -> dict[str, Any]:
    """What an instance of a dataclass, a named tuple or a Struct holds."""
    if isinstance(value, tuple):
        return dict(zip(value._fields, value, strict=True))  # type: ignore[attr-defined]
    if isinstance(value, msgspec.Struct):
        return {name: getattr(value, name) for name in value.__struct_fields__}
    return {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}


def make_dataclass(kind: type[T], given: dict[str, Any]) -> T:
    """An instance that holds what was sent; no code of the class runs. A field that the sender's
    release did not have yet gets its default."""
    fields = dataclasses.fields(kind)  # type: ignore[arg-type]  # the caller has looked
    _check_names(kind, given, {each.name for each in fields})
    made = object.__new__(kind)
    for each in fields:
        object.__setattr__(made, each.name, _given_or_default(kind, each, given))
    return made


def _given_or_default(kind: type, field: dataclasses.Field[Any], given: dict[str, Any]) -> Any:
    if field.name in given:
        return given[field.name]
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    if field.default is dataclasses.MISSING:
        raise SerialisationError(f"{kind.__qualname__} came without its field {field.name!r}")
    return field.default


def make_named_tuple(kind: Any, given: dict[str, Any]) -> Any:
    """As `make_dataclass`."""
    _check_names(kind, given, set(kind._fields))
    held = kind._field_defaults | given
    if missing := [name for name in kind._fields if name not in held]:
        raise SerialisationError(f"{kind.__qualname__} came without its field {missing[0]!r}")
    return tuple.__new__(kind, [held[name] for name in kind._fields])


def make_struct(kind: type[T], given: dict[str, Any]) -> T:
    """As `make_dataclass`; a `__post_init__` of the class runs."""
    _check_names(kind, given, set(kind.__struct_fields__))  # type: ignore[attr-defined]
    return kind(**given)


def _check_names(kind: type, given: dict[str, Any], known: set[str]) -> None:
    if unknown := given.keys() - known:
        raise SerialisationError(f"{kind.__qualname__} has no field {min(unknown)!r} here")


def enum_member(kind: type[Enum], name: str | None, value: Any) -> Enum:
    """A member by its name, or flags by their value."""
    return kind(value) if name is None else kind[name]
