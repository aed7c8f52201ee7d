"""Measured values: figures of one run, and their series over all runs."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

RATE = "msg/s"
MICROSECONDS = "us"
NANOSECONDS = "ns"
SECONDS = "s"
CPU = "s per M messages"
MIB = "MiB"
COUNT = ""
RATIO = "of 1"

QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999, "max": 1.0}


class Figure(NamedTuple):
    """A value and its unit."""

    value: float
    unit: str


Figures = dict[str, Figure]
"""By name: `workload`, or `workload/detail` if it has several."""


@dataclass
class Series:
    """The same figure in several runs."""

    unit: str
    values: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """The middle run."""
        return statistics.median(self.values)

    @property
    def spread(self) -> float:
        """Largest minus smallest, as a part of the median."""
        return (max(self.values) - min(self.values)) / self.median if self.median else 0.0


def latencies(name: str, nanoseconds: Sequence[int]) -> Figures:
    """Quantiles of a run, in microseconds."""
    ordered = sorted(nanoseconds)
    last = len(ordered) - 1
    return {
        f"{name}/{label}": Figure(ordered[min(last, int(len(ordered) * part))] / 1e3, MICROSECONDS)
        for label, part in QUANTILES.items()
    }
