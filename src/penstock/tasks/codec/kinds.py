"""The numbers of the msgpack extensions. They stand in stored messages: never reuse one."""

from __future__ import annotations

from enum import IntEnum


class Kind(IntEnum):
    """What an extension holds."""

    TUPLE = 1
    SET = 2
    FROZENSET = 3
    PAIRS = 4  # a dict with keys that are not plain
    INT = 5  # beyond 64 bits
    COMPLEX = 6
    DATETIME = 7
    DATE = 8
    TIME = 9
    TIMEDELTA = 10
    DECIMAL = 11
    UUID = 12
    PATH = 13
    BYTEARRAY = 14
    RANGE = 15
    ENUM = 16
    DATACLASS = 17
    STRUCT = 18
    ARRAY = 19
    ARROW = 20
    PARENT = 21  # the result of a task that this one depends on
    PICKLE = 22
    BLOB = 23  # a value that is too large to stand here
    NAMED_TUPLE = 24
