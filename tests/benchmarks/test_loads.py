from __future__ import annotations

import random
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks import paced
from benchmarks.loads import again_and_again, bodies
from benchmarks.mixed import Board
from benchmarks.systems.rabbitmq_client import Confirms

ROOT = Path(__file__).resolve().parents[2]


def test_bodies_have_their_size_and_small_ones_differ() -> None:
    assert [len(body) for body in bodies(3, 50, 10.0)] == [50] * 3
    assert len(set(bodies(100, 50, 10.0))) == 100
    assert len(set(bodies(3, 8192, 10.0))) == 1


def test_bodies_end_with_the_time() -> None:
    assert list(bodies(100, 50, -1.0)) == []


@pytest.mark.parametrize("count", [0, 1, 3, 499, 500, 501, 1499, 1500, 4321])
@pytest.mark.parametrize("distinct", [1, 3, 500, 1200])
def test_messages_come_again_until_there_are_enough(count: int, distinct: int) -> None:
    made = [b"%d" % number for number in range(distinct)]
    assert again_and_again(made, count) == [made[number % distinct] for number in range(count)]


class Clock:
    """Sleeps cost no time, and take a little longer than they should."""

    def __init__(self) -> None:
        self.now = 0

    def monotonic_ns(self) -> int:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += round(seconds * 1e9) + 10_000


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(paced, "time", clock)
    return clock


def due_times(group: list[bytes]) -> list[int]:
    return [struct.unpack_from("<Q", body)[0] for body in group]


def test_a_paced_message_carries_when_it_was_due_and_is_never_early(clock: Clock) -> None:
    seen: list[int] = []
    for group in paced.due_bodies(100, 50, 1000, 5_000_000):
        assert all(due <= clock.now for due in due_times(group))
        seen += due_times(group)
    assert seen == [5_000_000 + number * 1_000_000 for number in range(100)]


def test_after_a_stall_all_that_was_due_comes_at_once_with_its_old_times(clock: Clock) -> None:
    groups = paced.due_bodies(100, 50, 1000, 0)
    assert due_times(next(groups)) == [0]
    clock.now = 50_000_000
    assert due_times(next(groups)) == [number * 1_000_000 for number in range(1, 51)]


def test_a_producer_that_is_far_too_slow_ends(clock: Clock) -> None:
    groups = paced.due_bodies(100, 50, 1000, 0)
    next(groups)
    clock.now = 60_000_000_000
    assert list(groups) == []


def test_the_board_knows_when_all_was_sent_and_received(tmp_path: Path) -> None:
    board = Board(tmp_path / "board")
    other = Board(tmp_path / "board")
    board.sent(0, 5)
    assert not other.all_sent()
    board.sent(1, 6)
    other.received(0, 4)
    assert board.all_sent()
    assert not board.all_received()
    other.received(1, 7)
    assert board.all_received()


@pytest.mark.parametrize("seed", range(20))
def test_confirms_in_any_order_are_counted_once(seed: int) -> None:
    chance = random.Random(seed)
    confirms, model = Confirms(), set[int]()
    for _ in range(200):
        tag, multiple = chance.randint(1, 100), chance.random() < 0.3
        if tag not in model or multiple:
            confirms.confirm(tag, multiple)
        model |= set(range(1, tag + 1)) if multiple else {tag}
        assert confirms.confirmed == len(model)


@pytest.mark.parametrize("system", ["penstock_node", "redis_streams", "beanstalkd"])
def test_clients_that_are_compared_do_not_load_numpy(system: str) -> None:
    """It starts a thread that would have a core of the server's for a tenth of a second."""
    loads = f"import sys, benchmarks.client, benchmarks.systems.{system}"
    ask = f"{loads}; print('numpy' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", ask], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.strip() == "False"
