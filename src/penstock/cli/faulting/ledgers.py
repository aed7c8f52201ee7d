"""Append-only ledgers: what every client did, one file each, in rows of a fixed layout.

A row is with the operating system when `add` returns, so the history outlives whoever wrote it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from penstock.cli.demonstration.settling import ACCEPTED as ACCEPTED
from penstock.cli.demonstration.settling import REFUSED as REFUSED
from penstock.cli.demonstration.settling import UNKNOWN as UNKNOWN

CHUNK_ROWS = 1 << 16
READ = UNKNOWN + 1  # the verdict of a table's row that changed nothing

PUSHED = np.dtype([
    ("first", "<u4"), ("count", "<u4"), ("verdict", "u1"), ("started_ns", "<i8"),
    ("ended_ns", "<i8"),
])  # fmt: skip
CONSUMED = np.dtype([
    ("producer", "<u2"), ("number", "<u4"), ("delivery", "<u2"), ("verdict", "u1"),
    ("received_ns", "<i8"), ("ended_ns", "<i8"),
])  # fmt: skip
SEEN = np.dtype([
    ("partition", "<u2"), ("offset", "<i8"), ("number", "<u4"), ("ended_ns", "<i8"),
])  # fmt: skip
LEFT = np.dtype([("started_ns", "<i8"), ("ended_ns", "<i8")])
WRITTEN = np.dtype([
    ("key", "<u2"), ("value", "<u4"), ("verdict", "u1"), ("started_ns", "<i8"),
    ("ended_ns", "<i8"),
])  # fmt: skip

LAYOUTS = {"pushed": PUSHED, "consumed": CONSUMED, "left": LEFT, "published": PUSHED,
           "seen": SEEN, "written": WRITTEN}  # fmt: skip
"""By the ending of the file's name."""

Rows = NDArray[Any]


class Ledger:
    """The ledger of one client. Only one thread may use it."""

    def __init__(self, path: Path) -> None:
        self.layout = LAYOUTS[path.suffix[1:]]
        self._file = path.open("ab", buffering=0)

    def add(self, rows: Rows) -> None:
        """Adds rows of this ledger's layout."""
        data = rows.tobytes()
        if self._file.write(data) != len(data):
            raise OSError(f"{self._file.name}: the disk took only a part of a row")

    def note(self, *values: int) -> None:
        """Adds one row."""
        self.add(np.array([values], self.layout))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()


def named(folder: Path, kind: str) -> list[Path]:
    """The ledgers of one kind."""
    return sorted(folder.glob(f"*.{kind}"))


def chunks(path: Path) -> Iterator[Rows]:
    """The whole rows of a ledger, some at a time."""
    layout = LAYOUTS[path.suffix[1:]]
    with path.open("rb") as file:
        while data := file.read(CHUNK_ROWS * layout.itemsize):
            yield np.frombuffer(data[: len(data) // layout.itemsize * layout.itemsize], layout)


def row_count(path: Path) -> int:
    """How many rows a ledger has."""
    return path.stat().st_size // LAYOUTS[path.suffix[1:]].itemsize
