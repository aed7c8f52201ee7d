"""What the workers have cost, and what that was spent on."""

from __future__ import annotations

import math
from dataclasses import dataclass

from penstock.tasks.provision.policy import Terms


@dataclass(slots=True)
class WorkerCost:
    """One worker."""

    worker: str
    began_s: float
    ended_s: float | None = None
    busy_s: float = 0.0

    def periods(self, period_s: float, now_s: float) -> int:
        """How many are paid: every one that was begun."""
        lived_s = (now_s if self.ended_s is None else self.ended_s) - self.began_s
        return max(1, math.ceil(lived_s / period_s))


@dataclass(frozen=True, slots=True)
class CostReport:
    """What was paid from the first worker on."""

    workers: int
    most_at_once: int
    periods: int
    cost: float
    busy_s: float
    paid_s: float
    fixed_cost: float
    """Of `maximum` workers, kept all the time."""

    @property
    def used(self) -> float:
        """The share of the paid time in which tasks ran."""
        return self.busy_s / self.paid_s if self.paid_s else 0.0

    @property
    def saved(self) -> float:
        """The share of the fixed cost that was not spent."""
        return 1.0 - self.cost / self.fixed_cost if self.fixed_cost else 0.0


class Ledger:
    """Notes which workers there were. All times are of one clock, whichever."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._workers: dict[str, WorkerCost] = {}
        self._most_at_once = 0

    def began(self, worker: str, now_s: float) -> None:
        """A worker is paid for from now on."""
        self._workers[worker] = WorkerCost(worker, now_s)
        at_once = sum(each.ended_s is None for each in self._workers.values())
        self._most_at_once = max(self._most_at_once, at_once)

    def worked(self, worker: str, busy_s: float) -> None:
        """A worker has run tasks for so long, all in all."""
        if worker in self._workers:
            self._workers[worker].busy_s = busy_s

    def ended(self, worker: str, now_s: float) -> None:
        """No further period is paid for."""
        if worker in self._workers and self._workers[worker].ended_s is None:
            self._workers[worker].ended_s = now_s

    def rows(self) -> list[WorkerCost]:
        """All workers, the first first."""
        return list(self._workers.values())

    def report(self, now_s: float) -> CostReport:
        """What was paid until now."""
        terms, rows = self._terms, self.rows()
        periods = sum(row.periods(terms.period_s, now_s) for row in rows)
        first_s = min((row.began_s for row in rows), default=now_s)
        fixed = max(1, math.ceil((now_s - first_s) / terms.period_s)) * terms.maximum
        return CostReport(
            workers=len(rows),
            most_at_once=self._most_at_once,
            periods=periods,
            cost=periods * terms.price,
            busy_s=sum(row.busy_s for row in rows),
            paid_s=periods * terms.period_s,
            fixed_cost=fixed * terms.price,
        )
