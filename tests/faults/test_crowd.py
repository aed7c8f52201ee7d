"""Many connections at once, most of them idle; readers that are slow; clients that vanish."""

from __future__ import annotations

import asyncio
import resource
import socket
from pathlib import Path

import pytest

from penstock import aio, connect
from penstock.cli.benchmarks.processes import NodeProcess, anonymous_bytes
from penstock.wire import messages as m
from penstock.wire.encode import encode_batch
from penstock.wire.frames import POP, PROTOCOL_VERSION, PUSH, Verb, frame

IDLE, ACTIVE = 2000, 500
ROUNDS = 3
TIMEOUT_S = 120.0
CONNECTION_BYTES = 32 << 10  # of the node's memory, at most, for each that is idle
HELLO = frame(Verb.HELLO, 1, 0, m.pack(m.Hello(PROTOCOL_VERSION)))


@pytest.fixture
def node(tmp_path: Path):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * (IDLE + ACTIVE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"{hard:,} files are too few")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    with NodeProcess(tmp_path / "node") as process:
        yield process
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def dial(node: NodeProcess) -> socket.socket:
    """A connection that has said hello, and been welcomed."""
    host, _, port = node.address.partition(":")
    connection = socket.create_connection((host, int(port)), TIMEOUT_S)
    connection.sendall(HELLO)
    assert connection.recv(4096)
    return connection


async def work(url: str, number: int) -> int:
    """One client: pushes, pops what somebody pushed, acks."""
    done = 0
    async with await aio.connect(url, timeout=TIMEOUT_S) as fabric:
        queue = await fabric.queue("crowd")
        for each in range(ROUNDS):
            await queue.push(b"%d-%d" % (number, each))
            message = await queue.pop(timeout=TIMEOUT_S)
            assert message is not None
            await message.ack(wait=True)
            done += 1
    return done


async def all_at_work(url: str) -> int:
    return sum(await asyncio.gather(*(work(url, number) for number in range(ACTIVE))))


def test_two_thousand_idle_ones_do_not_hinder_five_hundred(node: NodeProcess) -> None:
    with connect(node.url) as fabric:
        queue = fabric.queue("crowd")
        before = anonymous_bytes(node.pid)
        idle = [dial(node) for _ in range(IDLE)]
        try:
            assert anonymous_bytes(node.pid) - before < IDLE * CONNECTION_BYTES
            assert asyncio.run(all_at_work(node.url)) == ACTIVE * ROUNDS
        finally:
            for connection in idle:
                connection.close()
        assert queue.stats()["messages"] == 0


def test_a_reader_that_takes_nothing_holds_up_only_itself(node: NodeProcess) -> None:
    with connect(node.url) as fabric:
        queue = fabric.queue("slow")
        queue.push_many([bytes(1000)] * 50_000)
        before = anonymous_bytes(node.pid)
        slow = dial(node)
        stream = queue.info.id
        for request in range(2, 200):  # far more than its socket takes
            slow.sendall(frame(Verb.POP, request, 0, POP.pack(stream, 250, 1 << 20, 0, 60_000, 0)))
        fresh = fabric.queue("other")
        for _ in range(20):
            fresh.push(b"x")
        assert len(fresh.pop_many(20)) == 20
        assert anonymous_bytes(node.pid) - before < 64 << 20
        slow.close()


def test_clients_that_vanish_in_the_middle_of_a_frame_leave_nothing(node: NodeProcess) -> None:
    with connect(node.url) as fabric:
        queue = fabric.queue("vanish")
        batch = bytes(encode_batch([bytes(1000)] * 100, timestamp_us=1))
        push = frame(Verb.PUSH, 2, 0, PUSH.pack(queue.info.id, 0, 0, 0, 0) + batch)
        for cut in range(1, len(push), len(push) // 100):
            vanishing = dial(node)
            vanishing.sendall(push[:cut])
            vanishing.close()
        assert queue.stats()["messages"] == 0
        queue.push(b"still here")
        message = queue.pop()
        assert message is not None
        assert message.value == b"still here"
