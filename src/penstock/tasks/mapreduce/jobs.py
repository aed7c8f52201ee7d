"""What all jobs share: how they are cut, where their results go, and what they need of tasks."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from penstock.errors import ExistsError, InvalidError
from penstock.tasks.mapreduce.splits import Split, splits_of

PARTITION_BYTES = 16 << 20
MEMORY_BYTES = 256 << 20
MAX_REDUCES = 1000
MAX_MAPS_OF_A_REDUCE = 10_000  # edges that one task may have


class Submits(Protocol):
    """What a job needs of a task app, or of an executor: futures may be arguments."""

    def submit(self, function: Callable[..., Any], /, *args: Any) -> Any:
        """A future, with `result`."""

    def map(self, function: Callable[..., Any], /, *iterables: Iterable[Any]) -> Iterable[Any]:
        """The results, in order."""


@dataclass(frozen=True)
class Job:
    """How a job is cut. All workers see the files of `inputs`, `to` and `scratch` by these names.

    InvalidError names what is wrong.
    """

    inputs: Sequence[str]
    to: str
    """A folder, made by the job. There is a file `_SUCCESS` in it when all is there."""
    partition_bytes: int = PARTITION_BYTES
    reduces: int = 2
    memory_bytes: int = MEMORY_BYTES
    """What one task may hold; what is more is spilled to files."""
    scratch: str = ""
    """Where a folder for intermediate files is made, and removed; beside `to` unless given."""
    overwrite: bool = False

    def __post_init__(self) -> None:
        if not self.inputs:
            raise InvalidError("there is nothing to read", advice="Name files or folders.")
        if not 1 <= self.reduces <= MAX_REDUCES:
            raise InvalidError(f"{self.reduces} reduces: use 1 to {MAX_REDUCES:,}")
        if self.partition_bytes < 1 or self.memory_bytes < 1:
            raise InvalidError("sizes of partitions and memory are bytes, 1 or more")

    def splits(self, held: bool = True) -> list[Split]:
        """One for each map. `held`: reduces wait for them, which bounds their number."""
        splits = splits_of(self.inputs, self.partition_bytes)
        if held and len(splits) > MAX_MAPS_OF_A_REDUCE:
            raise InvalidError(
                f"{len(splits):,} partitions; a reduce can wait for {MAX_MAPS_OF_A_REDUCE:,}",
                advice="Choose larger partitions.",
            )
        return splits

    @contextmanager
    def folders(self) -> Iterator[str]:
        """Makes `to`, and a folder for intermediate files, which is removed in the end. ExistsError
        if `to` is there and may not be replaced."""
        to = Path(os.path.abspath(self.to))
        if to.exists() and not self.overwrite:
            raise ExistsError(f"{to} is there already", advice="Name another, or overwrite it.")
        shutil.rmtree(to, ignore_errors=True)
        to.mkdir(parents=True)
        above = self.scratch or str(to.parent)
        Path(above).mkdir(parents=True, exist_ok=True)
        scratch = tempfile.mkdtemp(prefix=f".{to.name}-", dir=above)
        try:
            yield scratch
            (to / "_SUCCESS").touch()
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def part(self, number: int) -> str:
        """The file of results of this number."""
        return os.path.join(os.path.abspath(self.to), f"part-{number:05}")


@dataclass(frozen=True)
class Done:
    """What a job has done."""

    maps: int
    reduces: int
    rows: int
    """Lines that were written."""
    spilled_bytes: int = 0
    """Of intermediate results that went through files."""


def results(maps: Sequence[Any], reduces: Sequence[Any]) -> list[Any]:
    """What the reduces return. If one fails, the error of the map that is to blame is raised, if
    there is one; all maps have ended by then, and write to no folder any more."""
    try:
        return [each.result() for each in reduces]
    except Exception:
        for error in [each.exception() for each in maps]:
            if error is not None:
                raise error from None
        raise


def write_part(path: str, data: Iterable[bytes]) -> None:
    """Writes a file of results, under its name only when it is whole: a second attempt may write
    the same at the same time."""
    folder, name = os.path.split(path)
    handle, temporary = tempfile.mkstemp(prefix=f".{name}-", dir=folder)
    try:
        with open(handle, "wb") as file:
            file.writelines(data)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
