"""One executor as dispatch sees it: what it was given, and when it is likely to be done."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.tasks.worker.jobs import Cause, Job


class Slot:
    """Jobs that an executor has, in the order in which it runs them."""

    __slots__ = ("_seen_us", "_work_us", "asked", "executor", "given", "killing")

    def __init__(self, executor: int) -> None:
        self.executor = executor
        self.given: dict[int, Job] = {}
        self.asked = False  # for jobs back: one question at a time
        self.killing: tuple[int, Cause] | None = None  # the job that it is ended for
        self._work_us = 0  # expected, of all that it has
        self._seen_us = 0  # when its first job began, as far as is known

    @property
    def idle(self) -> bool:
        """Whether it has nothing to do."""
        return not self.given

    @property
    def behind(self) -> int:
        """Jobs that wait behind its first one."""
        return max(len(self.given) - 1, 0)

    def give(self, jobs: Iterable[Job], now_us: int) -> None:
        """It was given more."""
        if not self.given:
            self._seen_us = now_us
        for job in jobs:
            self.given[job.number] = job
            self._work_us += job.expected_us

    def take(self, number: int) -> Job | None:
        """A job is not its any more; None if it was not before."""
        job = self.given.pop(number, None)
        if job is not None:
            self._work_us -= job.expected_us
        return job

    def seen(self, now_us: int) -> None:
        """It said something: its first job is as good as just begun."""
        self._seen_us = now_us

    def left_us(self, now_us: int) -> int:
        """How much work it is expected to have, what its first job has done so far taken off."""
        if not self.given:
            return 0
        first = next(iter(self.given.values()))
        return self._work_us - min(now_us - self._seen_us, first.expected_us)

    def overdue_us(self, now_us: int) -> int:
        """How much longer its first job has taken than was expected."""
        if not self.given:
            return 0
        first = next(iter(self.given.values()))
        return max(now_us - self._seen_us - first.expected_us, 0)
