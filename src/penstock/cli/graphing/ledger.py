"""What runs of tasks have done, noted where they run: a file for each process, a line for each
beginning and end. A process that is killed has noted what it did until then."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

FOLDER, WORKER = "PENSTOCK_DAG_LEDGER", "PENSTOCK_DAG_WORKER"  # of the environment
BEGUN, ENDED, RAISED = 0, 1, 2
_COUNT_BITS, _PID_BITS = 20, 22


class Line(msgspec.Struct, array_like=True):
    """One of a ledger. Times by the monotonic clock, the same in all processes of a machine."""

    kind: int
    run: int
    task: int
    at_ns: int
    saw: list[int] = []  # msgspec gives every Struct a list of its own
    """When it began: the runs that the values of its parents are from; 0 for one without."""


class RunName(NamedTuple):
    """Which run it was."""

    worker: int
    """Counts the workers that were started."""
    process: int
    number: int
    """Counts the runs of a process."""

    @property
    def packed(self) -> int:
        """As a number, which it travels as."""
        return (self.worker << _PID_BITS | self.process) << _COUNT_BITS | self.number

    @classmethod
    def of(cls, packed: int) -> RunName:
        """The name again."""
        who, number = divmod(packed, 1 << _COUNT_BITS)
        return cls(*divmod(who, 1 << _PID_BITS), number)


class Ledger:
    """The file of this process. Threads may share it."""

    def __init__(self, folder: Path, worker: int) -> None:
        self._worker, self._process = worker, os.getpid()
        path = folder / f"worker-{worker}-{self._process}.runs"
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._counts = itertools.count(1)
        self._encode = msgspec.json.Encoder().encode

    @classmethod
    def from_environment(cls) -> Ledger:
        """Where the program says that started this one's worker."""
        return cls(Path(os.environ[FOLDER]), int(os.environ[WORKER]))

    def begin(self, task: int, saw: Sequence[int]) -> int:
        """A task begins; the run's name, as a number."""
        run = RunName(self._worker, self._process, next(self._counts)).packed
        self.note(BEGUN, run, task, saw)
        return run

    def note(self, kind: int, run: int, task: int, saw: Sequence[int] = ()) -> None:
        """Writes a line, in one piece: it is there as soon as this returns."""
        line = Line(kind, run, task, time.monotonic_ns(), list(saw))
        os.write(self._file, self._encode(line) + b"\n")


def read_ledgers(folder: Path) -> Iterator[Line]:
    """All lines, of one file after the other. The last of a process that was killed may be cut."""
    decode = msgspec.json.Decoder(Line).decode
    for path in sorted(folder.glob("*.runs")):
        with path.open("rb") as lines:
            yield from (decode(line) for line in lines if line.endswith(b"\n"))
