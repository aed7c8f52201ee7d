"""How many tasks an executor gets at a time, and how many this worker holds: pure decisions.

Short tasks travel many at a time, so that each costs little; a long one travels alone, and nothing
waits behind it that another executor, or another worker, could run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from penstock.tasks.worker.jobs import Job

BUNDLE_US = 10_000  # of work in one bundle
NEARLY_DONE_US = 3_000  # an executor with less work than that gets the next bundle
AHEAD_US = 20_000  # of work for every executor is held ready: so soon it will be begun
MAX_BUNDLE = 500
MAX_READY = 4_000

Expect = Callable[[str], int | None]


def bundle_size(ready: Iterable[Job], share: int, expect: Expect, idle: bool) -> int:
    """How many of the first ready jobs go to one executor: at most `share`, about 10 ms of work;
    one if that is longer, or if nobody knows. Each gets its `expected_us`.

    An executor that is not idle yet gets only what is known to be short: 0 means to wait.
    """
    total_us = size = 0
    known: dict[str, int | None] = {}
    for job in ready:
        function = job.call.function
        if function not in known:
            known[function] = expect(function)
        expected_us = known[function]
        if expected_us is None or expected_us > BUNDLE_US:
            if size or not idle:
                return size
            job.expected_us = expected_us or BUNDLE_US
            return 1
        total_us += expected_us
        if size >= min(share, MAX_BUNDLE) or (size and total_us > BUNDLE_US):
            return size
        job.expected_us = expected_us
        size += 1
    return size


def wanted(executors: int, idle: int, ready: int, typical_us: float | None) -> int:
    """How many more tasks to lease now; 0 as long as it is not worth a request.

    Idle executors get one each. Beyond that, as many are held as are likely to be begun within
    `AHEAD_US`: none of tasks that take seconds, thousands of tasks that take microseconds.
    """
    ahead = 0
    if typical_us is not None:
        ahead = min(round(executors * AHEAD_US / typical_us), MAX_READY)
    room = idle + ahead - ready
    return room if room > 0 and room >= ahead // 2 else 0
