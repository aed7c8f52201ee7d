"""How busy dispatch keeps executors, in virtual time: what the policy itself costs on any machine.

Pops, messages between puller and executors, and results take as long as they do on a machine that
is busy (four times as long as on a quiet one); everything else takes no time.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from functools import partial
from itertools import count

import pytest
from tests.tasks.worker.making import done, job

from penstock.tasks.worker.dispatch import STALE_US, Dispatch
from penstock.tasks.worker.jobs import GiveBack, Job, Send, TakeBack

POP_US = 2_000
CHANNEL_US = 600  # from puller to executor, and back
START_US = 5  # between two jobs of a bundle
EXECUTORS = 8
NEVER_US = 1 << 60
Step = Callable[[], None]


class World:
    """A queue with tasks of known lengths, one puller, its executors."""

    def __init__(self, lengths_us: list[int]) -> None:
        self.dispatch = Dispatch(random.Random(1).random)
        self.waiting = list(reversed(lengths_us))
        self.lengths: dict[int, int] = {}
        self.now_us = 0
        self._steps: list[tuple[int, int, Step]] = []
        self._order = count()
        self._popping = False
        self._tick_us = NEVER_US
        self.pops = 0
        self._hands: dict[int, list[Job]] = {n: [] for n in range(EXECUTORS)}
        self._busy: set[int] = set()
        self.ended_us: dict[int, int] = {}

    @property
    def last_us(self) -> int:
        return max(self.ended_us.values())

    def after(self, us: int, step: Step) -> None:
        heapq.heappush(self._steps, (self.now_us + us, next(self._order), step))

    def run(self) -> None:
        for number in range(EXECUTORS):
            self.dispatch.joined(number, 0)
        self.act()
        while self._steps:
            self.now_us, _, step = heapq.heappop(self._steps)
            step()
            self.act()

    def act(self) -> None:
        for effect in self.dispatch.taken():
            if isinstance(effect, Send):
                self.after(CHANNEL_US, partial(self.given, effect.executor, effect.jobs))
            elif isinstance(effect, TakeBack):
                self.after(CHANNEL_US, partial(self.back, effect.executor, effect.jobs))
            elif isinstance(effect, GiveBack):
                self.waiting.append(self.lengths.pop(effect.job.number))
        wanted = self.dispatch.wanted(self.now_us)
        if wanted and self.waiting and not self._popping:
            self._popping = True
            self.after(POP_US, lambda: self.popped(wanted))
        tick_us = self.dispatch.tick_us(self.now_us)
        if tick_us is not None and self.now_us + tick_us < self._tick_us:
            self._tick_us = self.now_us + tick_us
            self.after(tick_us, partial(self.tick, self._tick_us))

    def tick(self, due_us: int) -> None:
        if due_us == self._tick_us:  # otherwise an earlier one has taken its place
            self._tick_us = NEVER_US
            self.dispatch.tick({}, self.now_us)

    def popped(self, most: int) -> None:
        self._popping = False
        self.pops += 1
        jobs = [job() for _ in range(min(most, len(self.waiting)))]
        for each in jobs:
            self.lengths[each.number] = self.waiting.pop()
        self.dispatch.delivered(jobs, self.now_us)

    # --- an executor -----------------------------------------------------------------------

    def given(self, number: int, jobs: list[Job]) -> None:
        self._hands[number] += jobs
        if number not in self._busy:
            self.begin(number)

    def begin(self, number: int) -> None:
        self._busy.discard(number)
        if self._hands[number]:
            self._busy.add(number)
            each = self._hands[number].pop(0)
            self.after(START_US + self.lengths[each.number], lambda: self.end(number, each))

    def end(self, number: int, each: Job) -> None:
        self.ended_us[each.number] = self.now_us
        self.after(CHANNEL_US, lambda: self.told(number, each))
        self.begin(number)

    def told(self, number: int, each: Job) -> None:
        self.dispatch.ended(number, [done(each, self.lengths[each.number])], self.now_us)

    def back(self, number: int, most: int) -> None:
        hands = self._hands[number]
        kept = max(len(hands) - most, 0)
        back, self._hands[number] = hands[kept:], hands[:kept]
        numbers = [each.number for each in back]
        self.after(CHANNEL_US, lambda: self.dispatch.returned(number, numbers, self.now_us))


def efficiency(lengths_us: list[int]) -> float:
    world = World(lengths_us)
    world.run()
    assert len(world.ended_us) == len(lengths_us)
    return sum(lengths_us) / (EXECUTORS * world.last_us)


def mixed(total_us: int) -> list[int]:
    chance, lengths = random.Random(3), list[int]()
    while sum(lengths) < total_us:
        lengths.append(int(10 ** chance.uniform(3, 6)))
    return lengths


@pytest.mark.parametrize(
    ("length_us", "goal"), [(1_000, 0.99), (4_000, 0.99), (16_000, 0.995), (128_000, 0.995)]
)
def test_tasks_of_one_length(length_us: int, goal: float):
    count = 8 * 6_000_000 // length_us // 8 * 8  # so that all can end at the same time
    world = World([length_us] * count)
    world.run()
    assert sum(world.lengths.values()) / (EXECUTORS * world.last_us) >= goal
    assert world.pops <= 0.4 * count, "round trips are shared, or made while tasks run"


def test_a_mix_of_lengths():
    assert efficiency(mixed(8 * 60_000_000)) >= 0.98


def test_what_executors_will_not_begin_soon_goes_to_other_workers():
    """A function that was quick takes long, on all executors: what waits behind does not stay."""
    dispatch = Dispatch(random.Random(1).random)
    for number in range(2):
        dispatch.joined(number, 0)
    dispatch.times.took("f", 1_000)
    jobs = [job() for _ in range(30)]
    dispatch.delivered(jobs, 0)
    sent = [effect for effect in dispatch.taken() if isinstance(effect, Send)]
    given = [each for effect in sent for each in effect.jobs]
    assert 2 < len(given) < len(jobs)
    dispatch.tick({}, STALE_US - 1)
    assert not dispatch.taken(), "it may still be over soon"
    dispatch.tick({}, 2 * STALE_US)
    effects = dispatch.taken()
    assert [each.job for each in effects if isinstance(each, GiveBack)] == jobs[len(given) :]
    asked = [each for each in effects if isinstance(each, TakeBack)]
    assert sum(each.jobs for each in asked) == len(given) - 2, "all but what runs"
    assert dispatch.wanted(2 * STALE_US) == 0
    slots = dispatch.slots
    for each in asked:
        waiting = list(slots[each.executor].given)[1:]
        dispatch.returned(each.executor, waiting, 2 * STALE_US)
    assert not dispatch.taken()
    assert dispatch.tick_us(2 * STALE_US) == STALE_US
    dispatch.tick({}, 3 * STALE_US)
    assert sum(isinstance(each, GiveBack) for each in dispatch.taken()) == len(given) - 2
    assert dispatch.jobs == 2
    first = next(iter(slots[0].given.values()))
    dispatch.ended(0, [done(first, 3 * STALE_US)], 3 * STALE_US)
    assert dispatch.wanted(3 * STALE_US) > 0


def test_null_tasks_travel_in_bundles():
    world = World([10] * 20_000)
    sent: list[int] = []
    give = world.given

    def given(number: int, jobs: list[Job]) -> None:
        sent.append(len(jobs))
        give(number, jobs)

    world.given = given  # type: ignore[method-assign]
    world.run()
    assert len(world.ended_us) == 20_000
    assert len(sent) < 20_000 / 50


def test_short_tasks_behind_a_long_one_are_moved():
    """The function was quick a thousand times, then once it is not."""
    lengths = [500] * 2_000 + [3_000_000] + [500] * 400
    world = World(lengths)
    world.run()
    rest_us = 2_400 * 500 / EXECUTORS
    assert world.last_us < rest_us * 1.5 + 3_000_000
    others = [us for number, us in world.ended_us.items() if world.lengths[number] == 500]
    assert max(others) < rest_us * 1.5 + 100_000, "nothing waits until the long one is over"
