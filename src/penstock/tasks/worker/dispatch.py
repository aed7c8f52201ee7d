"""Which executor runs which task: a state machine without clock, chance or I/O.

Events come in as method calls; what is to be done is collected in `effects`, which the shell takes
and carries out. Every job that was delivered leaves by exactly one Finish, Retry or GiveBack.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice

from penstock.tasks.envelope import Status
from penstock.tasks.watching.passages import Passages
from penstock.tasks.worker import bundles
from penstock.tasks.worker.jobs import (
    Cause,
    Effect,
    Ended,
    Finish,
    GiveBack,
    Job,
    Kill,
    Retry,
    Running,
    Send,
    TakeBack,
)
from penstock.tasks.worker.slots import Slot
from penstock.tasks.worker.times import Times
from penstock.tasks.worker.verdicts import Chance, is_hopeless, of_broken, of_ended

STUCK_US = 2_000  # a job that waits longer than that is worth being moved
STALE_US = 200_000  # nothing has ended for so long: what waits goes to other workers
BALANCE_TICK_US = 5_000
MIN_TICK_US = 500
LIMIT_TICK_US = 20_000
TWIN_DELAY_MS = 1_000  # until a task is looked at again that is here under an earlier lease


class Dispatch:
    """Jobs that wait, and executors with what each was given."""

    def __init__(self, chance: Chance) -> None:
        self.times = Times()
        self.passages = Passages()
        self.effects: list[Effect] = []
        self.ready: deque[Job] = deque()
        self.slots: dict[int, Slot] = {}
        self.draining = False
        self._chance = chance
        # What becomes of a job that failed because others have its function, and this worker not.
        self.elsewhere: Callable[[Job, Ended], GiveBack | None] = _nowhere
        self._places: dict[bytes, tuple[Job, Slot | None]] = {}  # by task: to be cancelled by it
        self._limited = 0  # given jobs with a time limit
        self._ended_us = 0  # when the last attempt ended
        self._wary = False  # of holding more than will be begun: that was wrong the last time

    def taken(self) -> list[Effect]:
        """What is to be done; it is the caller's to do it, in this order."""
        effects, self.effects = self.effects, []
        return effects

    @property
    def jobs(self) -> int:
        """Jobs that are not over."""
        return len(self._places)

    def tasks(self) -> Iterable[bytes]:
        """Their tasks."""
        return self._places

    @property
    def idle(self) -> int:
        """Executors that have nothing to do."""
        return sum(slot.idle for slot in self.slots.values())

    def wanted(self, now_us: int) -> int:
        """How many tasks should be leased now."""
        if self.draining or not self.slots:
            return 0
        lefts = [self._busy_us(slot, now_us) for slot in self.slots.values()]
        guess = not self._wary
        return bundles.wanted(lefts, len(self.ready), self.times.typical_us(), guess)

    # --- events ----------------------------------------------------------------------------

    def joined(self, executor: int, now_us: int) -> None:
        """An executor is there, and idle."""
        self.slots[executor] = Slot(executor)
        self._feed(now_us)

    def delivered(self, jobs: Sequence[Job], now_us: int) -> None:
        """Tasks were leased. One that is here already, under a lease that was lost perhaps, is
        not run beside itself: it is given back for a while."""
        for job in jobs:
            if self.draining:
                self.effects.append(GiveBack(job))
            elif job.call.task in self._places:
                self.effects.append(GiveBack(job, TWIN_DELAY_MS))
            elif job.cancelled:
                self.effects.append(Finish(job, Status.CANCELLED, None, Cause.CANCELLED))
            elif is_hopeless(job):
                self.effects.append(Finish(job, Status.FAILED, None, Cause.LOST))
            else:
                self._places[job.call.task] = job, None
                job.ready_us = now_us
                self.ready.append(job)
        self._feed(now_us)

    def ended(self, executor: int, ended: Iterable[Ended], now_us: int) -> None:
        """Attempts are over. What is not known any more was taken from the executor when it was
        given up, and its word does not count."""
        slot = self.slots.get(executor)
        if slot is None:
            return
        for each in ended:
            job = self._released(slot, each.number)
            if job is None:
                continue
            left = self.elsewhere(job, each) if each.status else None
            if left is not None:
                self._over(left)
            else:
                function = job.call.function
                self.times.took(function, each.took_us)
                self.passages.ended(function, each.waited_us, each.took_us)
                if each.status:
                    self.passages.failed(function)
                self._over(of_ended(job, each, self._chance))
        slot.seen(now_us)
        self._ended_us, self._wary = now_us, False
        self._feed(now_us)

    def returned(self, executor: int, numbers: Iterable[int], now_us: int) -> None:
        """An executor gives back what it had not begun."""
        slot = self.slots.get(executor)
        if slot is None:
            return
        slot.asked = False
        back = [job for job in (self._released(slot, n) for n in numbers) if job is not None]
        self._again(back, now_us)
        for job in slot.given.values():
            if job.cancelled or job.lost:
                self._kill(slot, job, Cause.CANCELLED if job.cancelled else Cause.LEASE)
                break
        self._feed(now_us)

    def left(self, executor: int, running: int | None, now_us: int) -> None:
        """An executor is gone; `running` is the job that it was at, if that is known."""
        slot = self.slots.pop(executor, None)
        if slot is None:
            return
        blamed, cause = slot.killing or (running, Cause.LOST)
        waiting: list[Job] = []
        for number in list(slot.given):
            job = self._released(slot, number)
            assert job is not None
            if number == blamed and not (self.draining and cause is Cause.LOST):
                if cause in (Cause.LOST, Cause.TIMEOUT):
                    self.passages.broken(job.call.function)
                self._over(of_broken(job, cause, self._chance))
            elif number == running:  # ended with the worker, or for another that was over by then
                self._over(Retry(job, 0))
            else:
                waiting.append(job)
        self._again(waiting, now_us)
        self._feed(now_us)

    def spared(self, executor: int) -> None:
        """An executor was not ended: it is at another job by now."""
        if (slot := self.slots.get(executor)) is not None:
            slot.killing = None

    def cancel(self, task: bytes, now_us: int) -> bool:
        """Somebody does not want a task any more; whether this worker has it."""
        job, slot = self._places.get(task, (None, None))
        if job is None or job.cancelled:
            return job is not None
        job.cancelled = True
        if slot is None:
            self.ready.remove(job)
            self._over(Finish(job, Status.CANCELLED, None, Cause.CANCELLED))
        else:
            self._ask_back(slot, len(slot.given))
        return True

    def lose(self, delivery: int, rows: Collection[int]) -> None:
        """Leases of a delivery are lost: others have those jobs, or will. Here, nobody works on
        them any more; those that are over by now are not known."""
        asked: dict[int, Slot] = {}
        for job, slot in list(self._places.values()):
            if job.delivery != delivery or job.row not in rows:
                continue
            job.lost = True
            if slot is None:
                self.ready.remove(job)
                self._over(GiveBack(job))
            else:
                asked[slot.executor] = slot
        for slot in asked.values():
            self._ask_back(slot, len(slot.given))

    def tick(self, running: Mapping[int, Running | None], now_us: int) -> None:
        """Time has passed; `running` says what executors are at."""
        for executor, at in running.items():
            slot = self.slots.get(executor)
            job = None if slot is None or at is None else slot.given.get(at.number)
            if slot is None or job is None or at is None:
                continue
            limit_ms = job.call.timeout_ms
            if limit_ms and now_us - at.began_us >= limit_ms * 1000:
                self._kill(slot, job, Cause.TIMEOUT)
        self._let_go(now_us)
        self._feed(now_us)

    def tick_us(self, now_us: int) -> int | None:
        """How soon `tick` should be called; None: there is nothing that time would change."""
        waits = [LIMIT_TICK_US] if self._limited else []
        if self.ready:
            waits.append(max(self.ready[0].ready_us, self._ended_us) + STALE_US - now_us)
        for slot in self.slots.values():
            if slot.behind:
                waits.append(BALANCE_TICK_US)
            elif slot.given:
                left_us = slot.left_us(now_us)
                waits.append(left_us - bundles.AHEAD_US)
                if self.ready:
                    waits.append(left_us - bundles.NEARLY_DONE_US)
        return min((max(each, MIN_TICK_US) for each in waits if each > 0), default=None)

    def drain(self) -> None:
        """Begins nothing any more: what nobody has begun is given back."""
        self.draining = True
        waiting = list(self.ready)
        self.ready.clear()
        self._again(waiting, 0)
        for slot in self.slots.values():
            if slot.behind:
                self._ask_back(slot, len(slot.given))

    # --- decisions -------------------------------------------------------------------------

    def _feed(self, now_us: int) -> None:
        """Gives ready jobs to executors that are idle or nearly done, the idlest first."""
        if not self.ready:
            self._balance(now_us)
            return
        lefts = [(self._busy_us(slot, now_us), slot) for slot in self.slots.values()]
        free = [each for each in lefts if each[0] < bundles.NEARLY_DONE_US]
        for left_us, slot in sorted(free, key=lambda each: (not each[1].idle, each[0])):
            if not self.ready:
                break
            share = -(-len(self.ready) // len(self.slots))
            size = bundles.bundle_size(self.ready, share, self.times.expected_us, slot.idle)
            if not size or (left_us > bundles.URGENT_US and not self._worth_a_message(size)):
                break
            jobs = [self.ready.popleft() for _ in range(size)]
            self._give(slot, jobs, now_us)

    def _worth_a_message(self, size: int) -> bool:
        """Whether so many ready jobs are work for a while."""
        return sum(job.expected_us for job in islice(self.ready, size)) >= bundles.BUNDLE_US // 2

    def _busy_us(self, slot: Slot, now_us: int) -> int:
        """How long an executor will be busy, as far as anybody knows."""
        if slot.killing or slot.overdue_us(now_us) > STUCK_US:
            return STALE_US  # it may end at any time, or never
        return slot.left_us(now_us)

    def _let_go(self, now_us: int) -> None:
        """All executors are at something that takes long: what waits for them is anybody's."""
        if self.draining or self.idle or now_us - self._ended_us < STALE_US:
            return
        while self.ready and now_us - self.ready[0].ready_us >= STALE_US:
            self._over(GiveBack(self.ready.popleft()))
            self._wary = True
        for slot in self.slots.values():
            stuck = slot.overdue_us(now_us) >= STALE_US and not slot.killing
            if stuck and slot.behind and not slot.asked:
                self._ask_back(slot, slot.behind)

    def _give(self, slot: Slot, jobs: list[Job], now_us: int) -> None:
        slot.give(jobs, now_us)
        for job in jobs:
            self._places[job.call.task] = job, slot
            self._limited += job.call.timeout_ms > 0
        self.effects.append(Send(slot.executor, jobs))

    def _balance(self, now_us: int) -> None:
        """Idle executors get what waits behind others, unless it will not wait for long."""
        if self.ready or self.draining or not (idle := self.idle):
            return
        late = [
            slot
            for slot in self.slots.values()
            if slot.behind and not slot.asked and not slot.killing
            and max(slot.left_us(now_us), slot.overdue_us(now_us)) > STUCK_US
        ]  # fmt: skip
        for slot in late:
            self._ask_back(slot, -(-slot.behind * idle // (idle + 1)))

    def _ask_back(self, slot: Slot, jobs: int) -> None:
        slot.asked = True
        self.effects.append(TakeBack(slot.executor, jobs))

    def _kill(self, slot: Slot, job: Job, cause: Cause) -> None:
        if slot.killing is None:
            slot.killing = job.number, cause
            self.effects.append(Kill(slot.executor, job.number))

    def _released(self, slot: Slot, number: int) -> Job | None:
        job = slot.take(number)
        if job is not None:
            self._limited -= job.call.timeout_ms > 0
        return job

    def _again(self, jobs: list[Job], now_us: int) -> None:
        """Jobs that nobody has begun wait again, before all others, or leave."""
        kept: list[Job] = []
        for job in jobs:
            if job.cancelled:
                self._over(Finish(job, Status.CANCELLED, None, Cause.CANCELLED))
            elif self.draining or job.lost:
                self._over(GiveBack(job))
            else:
                self._places[job.call.task] = job, None
                job.ready_us = now_us
                kept.append(job)
        self.ready.extendleft(reversed(kept))

    def _over(self, effect: Finish | Retry | GiveBack) -> None:
        del self._places[effect.job.call.task]
        self.effects.append(effect)


def _nowhere(_: Job, __: Ended) -> GiveBack | None:
    """Unless there is somebody who knows of other workers."""
    return None
