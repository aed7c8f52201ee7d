"""Loops that the garbage collector or a signal's handler ends in the middle of a call."""

from __future__ import annotations

import gc
import importlib
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from tests.client.conftest import FaultyTransport, Line
from tests.client.fake_cluster import FakeCluster, hurry
from tests.client.test_background import wait_until
from tests.node.conftest import NodeProcess

import penstock
from penstock.client import transport
from penstock.client.blocking import Fabric
from penstock.client.partings import HARMLESS, Partings
from penstock.errors import ClosedError
from penstock.wire.buffers import Buffer

TIMEOUT_S = 10.0  # of calls: who takes leave in the wrong place loses as much
LARGE = 6 << 20  # more than a socket takes at once
VALUES = [b"%d" % each for each in range(10)]


class Cycle:
    """Keeps something until the garbage collector comes."""

    def __init__(self, kept: object) -> None:
        self.kept = kept
        self.itself = self


class Strike:
    """What happens once, in the middle of the next call of a thread, and whether it was slow."""

    def __init__(self) -> None:
        self.act: Callable[[], object] | None = None
        self.under_way = 0  # the thread
        self.sent: list[int] = []  # what that thread sent meanwhile
        self.seconds = 0.0

    def now(self) -> None:
        act, self.act = self.act, None
        if act is None:
            return
        began, self.under_way = time.monotonic(), threading.get_ident()
        act()
        self.seconds, self.under_way = time.monotonic() - began, 0

    @property
    def passed(self) -> bool:
        """It has happened, and did not wait for the network."""
        return self.act is None and self.seconds < TIMEOUT_S / 2 and not self.sent


@pytest.fixture
def strike(monkeypatch: pytest.MonkeyPatch) -> Iterator[Strike]:
    """Garbage is collected only when it strikes; in a line, that is while an answer is awaited."""
    made = Strike()
    receive, send = FaultyTransport.receive, FaultyTransport.send

    def receiving(self: FaultyTransport, *how: Any) -> list[bytearray]:
        made.now()
        return receive(self, *how)

    def sending(self: FaultyTransport, parts: Sequence[Buffer]) -> None:
        if threading.get_ident() == made.under_way:
            made.sent.append(len(parts))
        send(self, parts)

    monkeypatch.setattr(FaultyTransport, "receive", receiving)
    monkeypatch.setattr(FaultyTransport, "send", sending)
    gc.collect()
    gc.disable()
    yield made
    gc.enable()


def leave_amid(fabric: Fabric, strike: Strike, *, closed: bool = False) -> None:
    """A loop that has ten messages, and has handed out one, is to end in the next call."""
    queue = fabric.queue("q")
    queue.push_many(VALUES)
    consumer = queue.consume(prefetch=len(VALUES))
    next(consumer).ack(wait=True)
    if closed:
        strike.act = consumer.close
    else:
        Cycle(consumer)
        strike.act = gc.collect


def given_back(fabric: Fabric) -> bool:
    """Whether all that nobody has seen comes back now, long before the leases end, and was given
    back once: as after a loop that is closed in order."""
    queue = fabric.queue("q")
    wait_until(lambda: not queue.stats()["leased"])
    return [message.deliveries for message in queue.pop_many()] == [2] * (len(VALUES) - 1)


@pytest.mark.parametrize("closed", [False, True])
def test_a_loop_that_ends_while_its_thread_reads(line: Line, strike: Strike, closed: bool) -> None:
    with line.fabric(TIMEOUT_S) as fabric:
        other = fabric.queue("other")
        leave_amid(fabric, strike, closed=closed)
        assert other.push(b"x").count == 1
        assert strike.passed
        assert line.dials == 1
        assert given_back(fabric)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    process = NodeProcess(tmp_path / "data")
    process.start()
    yield process
    process.end()


def test_a_loop_that_ends_within_half_a_frame(
    node: NodeProcess, strike: Strike, monkeypatch: pytest.MonkeyPatch
) -> None:
    unsent = transport._unsent

    def rest_of(parts: Sequence[Buffer], sent: int) -> list[Buffer]:
        if sent:
            strike.now()
        return unsent(parts, sent)

    with node.connect(TIMEOUT_S) as fabric:
        other = fabric.queue("other")
        connected: Any = fabric._connection._transport
        connected._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LARGE // 64)
        leave_amid(fabric, strike)
        monkeypatch.setattr(transport, "_unsent", rest_of)
        assert not other.push(bytes(LARGE)).duplicate
        assert strike.passed
        assert fabric._connection.connects == 1
        assert given_back(fabric)


def test_a_loop_that_ends_while_its_thread_waits_for_another(
    line: Line, strike: Strike, monkeypatch: pytest.MonkeyPatch
) -> None:
    with line.fabric(TIMEOUT_S) as fabric:
        leave_amid(fabric, strike)
        connection = fabric._connection
        act, strike.act = strike.act, None
        follow = connection._follow

        def following(*how: Any) -> bool:
            with connection._changed:  # it is held here for a moment
                strike.now()
            return follow(*how)

        monkeypatch.setattr(connection, "_follow", following)
        parked = threading.Thread(target=lambda: fabric.queue("other").pop(timeout=TIMEOUT_S))
        parked.start()
        wait_until(connection._reading.locked)
        strike.act = act
        with line.fabric() as pushing:
            threading.Timer(0.05, pushing.queue("other").push, (b"x",)).start()
            assert fabric.queue("q").stats()["messages"] == len(VALUES) - 1
            parked.join()
        strike.now()  # if this thread did not have to wait
        assert strike.passed
        assert given_back(fabric)


def test_a_loop_that_ends_while_its_thread_waits_for_a_cluster(
    strike: Strike, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = Future.result

    def held(self: Future[Any], timeout: float | None = None) -> Any:
        with self._condition:  # as `result` does; who sets it waits for that
            strike.now()
        return result(self, timeout)

    hurry(monkeypatch)
    cluster = FakeCluster(nodes=1)  # of several, each would have what is given back to another
    with penstock.connect(cluster.url, timeout=TIMEOUT_S) as fabric:
        other = fabric.queue("other")
        leave_amid(fabric, strike)
        monkeypatch.setattr(Future, "result", held)
        pushing = threading.Thread(target=other.push, args=(b"x",), daemon=True)
        pushing.start()
        pushing.join(TIMEOUT_S)
        assert not pushing.is_alive()
        assert strike.passed
        assert given_back(fabric)
    cluster.close()


def test_a_loop_that_ends_in_the_thread_of_a_cluster(
    strike: Strike, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurry(monkeypatch)
    cluster = FakeCluster(nodes=1)  # of several, each would have what is given back to another
    with penstock.connect(cluster.url, timeout=TIMEOUT_S) as fabric:
        leave_amid(fabric, strike)
        connection: Any = fabric._connection
        connection._call(strike.now)
        assert strike.passed
        assert given_back(fabric)
    cluster.close()


def test_closing_waits_until_all_is_given_back(line: Line, strike: Strike) -> None:
    with line.fabric() as other:
        with line.fabric(TIMEOUT_S) as fabric:
            another = fabric.queue("other")
            leave_amid(fabric, strike)
            another.push(b"x")
        assert strike.passed
        assert other.queue("q").stats()["ready"] == len(VALUES) - 1


def test_a_loop_that_is_left_elsewhere_gives_back_at_once(line: Line, strike: Strike) -> None:
    with line.fabric() as fabric:
        leave_amid(fabric, strike)
        gc.collect()
        strike.act = None
        assert fabric._connection.partings._left == deque()
        assert given_back(fabric)


def test_one_thread_does_what_was_left_and_goes_on_after_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.client.partings.is_amid", lambda frame: True)
    partings, go_on, done = Partings(), threading.Event(), []

    def part(number: int) -> None:
        go_on.wait(TIMEOUT_S)
        done.append((number, threading.get_ident()))
        raise ClosedError("the fabric is closed") if number else ValueError("a defect")

    for number in range(5):
        partings.do(lambda number=number: part(number))  # type: ignore[misc]
    partings.finish(0.0)
    assert not done
    go_on.set()
    partings.finish(TIMEOUT_S)
    assert [number for number, _ in done] == list(range(5))
    assert len({thread for _, thread in done} - {threading.get_ident()}) == 1


def test_what_is_harmless_is_there() -> None:
    for name, harmless in HARMLESS.items():
        module = importlib.import_module(name)
        owners = [module, *(each for each in vars(module).values() if isinstance(each, type))]
        for function in harmless:
            assert any(function in vars(owner) for owner in owners), f"{name}.{function}"
