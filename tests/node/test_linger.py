"""A loop stays awake only where the next request follows at once, and never in a thread's way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from penstock.errors import InvalidError
from penstock.node.linger import AWAKE_US, MOST_AWAKE_US, Linger
from penstock.node.node import Config, Node
from penstock.node.tidy import Tidy
from penstock.way import Way

TURN_US = 4


class Loop:
    """Turns only when it is told to; every turn takes a while."""

    def __init__(self, awake_us: int = AWAKE_US) -> None:
        self.now_ns = 1
        self.soon: list[Callable[[], None]] = []
        self.turns = 0
        self.idle = True
        self.given = 0  # times that it made way
        self.others_ns = 0  # how long others have the core then
        self.due = False  # whether it should tidy up
        self.tidied = 0  # how often it did
        clock = lambda: self.now_ns  # noqa: E731
        loop = cast(asyncio.AbstractEventLoop, self)
        self.linger = Linger(
            loop, lambda: self.idle, clock, Way(clock, self._give), awake_us
        )

    def is_due(self) -> bool:
        return self.due

    def collect(self) -> None:
        self.tidied += 1
        self.due = False

    def _give(self) -> None:
        self.given += 1
        self.now_ns += self.others_ns

    def call_soon(self, action: Callable[[], None]) -> None:
        self.soon.append(action)

    def run(self) -> int:
        """Until it would sleep; how many turns it took."""
        turns = 0
        while self.soon:
            action = self.soon.pop()
            self.now_ns += TURN_US * 1000
            action()
            turns += 1
        return turns

    def exchange(self, gap_us: int) -> int:
        """An answer, and the next request so long after it; the turns in between."""
        answered_ns = self.now_ns
        self.linger.answered()
        turns = self.run()
        self.now_ns = max(self.now_ns, answered_ns + gap_us * 1000)
        self.linger.requested()
        return turns


def test_it_sleeps_until_it_has_seen_quick_requests():
    assert Loop().exchange(20) == 0


def test_it_stays_awake_for_requests_that_follow_at_once_but_not_for_long():
    loop = Loop()
    turns = [loop.exchange(20) for _ in range(40)]
    assert 0 < turns[-1] <= AWAKE_US // TURN_US + 1


def test_it_stays_awake_again_although_it_has_to_be_woken_for_requests():
    """They come as soon, and are noticed when it is awake: some 70 us later."""
    loop = Loop()
    for _ in range(40):
        loop.exchange(100)
    assert loop.exchange(30) > 0


def test_requests_that_come_later_let_it_sleep():
    loop = Loop()
    for _ in range(40):
        loop.exchange(20)
    for _ in range(40):
        loop.exchange(5000)
    assert loop.exchange(5000) == 0


def test_it_is_not_in_the_way_of_a_thread():
    loop = Loop()
    for _ in range(40):
        loop.exchange(20)
    loop.idle = False
    assert loop.exchange(20) <= 1


def test_many_answers_start_one_round():
    loop = Loop()
    for _ in range(40):
        loop.exchange(20)
    for _ in range(5):
        loop.linger.answered()
    assert len(loop.soon) == 1


def test_each_time_round_it_makes_way():
    loop = Loop()
    for _ in range(40):
        loop.exchange(20)
    loop.given = 0
    assert loop.exchange(20) == loop.given + 1  # the last one only ends it


def test_others_who_take_the_core_for_long_do_not_get_it_each_time():
    loop = Loop()
    loop.others_ns = 3_000_000
    for _ in range(2000):
        loop.exchange(20)
    assert 0 < loop.given < 2000 // 20


def test_it_tidies_up_when_that_is_due_and_sleeps():
    loop = Loop()
    loop.linger.tidy = cast(Tidy, loop)
    assert loop.exchange(5000) == 0
    loop.due = True
    assert loop.exchange(5000) == 1
    assert loop.tidied == 1


def test_it_tidies_up_once_while_it_stays_awake():
    loop = Loop()
    loop.linger.tidy = cast(Tidy, loop)
    for _ in range(40):
        loop.exchange(20)
    loop.due = True
    assert loop.exchange(20) > 1
    assert loop.tidied == 1


def test_it_does_not_tidy_up_while_a_thread_is_at_work():
    loop = Loop()
    loop.linger.tidy = cast(Tidy, loop)
    loop.due, loop.idle = True, False
    loop.exchange(5000)
    assert loop.tidied == 0
    loop.idle = True
    loop.exchange(5000)
    assert loop.tidied == 1


def test_how_long_it_stays_awake_is_a_setting():
    patient, usual, never = Loop(2_000), Loop(), Loop(0)
    for _ in range(60):
        turns = [loop.exchange(900) for loop in (patient, usual, never)]
    assert 900 // TURN_US <= turns[0] <= 2_000 // TURN_US + 1
    assert turns[1:] == [0, 0]
    assert [never.exchange(1) for _ in range(20)] == [0] * 20


def test_a_node_can_be_told_so_within_bounds(tmp_path):
    async def run(awake_us: int) -> Node:
        async with Node(Config(str(tmp_path), port=0, awake_us=awake_us)) as node:
            return node

    for awake_us in (0, MOST_AWAKE_US):
        asyncio.run(run(awake_us))
    for awake_us in (-1, MOST_AWAKE_US + 1):
        with pytest.raises(InvalidError, match="awake"):
            asyncio.run(run(awake_us))
