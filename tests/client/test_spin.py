"""How a blocking client waits: it looks again and again only where that pays."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.client.spin import (
    CALM_WAITS,
    CROWDED_S,
    GIVEN_AWAY_S,
    LONGEST_REST,
    LONGEST_SPIN_S,
    SHORTEST_REST,
    Spin,
)
from penstock.machine import may_spin

LOOK_S = 2e-6


class Scene:
    """A clock that moves with every look, and an answer that comes at a known time."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.answer_s = 0.0
        self.looks = self.blocks = 0
        self.others_s: list[float] = []  # how long other processes have the core after a look
        self.spin = Spin(lambda: self.now_s)

    def _attempt(self) -> int:
        self.now_s += LOOK_S
        self.looks += 1
        if self.looks == 2 and self.others_s:
            self.now_s += self.others_s.pop()
        if self.now_s < self.answer_s:
            raise BlockingIOError
        return 7

    def _block(self) -> int:
        self.blocks += 1
        self.now_s = max(self.now_s, self.answer_s)
        return 7

    def wait(self, latency_s: float) -> None:
        self.looks = self.blocks = 0
        self.answer_s = self.now_s + latency_s
        assert self.spin.wait(self._attempt, self._block) == 7
        assert self.now_s >= self.answer_s

    def rests(self) -> int:
        """How many quick answers are waited for without a look, until one is not."""
        for waits in range(10_000):
            self.wait(60e-6)
            if not self.blocks:
                return waits
        raise AssertionError("it never looks again")

    def settle(self, latency_s: float) -> None:
        for _ in range(30):
            self.wait(latency_s)


def test_the_first_wait_blocks_at_once():
    scene = Scene()
    scene.wait(50e-6)
    assert (scene.looks, scene.blocks) == (0, 1)


def test_quick_answers_are_looked_for_and_nothing_blocks():
    scene = Scene()
    scene.settle(60e-6)
    assert scene.blocks == 0
    assert scene.looks > 1


def test_answers_of_a_device_are_looked_for_within_a_bound():
    scene = Scene()
    scene.settle(250e-6)
    assert scene.blocks == 0
    assert scene.looks * LOOK_S <= LONGEST_SPIN_S + LOOK_S


def test_slow_answers_are_not_looked_for():
    scene = Scene()
    scene.settle(600e-6)
    assert (scene.looks, scene.blocks) == (0, 1)


def test_one_idle_hour_is_forgotten_after_a_few_quick_answers():
    scene = Scene()
    scene.settle(60e-6)
    scene.wait(3600.0)
    assert scene.blocks == 1
    assert scene.looks * LOOK_S <= LONGEST_SPIN_S + LOOK_S
    assert scene.rests() < SHORTEST_REST + 10


def test_after_one_answer_that_is_late_it_rests_for_a_moment():
    scene = Scene()
    for _ in range(3):
        for _ in range(CALM_WAITS + 30):
            scene.wait(60e-6)
        scene.wait(CROWDED_S * 1.5)
        assert SHORTEST_REST - 1 <= scene.rests() <= SHORTEST_REST + 1


def test_where_cores_are_wanted_by_others_it_rests_for_longer_and_longer():
    scene = Scene()
    scene.settle(60e-6)
    rests = []
    for _ in range(10):
        scene.wait(CROWDED_S * 1.5)
        rests.append(scene.rests())
    assert rests == sorted(rests)
    assert LONGEST_REST - 1 <= rests[-1] <= LONGEST_REST + 1


def test_it_does_not_make_way_twice():
    """Another process wants the core, and has it for a while."""
    scene = Scene()
    scene.settle(60e-6)
    scene.others_s = [3 * GIVEN_AWAY_S]
    scene.wait(300e-6)
    assert (scene.looks, scene.blocks) == (2, 1)
    assert SHORTEST_REST - 1 <= scene.rests() <= SHORTEST_REST + 1


def test_a_node_on_the_same_core_gets_it_before_its_answer_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
):
    scene = Scene()
    given: list[float] = []

    def the_node_works() -> None:
        given.append(scene.now_s)
        scene.now_s += CROWDED_S / 2

    scene.settle(60e-6)
    with monkeypatch.context() as patched:
        patched.setattr("penstock.client.spin.give_way", the_node_works)
        for _ in range(2):
            scene.spin.make_way()
    assert len(given) == 2
    assert scene.rests() == 0


def test_a_core_that_others_want_is_not_given_away_again_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
):
    scene = Scene()
    given: list[float] = []

    def others_have_it() -> None:
        given.append(scene.now_s)
        scene.now_s += 3 * CROWDED_S

    monkeypatch.setattr("penstock.client.spin.give_way", others_have_it)
    for _ in range(SHORTEST_REST):
        scene.spin.make_way()
        scene.wait(60e-6)
    assert len(given) == 1
    scene.spin.make_way()
    assert len(given) == 2


def test_what_else_happens_is_passed_on_and_remembered_as_a_wait():
    scene = Scene()
    scene.settle(60e-6)

    def lost() -> int:
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        scene.spin.wait(lost, lost)


@pytest.mark.parametrize("word", ["off", "0", "No"])
def test_it_can_be_turned_off(monkeypatch: pytest.MonkeyPatch, word: str):
    monkeypatch.setenv("PENSTOCK_SPIN", word)
    assert not may_spin()


@pytest.mark.parametrize(("cores", "may"), [(1, False), (2, True)])
def test_one_core_is_left_to_others(monkeypatch: pytest.MonkeyPatch, cores: int, may: bool):
    monkeypatch.delenv("PENSTOCK_SPIN", raising=False)
    allowed: Callable[[int], set[int]] = lambda _: set(range(cores))  # noqa: E731
    monkeypatch.setattr("os.sched_getaffinity", allowed, raising=False)
    assert may_spin() is may


def announced(scene: Scene, latency_s: float) -> int:
    scene.looks = scene.blocks = 0
    scene.answer_s = scene.now_s + latency_s
    return scene.spin.wait_announced(scene._attempt)


def test_what_is_announced_is_looked_for_and_nothing_is_learnt() -> None:
    scene = Scene()
    for _ in range(20):
        scene.wait(2e-3)  # what comes so seldom is not looked for
        assert scene.blocks == 1
        assert announced(scene, 60e-6) == 7
        assert scene.looks > 1
    scene.wait(2e-3)
    assert scene.blocks == 1


def test_what_is_announced_and_does_not_come_is_given_up() -> None:
    scene = Scene()
    began_s = scene.now_s
    assert announced(scene, 1.0) == 0
    assert scene.now_s - began_s < 1.1 * LONGEST_SPIN_S


def test_what_is_announced_is_not_looked_for_where_others_want_the_core() -> None:
    scene = Scene()
    scene.others_s = [2 * GIVEN_AWAY_S]
    assert announced(scene, 1e-3) == 0
    assert announced(scene, 60e-6) == 0
    assert not scene.looks
