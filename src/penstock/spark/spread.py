"""Names of buckets that Spark spreads evenly over its tasks.

Spark gives a bucket to the task that a hash of its name says. Few buckets named 0, 1, 2... would
come to few of the tasks: 0 and 1 to the same of two. Names are chosen so that the hash of the n-th
leaves the remainder n: then buckets take turns with the tasks, whether those are 2, 3, 4, 6 or 48.
A name depends on nothing else, so that it stays the same if the number of tasks changes.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from pyspark.sql import Column

CHOSEN = 256  # buckets with a chosen name; others are named by their number
_CYCLE = 768  # 3 * 256: what many numbers of tasks divide
_CANDIDATES = 1 << 16
_SEED = 42

Words = npt.NDArray[np.uint32]


def hashes(numbers: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Spark's hash of whole numbers (Murmur3)."""
    mixed = _turned(numbers.astype(np.uint32) * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
    found = _turned(mixed ^ np.uint32(_SEED), 13) * np.uint32(5) + np.uint32(0xE6546B64)
    found ^= np.uint32(4)  # the length in bytes
    found = (found ^ (found >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    found = (found ^ (found >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return (found ^ (found >> np.uint32(16))).view(np.int32)


def _turned(words: Words, bits: int) -> Words:
    return (words << np.uint32(bits)) | (words >> np.uint32(32 - bits))


@cache
def names() -> tuple[int, ...]:
    """The names of the first buckets."""
    remainders = hashes(np.arange(_CANDIDATES, dtype=np.int32)).astype(np.int64) % _CYCLE
    found, first = np.unique(remainders, return_index=True)
    by_remainder = dict(zip(found.tolist(), first.tolist(), strict=True))
    return tuple(by_remainder[number] for number in range(CHOSEN))


def name_of(number: int) -> int:
    """The name of the bucket with a number."""
    return names()[number] if number < CHOSEN else number + _CANDIDATES


def name_column(number: Column) -> Column:
    """The same in Spark."""
    from pyspark.sql import functions as call

    table = call.array(*map(call.lit, names()))
    other = number + call.lit(_CANDIDATES)  # never one of those above
    return call.when(number < CHOSEN, call.get(table, number)).otherwise(other).cast("int")


@cache
def _numbers() -> dict[int, int]:
    return {name: number for number, name in enumerate(names())}


def number_of(name: int) -> int:
    """The number of the bucket with a name."""
    return _numbers()[name] if name < _CANDIDATES else name - _CANDIDATES
