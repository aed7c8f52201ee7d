"""How many tasks an executor gets at a time, and how many this worker holds: pure decisions.

Short tasks travel many at a time, so that each costs little; a long one travels alone, just before
the executor is done with what it has. Nothing is held here that will not be begun soon: another
worker could run it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from penstock.tasks.worker.jobs import Job

BUNDLE_US = 10_000  # of work in one bundle
NEARLY_DONE_US = 10_000  # an executor with less work than that gets the next bundle, if it is
URGENT_US = 3_000  # worth a message; one with less than that gets whatever there is
AHEAD_US = 30_000  # what is likely to be begun so soon is leased
MAX_BUNDLE = 500
MAX_READY = 4_000

Expect = Callable[[str], int | None]


def bundle_size(ready: Iterable[Job], share: int, expect: Expect, idle: bool) -> int:
    """How many of the first ready jobs go to one executor: at most `share`, about 10 ms of work;
    one if that is longer, or if nobody knows. Each gets its `expected_us`.

    An executor that is not idle yet gets nothing that nobody knows: 0 means to wait.
    """
    total_us = size = 0
    known: dict[str, int | None] = {}
    for job in ready:
        function = job.call.function
        if function not in known:
            known[function] = expect(function)
        expected_us = known[function]
        if expected_us is None or expected_us > BUNDLE_US:
            if size or (expected_us is None and not idle):
                return size
            job.expected_us = expected_us or BUNDLE_US
            return 1
        total_us += expected_us
        if size >= min(share, MAX_BUNDLE) or (size and total_us > BUNDLE_US):
            return size
        job.expected_us = expected_us
        size += 1
    return size


def ahead(left_us: int, typical_us: float | None) -> int:
    """How many more tasks an executor with so much work is likely to begin within `AHEAD_US`: none
    if it is busy for longer, or if nobody knows how long tasks take; at least one if it is idle."""
    if typical_us is None:
        return int(left_us <= 0)
    free_us = AHEAD_US - left_us
    return max(min(int(free_us / typical_us), MAX_READY), 1) if free_us > 0 else 0


def wanted(lefts_us: Iterable[int], ready: int, typical_us: float | None, guess: bool) -> int:
    """How many more tasks to lease now; 0 as long as it is not worth a request.

    `lefts_us`: the work that executors have. As many are held as are likely to be begun within
    `AHEAD_US`. If none of them is expected to be done by then, but one of so many is likely to be,
    one task is held nevertheless, if `guess` allows it.
    """
    lefts = list(lefts_us)
    total = min(sum(ahead(each, typical_us) for each in lefts), MAX_READY)
    if not total and guess and typical_us is not None:
        total = int(len(lefts) * AHEAD_US >= typical_us)
    room = total - ready
    return room if room > 0 and room >= total // 2 else 0
