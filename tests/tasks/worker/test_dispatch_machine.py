"""Dispatch against executors that do as they like: no job is lost, doubled or out of place."""

from __future__ import annotations

import random

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.tasks.worker.making import done, job, raised

from penstock.tasks.envelope import Status
from penstock.tasks.worker.bundles import BUNDLE_US, NEARLY_DONE_US
from penstock.tasks.worker.dispatch import STALE_US, Dispatch
from penstock.tasks.worker.jobs import (
    Cause,
    Finish,
    GiveBack,
    Job,
    Kill,
    Retry,
    Running,
    Send,
    TakeBack,
)

TOOK_US = {"null": 5, "short": 2_000, "long": 200_000}


class Mock:
    """An executor: jobs in the order in which it runs them; the first one is running."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.questions: list[int] = []
        self.began_us = 0


class DispatchMachine(RuleBasedStateMachine):
    """Every effect is carried out at once; executors answer when a rule says so."""

    def __init__(self) -> None:
        super().__init__()
        self.dispatch = Dispatch(random.Random(0).random)
        self.executors: dict[int, Mock] = {}
        self.delivered: dict[int, Job] = {}
        self.left: dict[int, str] = {}
        self.now_us = 0
        self.ended_us = 0
        self.next_executor = 1
        self.cancelled: set[int] = set()
        self.timed_out: set[int] = set()

    # --- effects ---------------------------------------------------------------------------

    def act(self) -> None:
        while effects := self.dispatch.taken():
            for effect in effects:
                if isinstance(effect, Send):
                    self.sent(effect)
                elif isinstance(effect, TakeBack):
                    self.executors[effect.executor].questions.append(effect.jobs)
                elif isinstance(effect, Kill):
                    self.killed(effect)
                else:
                    self.leaves(effect)

    def sent(self, send: Send) -> None:
        executor = self.executors[send.executor]
        assert send.jobs
        if len(send.jobs) > 1:
            assert all(each.expected_us <= BUNDLE_US for each in send.jobs), "stuck behind another"
        if executor.jobs:
            waiting_us = sum(each.expected_us for each in executor.jobs[1:])
            assert waiting_us < NEARLY_DONE_US, "it is not nearly done"
            assert sum(each.expected_us for each in send.jobs[1:]) <= BUNDLE_US
        if not executor.jobs:
            executor.began_us = self.now_us
        executor.jobs += send.jobs

    def killed(self, kill: Kill) -> None:
        jobs = self.executors[kill.executor].jobs
        if jobs and jobs[0].number == kill.number:
            self.die(kill.executor)
        else:
            self.dispatch.spared(kill.executor)

    def leaves(self, effect: Finish | Retry | GiveBack) -> None:
        number = effect.job.number
        assert number not in self.left, "it left before"
        assert all(effect.job not in each.jobs for each in self.executors.values())
        self.left[number] = type(effect).__name__
        if isinstance(effect, GiveBack):
            late = self.now_us - max(effect.job.ready_us, self.ended_us) >= STALE_US
            lost = effect.job.lost
            assert lost or self.dispatch.draining or (late and not self.dispatch.idle)
        elif isinstance(effect, Retry):
            assert effect.delay_ms >= 0
        elif effect.status is Status.CANCELLED:
            assert number in self.cancelled
        elif effect.cause is Cause.TIMEOUT:
            assert number in self.timed_out

    def die(self, number: int) -> None:
        jobs = self.executors.pop(number).jobs
        self.dispatch.left(number, jobs[0].number if jobs else None, self.now_us)

    # --- what happens ----------------------------------------------------------------------

    @rule(
        functions=st.lists(st.sampled_from(sorted(TOOK_US)), min_size=1, max_size=40),
        retries=st.integers(0, 2),
        attempt=st.integers(1, 15),
        timeout_ms=st.sampled_from([0, 0, 50]),
    )
    def deliver(self, functions: list[str], retries: int, attempt: int, timeout_ms: int) -> None:
        jobs = [
            job(each, attempt, retries=retries, timeout_ms=timeout_ms, backoff_ms=100)
            for each in functions
        ]
        self.delivered |= {each.number: each for each in jobs}
        self.dispatch.delivered(jobs, self.now_us)
        self.act()

    @precondition(lambda self: len(self.executors) < 5)
    @rule()
    def join(self) -> None:
        self.executors[self.next_executor] = Mock()
        self.dispatch.joined(self.next_executor, self.now_us)
        self.next_executor += 1
        self.act()

    @precondition(lambda self: any(each.jobs for each in self.executors.values()))
    @rule(data=st.data(), most=st.integers(1, 30), fails=st.booleans())
    def end(self, data: st.DataObject, most: int, fails: bool) -> None:
        number = data.draw(st.sampled_from([n for n, each in self.executors.items() if each.jobs]))
        executor = self.executors[number]
        ended, executor.jobs = executor.jobs[:most], executor.jobs[most:]
        executor.began_us = self.now_us
        self.ended_us = self.now_us
        told = [(raised if fails else done)(each, TOOK_US[each.call.function]) for each in ended]
        self.dispatch.ended(number, told, self.now_us)
        self.act()

    @precondition(lambda self: any(each.questions for each in self.executors.values()))
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        asked = [n for n, each in self.executors.items() if each.questions]
        number = data.draw(st.sampled_from(asked))
        executor = self.executors[number]
        most = executor.questions.pop(0)
        kept = max(len(executor.jobs) - most, 1)
        back, executor.jobs = executor.jobs[kept:], executor.jobs[:kept]
        self.dispatch.returned(number, [each.number for each in reversed(back)], self.now_us)
        self.act()

    @precondition(lambda self: self.executors)
    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        self.die(data.draw(st.sampled_from(sorted(self.executors))))
        self.act()

    @precondition(lambda self: len(self.left) < len(self.delivered))
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.delivered.keys() - self.left.keys())))
        self.cancelled.add(number)
        assert self.dispatch.cancel(self.delivered[number].call.task, self.now_us)
        self.act()

    @precondition(lambda self: len(self.left) < len(self.delivered))
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        """Its lease, that is: it leaves at once, or its executor is asked for it."""
        number = data.draw(st.sampled_from(sorted(self.delivered.keys() - self.left.keys())))
        lost = self.delivered[number]
        self.dispatch.lose(lost.delivery, {lost.row})
        self.act()
        holders = [each for each in self.executors.values() if lost in each.jobs]
        assert number in self.left or holders[0].questions

    @rule(us=st.sampled_from([100, 5_000, 60_000, 250_000]))
    def pass_time(self, us: int) -> None:
        self.now_us += us
        running: dict[int, Running | None] = {}
        for number, each in self.executors.items():
            running[number] = Running(each.jobs[0].number, each.began_us) if each.jobs else None
            if each.jobs and 0 < each.jobs[0].call.timeout_ms * 1000 <= self.now_us - each.began_us:
                self.timed_out.add(each.jobs[0].number)
        self.dispatch.tick(running, self.now_us)
        self.act()

    @rule()
    def drain(self) -> None:
        self.dispatch.drain()
        self.act()

    # --- what holds ------------------------------------------------------------------------

    @invariant()
    def every_job_is_in_one_place(self) -> None:
        ready = [each.number for each in self.dispatch.ready]
        given = [each.number for mock in self.executors.values() for each in mock.jobs]
        assert sorted([*ready, *given, *self.left]) == sorted(self.delivered)
        assert self.dispatch.jobs == len(ready) + len(given)

    @invariant()
    def nobody_is_idle_while_jobs_wait(self) -> None:
        if self.dispatch.ready:
            assert all(mock.jobs for mock in self.executors.values())

    @invariant()
    def dispatch_knows_what_executors_have(self) -> None:
        for number, slot in self.dispatch.slots.items():
            assert list(slot.given) == [each.number for each in self.executors[number].jobs]

    def teardown(self) -> None:
        """Executors that go on and answer end everything."""
        for _ in range(3 * len(self.delivered) + 10):
            if not self.executors:
                self.join()
            for number, mock in list(self.executors.items()):
                mock.questions.clear()
                self.dispatch.returned(number, [], self.now_us)
                self.act()
                if number in self.executors and mock.jobs:
                    ended, mock.jobs = mock.jobs[:1], mock.jobs[1:]
                    self.dispatch.ended(number, [done(ended[0])], self.now_us)
                    self.act()
        assert self.left.keys() == self.delivered.keys()
        self.every_job_is_in_one_place()


TestDispatch = DispatchMachine.TestCase
