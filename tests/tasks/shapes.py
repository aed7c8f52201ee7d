"""Classes that tests send: of a loaded module, at its top level, as users' are."""

from __future__ import annotations

import dataclasses
import enum
from collections import namedtuple
from typing import Any, NamedTuple

import msgspec


class Colour(enum.Enum):
    RED = "red"
    BLUE = (1, 2)


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 9


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


@dataclasses.dataclass
class Point:
    x: Any
    y: Any = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    name: str
    parts: Any = dataclasses.field(default_factory=list)
    size: int = dataclasses.field(init=False, default=0)


class Record(msgspec.Struct, frozen=True):
    key: str
    value: Any = None


class Pair(NamedTuple):
    first: Any
    second: Any = 0


Spot = namedtuple("Spot", ["x", "y"])  # as old code has them


class Exploding:
    """Would tell on itself if bytes could make one."""

    made = 0

    def __init__(self) -> None:
        type(self).made += 1


def explode() -> None:
    """What a hostile pickle would call."""
    Exploding()


class Pickled:
    """A class that only a pickle can carry."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pickled) and other.value == self.value

    __hash__ = None  # type: ignore[assignment]
