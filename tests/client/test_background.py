"""What the thread of a blocking fabric does by itself, although the connection was lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.client.conftest import FaultyTransport, Line
from tests.node.conftest import NodeProcess

from penstock.client import blocking_loops
from penstock.client.blocking import Fabric, fabric_over
from penstock.client.dialer import Dialer
from penstock.client.settle import give_back
from penstock.client.steps import Steps
from penstock.client.transport import Transport
from penstock.client.welcome import new_hello
from penstock.errors import UnavailableError

LEASE_S = 60.0  # an ack that comes later than that is none
SOON_S = 15.0


def wait_until(true: Callable[[], bool]) -> None:
    until = time.monotonic() + SOON_S
    while not true():
        assert time.monotonic() < until, "it does not happen"
        time.sleep(0.005)


@pytest.mark.parametrize("when", ["before", "while"])
def test_an_ack_gets_there_although_the_node_was_restarted(tmp_path: Path, when: str) -> None:
    node = NodeProcess(tmp_path / "data")
    node.start()
    try:
        with node.connect() as fabric:
            queue = fabric.queue("q", lease=LEASE_S)
            queue.push(b"x")
            message = queue.pop()
            assert message is not None
            node.end()
            if when == "while":
                message.ack()
                wait_until(lambda: fabric._connection._transport is None)
            node.start()
            if when == "before":
                message.ack()
            with node.connect() as other:
                seen = other.queue("q")
                wait_until(lambda: seen.stats()["messages"] == 0)
            assert queue.refused == 0
    finally:
        node.end()


class Away:
    """Dials a line that may be cut, and counts."""

    def __init__(self, line: Line) -> None:
        self.line = line
        self.gone = False
        self.tried = 0

    def __call__(self, seconds: float) -> FaultyTransport:
        self.tried += 1
        if self.gone:
            raise UnavailableError("nobody there")
        return self.line.dial(seconds)

    def fabric(self) -> Fabric:
        return fabric_over(self, 5.0, "default", "away")


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Pauses between attempts that never end; and how many strikes each was for."""
    asked: list[int] = []

    def pause(strikes: int) -> float:
        asked.append(strikes)
        return 1e6

    monkeypatch.setattr("penstock.client.dialer.pause_s", pause)
    return asked


def test_between_attempts_that_nobody_waits_for_are_pauses(line, patient):
    tried = 0

    def dial(seconds: float) -> Transport:
        nonlocal tried
        tried += 1
        raise UnavailableError("nobody there")

    dialer = Dialer(dial, new_hello(""))
    with pytest.raises(UnavailableError):
        dialer.connect_once()
    assert dialer.connect_once() is None
    assert tried == 1
    dialer._again_s = 0.0  # a while later
    with pytest.raises(UnavailableError):
        dialer.connect_once()
    assert patient == [1, 2]
    assert dialer.strikes == 0  # who calls need not pause


def test_a_connection_that_brought_no_answer_is_not_made_again_at_once(line, patient):
    dialer = Dialer(line.dial, new_hello(""))
    for _ in range(3):
        assert dialer.connect_once() is not None
        assert dialer.connect_once() is None
        dialer._again_s = 0.0
    assert patient == [1, 2, 3]
    dialer.strikes = 0  # it was heard of
    dialer.connect(time.monotonic() + 5.0)
    assert dialer.connect_once() is None


def test_a_call_does_not_wait_for_the_next_attempt_of_the_background(line, patient):
    away = Away(line)
    with line.fabric() as other:
        other.queue("q").push(b"x")
    with away.fabric() as fabric:
        queue = fabric.queue("q")
        message = queue.pop()
        assert message is not None
        away.gone, away.tried = True, 0
        fabric._connection._dialer._again_s = 0.0  # a while after it was opened
        line.faults[:] = ["before"]
        message.ack()
        wait_until(lambda: away.tried == 1)
        away.gone = False
        assert queue.stats()["messages"] == 0
        assert away.tried == 2


def test_an_outage_that_the_background_mends_is_no_idleness(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever consumes waits until there is a connection, also if another thread makes it."""
    dialling, go_on = threading.Event(), threading.Event()
    gave_up: list[object] = []

    def dial(seconds: float) -> FaultyTransport:
        if threading.current_thread().name == "penstock":
            dialling.set()
            go_on.wait(SOON_S)
        return line.dial(seconds)

    def giving_up(*what: Any, **how: Any) -> Steps[None]:
        gave_up.append(what)
        return give_back(*what, **how)

    monkeypatch.setattr(blocking_loops, "give_back", giving_up)
    with line.fabric() as other, fabric_over(dial, 5.0, "default", "") as fabric:
        queue = fabric.queue("q")
        queue.push(b"a")
        consumer = queue.consume(idle_timeout=0.001, prefetch=1)
        line.faults[:] = [None, None, "before"]  # it subscribes, gets another credit, acks
        next(consumer).ack()
        assert dialling.wait(SOON_S)
        other.queue("q").push(b"b")
        threading.Timer(0.1, go_on.set).start()
        assert next(consumer).value == b"b"
        assert not gave_up


class Kept:
    """A session; to keep it alive takes as long as the node does not answer."""

    def __init__(self) -> None:
        self.asked, self.answered = threading.Event(), threading.Event()
        self.times = 0

    def keep_due(self, now: float) -> bool:
        return not self.answered.is_set()

    def keep(self) -> None:
        self.times += 1
        self.asked.set()
        self.answered.wait()


def test_a_session_that_gets_no_answer_holds_up_neither_acks_nor_others(fabric: Fabric) -> None:
    queue, first, second = fabric.queue("q"), Kept(), Kept()
    queue.push(b"x")
    message = queue.pop()
    assert message is not None
    try:
        fabric._background.add_session(first)
        assert first.asked.wait(SOON_S)
        message.ack()
        fabric._background.add_session(second)
        assert second.asked.wait(SOON_S)
        wait_until(lambda: queue.stats()["messages"] == 0)
        assert (first.times, second.times) == (1, 1)
    finally:
        first.answered.set()
        second.answered.set()


def test_a_fabric_is_closed_although_a_session_gets_no_answer(line: Line) -> None:
    session = Kept()
    too_late = threading.Timer(SOON_S, session.answered.set)
    try:
        with line.fabric() as fabric:
            fabric._background.add_session(session)
            assert session.asked.wait(SOON_S)
            too_late.start()
        assert not session.answered.is_set()
    finally:
        too_late.cancel()
        session.answered.set()


def test_a_session_that_is_closed_while_it_is_kept_alive_stays_closed(fabric: Fabric) -> None:
    session, run = fabric.session(), fabric._run

    def run_and_close(steps: Steps[Any]) -> Any:
        fabric._run = run
        kept = run(steps)
        session.close()
        return kept

    fabric._run = run_and_close
    session.keep()
    assert not session.alive
