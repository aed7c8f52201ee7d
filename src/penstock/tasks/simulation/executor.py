"""A simulated executor: runs jobs one after the other in virtual time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from penstock.sim.world import World
from penstock.tasks.envelope import Status
from penstock.tasks.simulation.costs import Costs
from penstock.tasks.simulation.ledger import Ledger
from penstock.tasks.worker.jobs import Ended, Job

FLUSH_US = 1_000  # results wait no longer than that while more are made

Report = Callable[["TaskExecutor", list[Ended]], None]
TaskOf = Callable[[bytes], int]


class TaskExecutor:
    """Tells of jobs that have ended after about a millisecond of them, or after a long one."""

    def __init__(
        self, number: int, world: World, costs: Costs, ledger: Ledger, task_of: TaskOf,
        report: Report,
    ) -> None:  # fmt: skip
        self.number = number
        self.up = True
        self.running: Job | None = None  # the first of those that it is at
        self.busy_us = 0
        self._world = world
        self._costs = costs
        self._ledger = ledger
        self._task_of = task_of
        self._report = report
        self._pending: deque[Job] = deque()

    def run(self, jobs: Sequence[Job]) -> None:
        """Jobs arrive."""
        self._pending.extend(jobs)
        if self.running is None and self.up:
            self._step()

    def give_back(self, count: int) -> list[int]:
        """The last of those that are not begun leave."""
        return [self._pending.pop().number for _ in range(min(count, len(self._pending)))]

    def _step(self) -> None:
        """Begins as many as are over within a millisecond, one at least."""
        if not self._pending:
            self.running = None
            return
        self.running = self._pending[0]
        ended: list[Ended] = []
        total = 0.0
        while self._pending and total < FLUSH_US:
            job = self._pending.popleft()
            task = self._task_of(job.call.task)
            self._ledger.began(task)
            took = self._ledger.lengths_us[task] + self._costs.executor_task_us
            total += took
            ended.append(Ended(job.number, Status.DONE, b"", int(took)))
        self._world.after(int(total), lambda: self._stepped(ended, int(total)))

    def _stepped(self, ended: list[Ended], took_us: int) -> None:
        if self.up:
            self.busy_us += took_us
            self._report(self, ended)
            self._step()
