"""When workers are started: a state machine without clock or I/O.

Workers are started from the growth of the queue; none is ever stopped from here: a worker ends
itself, when it is idle and the time that was paid for it is nearly over (see `leaving`).
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import InvalidError

MAX_WORKERS = 10_000


@dataclass(frozen=True, slots=True)
class Terms:
    """How many workers there may be, what makes more of them, and what one costs. InvalidError
    names what is wrong."""

    minimum: int = 0
    maximum: int = 1
    growth: int = 100
    """So many more tasks waiting than at the last look: one more worker."""
    backlog: int = 1000
    """So many waiting for each worker: one more worker, even if it does not grow."""
    period_s: float = 3600.0
    """A worker is paid for whole periods of that length."""
    price: float = 0.0
    """Of one period."""
    idle_s: float = 60.0
    """A worker that has had nothing to do for so long may end."""

    def __post_init__(self) -> None:
        if not 0 <= self.minimum <= self.maximum <= MAX_WORKERS or not self.maximum:
            raise InvalidError(
                f"{self.minimum:,} to {self.maximum:,} workers: use a minimum of 0 or more, and a "
                f"maximum that is not smaller, of 1 to {MAX_WORKERS:,}"
            )
        if self.growth < 1 or self.backlog < 1:
            raise InvalidError("growth and backlog are numbers of tasks, 1 or more")
        if self.period_s <= 0 or self.idle_s < 0 or self.price < 0:
            raise InvalidError("the period must be longer than 0 s, idle time and price 0 or more")


class Policy:
    """Says at every look at the queue how many workers to start."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self._before: int | None = None

    def wanted(self, waiting: int, workers: int) -> int:
        """How many workers to start, with so many tasks waiting for so many workers (those that
        are just starting among them)."""
        terms = self.terms
        grown = 0 if self._before is None else waiting - self._before
        self._before = waiting
        more = max(
            terms.minimum - workers,
            grown // terms.growth if grown > 0 else 0,
            -(-waiting // terms.backlog) - workers,
            1 if waiting and not workers else 0,
        )
        return max(0, min(more, terms.maximum - workers))
