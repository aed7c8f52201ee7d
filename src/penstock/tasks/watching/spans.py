"""How long things took, as counts of logarithmic buckets: small, and sums of many are exact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

PER_OCTAVE = 8  # buckets between a time and twice that: none is wider than an eighth of its time
Buckets = dict[int, int]
"""Bucket: how many times fell into it."""


def folded(times_us: Sequence[int], into: Buckets) -> None:
    """Counts times, in microseconds."""
    shares, octaves = np.frexp(np.maximum(np.asarray(times_us, np.float64), 0.0))
    parts = np.maximum((shares - 0.5) * 2 * PER_OCTAVE, 0.0).astype(np.int64)
    numbers, counts = np.unique(octaves * PER_OCTAVE + parts, return_counts=True)
    for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
        into[number] = into.get(number, 0) + count


def added(into: Buckets, more: Mapping[int, int]) -> None:
    """Takes other counts in."""
    for number, count in more.items():
        into[number] = into.get(number, 0) + count


def percentile_us(buckets: Mapping[int, int], share: float) -> int:
    """The time that this share of all stays below, in microseconds; 0 if there are none."""
    wanted = share * sum(buckets.values())
    seen = 0
    for number in sorted(buckets):
        seen += buckets[number]
        if seen >= wanted:
            return _middle_us(number)
    return 0


def _middle_us(number: int) -> int:
    octave, part = divmod(number, PER_OCTAVE)
    return 0 if number <= 0 else round(2.0**octave * (0.5 + (part + 0.5) / (2 * PER_OCTAVE)))
