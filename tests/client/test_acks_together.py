"""Acks of messages that come one after the other are sent together; after a pause, at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from penstock.client import aio_loops, blocking_loops
from penstock.client.consume import ACKS_WAIT_S, ConsumeState
from penstock.client.messages import LeasedMessage
from penstock.client.settle import Settler, SettleRequest
from penstock.wire.frames import Settle, SettleItem

ACK = SettleItem(int(Settle.ACK), 0, 1, 1, 1, 0)


class Scene:
    """A consumer whose clock, acks and arrivals are ours. Waiting for an arrival takes as long as
    it was willing to wait, unless one is to come sooner."""

    def __init__(self, ordered: bool = False) -> None:
        self.now_s = 100.0
        self.sent: list[tuple[float, int]] = []  # when, and how many acks
        self.waits: list[float | None] = []
        self.arrives_s: float | None = None  # the next message
        self.settler = Settler(1)
        self.settler.send = self._send
        self.settler.attend = self._attend
        self.state: ConsumeState[LeasedMessage] = ConsumeState(
            self.settler, LeasedMessage, 100, None, None, lambda: self.now_s, ordered
        )

    def _send(self, request: SettleRequest) -> None:
        self.sent.append((self.now_s, len(request.items)))

    def _attend(self, settler: Settler) -> None:
        settler.attended = True

    def ack(self) -> None:
        self.settler.keep([ACK])

    def arrival(self, _: object, idle_timeout: float | None) -> bool:
        self.waits.append(idle_timeout)
        if self.arrives_s is not None and (
            idle_timeout is None or self.arrives_s <= self.now_s + idle_timeout
        ):
            self.now_s, self.arrives_s = max(self.now_s, self.arrives_s), None
            return True
        assert idle_timeout is not None, "it would wait for ever"
        self.now_s += idle_timeout
        return False

    def run(self, steps: Any) -> None:
        """Whoever gives up asks first what is on its way: nothing."""


class AsyncScene(Scene):
    async def run(self, steps: Any) -> None:  # type: ignore[override]
        super().run(steps)

    async def arrival(self, of: object, idle_timeout: float | None) -> bool:  # type: ignore[override]
        return super().arrival(of, idle_timeout)


def next_blocking(scene: Scene, idle_timeout: float | None) -> bool:
    connection: Any = scene
    state: Any = scene.state
    return blocking_loops._next_delivery(connection, state, idle_timeout)


def next_async(scene: Scene, idle_timeout: float | None) -> bool:
    connection: Any = scene
    state: Any = scene.state
    return asyncio.run(aio_loops._next_delivery(connection, state, idle_timeout))


Next = Callable[[Scene, float | None], bool]


@pytest.fixture(params=["blocking", "asyncio"])
def scene_and_next(request: pytest.FixtureRequest) -> tuple[Scene, Next]:
    return (Scene(), next_blocking) if request.param == "blocking" else (AsyncScene(), next_async)


def test_of_an_ordered_queue_every_ack_is_sent_at_once() -> None:
    """What comes next waits for it."""
    scene = Scene(ordered=True)
    for turn in range(10):
        scene.ack()
        scene.arrives_s = scene.now_s + ACKS_WAIT_S / 100
        assert next_blocking(scene, 5.0)
        assert len(scene.sent) == turn + 1


def test_who_waited_in_vain_does_not_wait_soon_again(scene_and_next) -> None:
    """Each message comes because the one before it was acked, whatever the reason."""
    scene, wait = scene_and_next
    for turn in range(40):
        scene.ack()
        scene.arrives_s = scene.now_s + ACKS_WAIT_S + 1e-4  # too late for a short wait
        assert wait(scene, 5.0)
        scene.now_s = 100.0 + (turn + 1) * 1e-4
    assert len([wait_s for wait_s in scene.waits if wait_s != 5.0]) == 3  # of 40


def test_after_a_pause_an_ack_is_sent_before_waiting(scene_and_next) -> None:
    scene, wait = scene_and_next
    scene.ack()
    scene.arrives_s = scene.now_s + 3.0
    assert wait(scene, None)
    assert scene.sent == [(100.0, 1)]
    assert scene.waits == [None]


def test_acks_of_messages_that_come_quickly_are_sent_together(scene_and_next) -> None:
    scene, wait = scene_and_next
    gap_s = ACKS_WAIT_S / 10
    for _ in range(101):
        scene.ack()
        scene.arrives_s = scene.now_s + gap_s
        assert wait(scene, 5.0)
    times = [when for when, _ in scene.sent]
    assert 8 <= len(times) <= 16
    assert sum(count for _, count in scene.sent) >= 85
    assert max(b - a for a, b in pairwise(times)) <= ACKS_WAIT_S + 2 * gap_s


def test_an_ack_does_not_wait_longer_if_nothing_comes(scene_and_next) -> None:
    scene, wait = scene_and_next
    scene.ack()
    scene.arrives_s = scene.now_s + ACKS_WAIT_S / 4
    assert wait(scene, 5.0)
    scene.ack()
    assert not wait(scene, 5.0)
    assert [count for _, count in scene.sent] == [1, 1]
    assert scene.sent[1][0] == pytest.approx(100.0 + ACKS_WAIT_S)
    assert scene.waits[-1] == 5.0  # and the time-out is counted from there


def test_who_gives_up_sooner_than_acks_may_wait_has_them_sent_at_once(scene_and_next) -> None:
    scene, wait = scene_and_next
    scene.ack()
    scene.arrives_s = scene.now_s
    assert wait(scene, 0.0)
    scene.ack()
    assert not wait(scene, 0.0)
    assert len(scene.sent) == 2
