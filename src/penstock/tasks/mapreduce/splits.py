"""Files in parts: each part has the lines that begin in it."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from penstock.errors import InvalidError, NotFoundError

MAX_SPLITS = 100_000


class Split(msgspec.Struct, frozen=True):
    """The lines of a file that begin at `start` or later, and before `end`."""

    path: str
    start: int
    end: int

    @property
    def size(self) -> int:
        """About so many bytes: lines end where they end."""
        return self.end - self.start

    def pieces(self, size: int) -> Iterator[Split]:
        """The same lines in smaller parts."""
        for start in range(self.start, self.end, size):
            yield Split(self.path, start, min(start + size, self.end))

    def read(self) -> bytes:
        """The lines, as they are in the file."""
        with open(self.path, "rb") as file:
            begin = _next_line(file, self.start)
            length = _next_line(file, self.end) - begin
            file.seek(begin)
            return file.read(length)


def _next_line(file: BinaryIO, position: int) -> int:
    """Where the first line begins that begins at a position or later."""
    if position == 0:
        return 0
    file.seek(position - 1)
    return position - 1 + len(file.readline())


def lines_of(data: bytes) -> list[bytes]:
    """Lines without their ends. Only a newline ends one: a carriage return belongs to it."""
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    return lines


def joined(lines: Sequence[bytes]) -> bytes:
    """Lines with their ends, to be written."""
    return b"\n".join([*lines, b""])


def files_in(places: Sequence[str]) -> list[Path]:
    """The files that are named, or in folders that are, or that patterns fit; in order.

    Hidden files, and those whose name begins with an underscore, are passed over in folders.
    NotFoundError if a place is not there.
    """
    found: list[Path] = []
    for place in places:
        matches = sorted(glob.glob(place)) if glob.has_magic(place) else [place]
        if not matches:
            raise NotFoundError(f"no file fits {place}", advice="Check the pattern.")
        for each in map(Path, matches):
            if not each.exists():
                raise NotFoundError(f"there is no file or folder {each}", advice="Check the path.")
            found += _inside(each) if each.is_dir() else [each]
    return found


def _inside(folder: Path) -> list[Path]:
    inside = (path for path in folder.rglob("*") if path.is_file())
    return sorted(
        path
        for path in inside
        if not any(part[0] in "._" for part in path.relative_to(folder).parts)
    )


def splits_of(places: Sequence[str], size: int) -> list[Split]:
    """All lines of all files, in parts of about `size` bytes; InvalidError if they are too many."""
    if size < 1:
        raise InvalidError(f"parts of {size} bytes: use 1 or more")
    splits: list[Split] = []
    for path in files_in(places):
        whole = Split(os.path.abspath(path), 0, path.stat().st_size)
        splits += whole.pieces(size)
        if len(splits) > MAX_SPLITS:
            raise InvalidError(
                f"there are more than {MAX_SPLITS:,} parts", advice="Choose larger parts."
            )
    return splits
