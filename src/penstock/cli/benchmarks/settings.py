"""What a run of the benchmarks is asked for."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import cycle, islice

DEFAULT_GROUPS = ("push", "pop", "loop", "latency")
GROUPS = (
    *DEFAULT_GROUPS, "memory", "topics", "recovery", "space", "cluster", "sessions", "spark",
    "tasks",
)  # fmt: skip
_DISTINCT_VALUES = 50_000


@dataclass(frozen=True)
class Settings:
    """Sizes and levels of all workloads."""

    groups: tuple[str, ...] = DEFAULT_GROUPS
    messages: int = 2_000_000
    size: int = 50
    batch: int = 1000
    durability: str = "synced"
    repeats: int = 3
    seconds: float = 600.0
    quick: bool = False
    pin: bool = False

    @property
    def singles(self) -> int:
        """Operations of a latency run."""
        return max(20, min(2000, self.messages // 100))

    def scaled(self, full: int, quick: int) -> int:
        """A size that does not follow `messages`: the full one, unless the run is a quick one."""
        return quick if self.quick else full

    def values(self, count: int, size: int | None = None) -> list[bytes]:
        """Messages to push: so many distinct ones that no cache of a processor holds them all."""
        source = random.Random(7)
        chosen = self.size if size is None else size
        distinct = [source.randbytes(chosen) for _ in range(min(count, _DISTINCT_VALUES))]
        return list(islice(cycle(distinct), count))
