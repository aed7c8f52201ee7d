"""Waits that end after a time: all of a connection share one timer of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from penstock.client.aio_deadlines import Deadlines


class Clock:
    """As much of an event loop as deadlines need; time passes when it is told to."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.timers: list[Alarm] = []
        self.made = 0

    def time(self) -> float:
        return self.now_s

    def call_at(self, when_s: float, callback: Callable[[], None]) -> Alarm:
        self.made += 1
        self.timers.append(Alarm(self, when_s, callback))
        return self.timers[-1]

    def pass_to(self, now_s: float) -> None:
        self.now_s = now_s
        for each in [each for each in self.timers if each.when_s <= now_s]:
            self.timers.remove(each)
            each.callback()


class Alarm:
    """A timer of it."""

    def __init__(self, clock: Clock, when_s: float, callback: Callable[[], None]) -> None:
        self._clock, self.when_s, self.callback = clock, when_s, callback

    def cancel(self) -> None:
        self._clock.timers.remove(self)


class Waiter:
    """As much of a future as deadlines need."""

    def __init__(self) -> None:
        self.over = False

    def done(self) -> bool:
        return self.over

    def set_result(self, result: None) -> None:
        assert not self.over
        self.over = True


def deadlines(clock: Any) -> Deadlines:
    return Deadlines(clock)


def waiter() -> Any:
    return Waiter()


def test_a_wait_ends_when_its_time_is_up() -> None:
    clock = Clock()
    waits = deadlines(clock)
    late, soon = waiter(), waiter()
    waits.add(late, 30.0)
    waits.add(soon, 1.0)
    clock.pass_to(100.9)
    assert not soon.over
    clock.pass_to(101.0)
    assert soon.over
    assert not late.over
    clock.pass_to(130.0)
    assert late.over
    assert not clock.timers


def test_waits_that_end_in_time_share_one_timer() -> None:
    clock = Clock()
    waits = deadlines(clock)
    for _ in range(1000):
        each = waiter()
        waits.add(each, 30.0)
        clock.now_s += 0.001
        waits.remove(each)
    assert clock.made == 1
    last = waiter()
    waits.add(last, 30.0)
    clock.pass_to(130.0)  # that of the first
    assert not last.over
    assert [round(each.when_s, 3) for each in clock.timers] == [131.0]
    clock.pass_to(131.5)
    assert last.over


def test_who_was_answered_in_the_same_moment_is_left_alone() -> None:
    clock = Clock()
    waits = deadlines(clock)
    answered, cancelled = waiter(), waiter()
    waits.add(answered, 1.0)
    waits.add(cancelled, 1.0)
    answered.set_result(None)
    waits.remove(cancelled)
    waits.remove(cancelled)
    clock.pass_to(101.0)
    assert not cancelled.over


def test_on_a_real_loop() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        Deadlines(loop).add(ended, 0.0)
        await asyncio.wait_for(ended, 60.0)

    asyncio.run(main())
