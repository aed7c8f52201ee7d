"""What maps leave for reduces: in the outcome itself while it is small, in a file otherwise.

The outcome is the map task's result, so where the data is stands in the results table, and counts
only if that very attempt was committed. A file of another attempt is never looked at.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from pathlib import Path

import msgspec

INLINE_BYTES = 16 << 10  # of all parts of a map: every reduce gets them all


class Part(msgspec.Struct, frozen=True):
    """What one map has for one reduce: here, or in a file from an offset on."""

    size: int
    data: bytes = b""
    path: str = ""
    offset: int = 0

    def read(self, start: int = 0, most: int | None = None) -> bytes:
        """The data, or at most so many bytes of it from a place on."""
        length = self.size - start if most is None else min(most, self.size - start)
        if not self.path:
            return self.data[start : start + length]
        with open(self.path, "rb", buffering=0) as file:
            file.seek(self.offset + start)
            return file.read(length)


class Output(msgspec.Struct, frozen=True):
    """What one map has for all reduces: for each, the parts that it gets."""

    parts: list[list[Part]]

    def of(self, reduce: int) -> list[Part]:
        """Those of one reduce; those that are empty are left out."""
        return [part for part in self.parts[reduce] if part.size]


def keep(rounds: Sequence[Sequence[bytes]], scratch: str) -> Output:
    """Makes an output of what there is for each reduce, in rounds. It is durable as files are:
    with the kernel."""
    total = sum(len(data) for each in rounds for data in each)
    if total <= INLINE_BYTES:
        columns = zip(*rounds, strict=True)
        return Output([[Part(len(data), data) for data in datas] for datas in columns])
    spill = Spill(scratch)
    for each in rounds:
        spill.add(each)
    return spill.close()


class Spill:
    """A file of its own for one attempt of a map, written round by round."""

    def __init__(self, scratch: str) -> None:
        Path(scratch).mkdir(parents=True, exist_ok=True)
        self._path = os.path.join(scratch, f"map-{uuid.uuid4().hex}")
        self._file = open(self._path, "xb")  # noqa: SIM115  # until `close`
        self._parts: list[list[Part]] = []

    def add(self, datas: Sequence[bytes]) -> None:
        """One round: something for each reduce. Nothing of it stays in memory."""
        offset = self._file.tell()
        self._parts = self._parts or [[] for _ in datas]
        for parts, data in zip(self._parts, datas, strict=True):
            parts.append(Part(len(data), b"", self._path, offset))
            offset += len(data)
        self._file.writelines(datas)

    def close(self) -> Output:
        """All that was added."""
        self._file.close()
        return Output(self._parts)
