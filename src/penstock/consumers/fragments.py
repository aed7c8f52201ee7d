"""Messages as the parts of objects: one by one for the user's code, in columns for ours."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from penstock.errors import InvalidError
from penstock.wire.batch import Batch
from penstock.wire.columns import Longs
from penstock.wire.columns import Rows as RowNumbers

NEVER_US = -(1 << 62)  # before every time; differences with times of this century stay in 64 bits


class Fragment(NamedTuple):
    """One message as a part of an object. `time_us`: the time that completion goes by."""

    key: bytes
    value: bytes
    time_us: int
    offset: int


# Without the frame of a Python function, as `_make` has, a fragment takes half the time.
_fragment: Callable[[Iterable[object]], Fragment] = partial(tuple.__new__, Fragment)


@dataclass(frozen=True, slots=True)
class Fragments:
    """Messages of one partition in columns, ascending by offset; offsets may have gaps.

    Nothing here is changed by who takes it; values and keys are kept as they are, not copied.
    """

    keys: list[bytes]
    values: list[bytes]
    times_us: Longs
    offsets: Longs
    arrived_us: Longs

    @classmethod
    def of_batch(cls, batch: Batch) -> Fragments:
        """The rows of a batch. Messages without a key share the empty one."""
        keys = [key or b"" for key in batch.keys]
        arrived_us = np.full(batch.count, batch.header.arrived_us, np.int64)
        return cls(keys, batch.values, batch.timestamps, batch.offsets, arrived_us)

    @classmethod
    def of(
        cls,
        rows: Iterable[tuple[bytes, bytes, int]],
        first_offset: int = 0,
        arrived_us: Sequence[int] | None = None,
    ) -> Fragments:
        """(key, value, time) of consecutive messages; arrival is the same time unless given."""
        listed = list(rows)
        times_us = np.fromiter(map(itemgetter(2), listed), np.int64, len(listed))
        return cls(
            [key for key, _, _ in listed],
            [value for _, value, _ in listed],
            times_us,
            np.arange(first_offset, first_offset + len(listed), dtype=np.int64),
            times_us if arrived_us is None else np.asarray(arrived_us, np.int64),
        )

    def __len__(self) -> int:
        return len(self.keys)

    def cut(self, start: int, stop: int) -> Fragments:
        """Rows `start` to `stop`."""
        part = slice(start, stop)
        return Fragments(
            self.keys[part],
            self.values[part],
            self.times_us[part],
            self.offsets[part],
            self.arrived_us[part],
        )

    def check(self) -> None:
        """InvalidError unless all columns have one length and offsets ascend."""
        lengths = {len(self.values), len(self.times_us), len(self.offsets), len(self.arrived_us)}
        if lengths != {len(self.keys)}:
            raise InvalidError("the columns of the fragments differ in length")
        if bool((np.diff(self.offsets) <= 0).any()):
            raise InvalidError("the offsets of the fragments do not ascend")


@dataclass(frozen=True, slots=True)
class Rows:
    """Fragments on their way to objects. `high_us`: the highest time read before each of them."""

    keys: list[bytes]
    values: list[bytes]
    times_us: Longs
    offsets: Longs
    high_us: Longs

    def __len__(self) -> int:
        return len(self.keys)

    def cut(self, start: int, stop: int) -> Rows:
        """Rows `start` to `stop`."""
        part = slice(start, stop)
        return Rows(
            self.keys[part],
            self.values[part],
            self.times_us[part],
            self.offsets[part],
            self.high_us[part],
        )

    def pick(self, rows: RowNumbers) -> Rows:
        """These rows, in this order."""
        return Rows(
            pick(self.keys, rows),
            pick(self.values, rows),
            self.times_us[rows],
            self.offsets[rows],
            self.high_us[rows],
        )

    def by_time(self) -> Rows:
        """The same rows by (time, offset)."""
        times_us = self.times_us
        if bool((times_us[1:] > times_us[:-1]).all()):
            return self
        return self.pick(np.lexsort((self.offsets, times_us)))

    def fragments(self) -> Iterator[tuple[Fragment, int]]:
        """Each row with the highest time that was read before it."""
        columns = zip(
            self.keys, self.values, self.times_us.tolist(), self.offsets.tolist(), strict=True
        )
        return zip(map(_fragment, columns), self.high_us.tolist(), strict=True)


def joined(parts: Sequence[Rows]) -> Rows:
    """All rows of several parts, one part after the other."""
    if len(parts) == 1:
        return parts[0]
    return Rows(
        [key for part in parts for key in part.keys],
        [value for part in parts for value in part.values],
        np.concatenate([part.times_us for part in parts]),
        np.concatenate([part.offsets for part in parts]),
        np.concatenate([part.high_us for part in parts]),
    )


def pick(column: list[bytes], rows: RowNumbers) -> list[bytes]:
    """These items of a column, in this order."""
    return list(map(column.__getitem__, rows.tolist()))
