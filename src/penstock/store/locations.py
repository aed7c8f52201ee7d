"""Locations and file names: how a byte in a data directory is named.

A location is `file number << 32 | offset`. File numbers come from one counter per data directory
and are never used twice, so a location names one byte for ever.
"""

from __future__ import annotations

OFFSET_BITS = 32
OFFSET_MASK = (1 << OFFSET_BITS) - 1
FILE_NUMBER_MAX = (1 << 32) - 1

JOURNAL = "j"
SHARD = "s"
CHECKPOINT = "c"
QUARANTINE = "q"
SPARE = "r"
"""A file that waits to become a journal segment: a dead one, or one that was made ahead."""

_NAME_LENGTH = 10


def locate(number: int, offset: int) -> int:
    """The location of byte `offset` of file `number`."""
    return number << OFFSET_BITS | offset


def split(location: int) -> tuple[int, int]:
    """File number and offset of a location."""
    return location >> OFFSET_BITS, location & OFFSET_MASK


def file_name(kind: str, number: int) -> str:
    """The name of file `number`, for example `j-0000001f`."""
    return f"{kind}-{number:08x}"


def file_number(name: str) -> int:
    """The number in a file name; ValueError when it is not one of ours."""
    if len(name) != _NAME_LENGTH or name[1] != "-" or name != name.lower():
        raise ValueError(f"not a data file name: {name!r}")
    return int(name[2:], 16)


def numbers(names: list[str], kind: str) -> list[int]:
    """The numbers of the files of one kind among `names`, ascending; foreign names are skipped."""
    found = []
    for name in names:
        if name.startswith(f"{kind}-"):
            try:
                found.append(file_number(name))
            except ValueError:
                continue
    return sorted(found)
