"""Transactions and sessions over three node processes, with the clients that users have."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.node.test_cluster import Nodes, wait_for

import penstock
from penstock import aio

INPUTS = 300
KEYS = [f"k{number}" for number in range(24)]
HOLDER = """
import sys, time, penstock
fabric = penstock.connect(sys.argv[1], timeout=20.0)
table, session = fabric.table("held"), fabric.session(ttl=1.0)
for key in sys.argv[2:]:
    table.put(key, b"mine", session=session)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    started = Nodes(Path(tmp_path_factory.mktemp("outbox")))
    started.start(1, 2, 3)
    wait_for(lambda: started.whole(1, 2, 3) and started.status(1)["level"] >= 2)
    yield started
    started.end()


@pytest.fixture
def url(nodes: Nodes) -> str:
    wait_for(lambda: nodes.whole(1, 2, 3), 30.0)
    return "penstock://" + ",".join(process.listen for process in nodes.processes.values())


def values(count: int) -> list[bytes]:
    return [b"%d" % each for each in range(count)]


def test_every_input_has_one_output_though_a_node_dies(nodes: Nodes, url: str) -> None:
    with penstock.connect(url, timeout=30.0) as fabric:
        source, target = fabric.queue("in"), fabric.queue("out")
        topic, table = fabric.topic("log", 6), fabric.table("state")
        source.push_many(values(INPUTS), batch=1)
        threading.Timer(0.3, lambda: nodes.processes[2].end(signal.SIGKILL)).start()
        done: list[bytes] = []
        while len(done) < INPUTS:
            batch = source.pop_many(7, timeout=40.0)
            assert batch, f"{len(done)} of {INPUTS} were done, and no more came"
            with fabric.transaction() as transaction:
                transaction.ack(*batch)
                for message in batch:
                    transaction.push(target, message.value)
                    transaction.publish(topic, message.value, key=message.value)
                    transaction.put(table, message.value, b"done")
            done += [message.value for message in batch]
        assert sorted(done) == sorted(values(INPUTS))
        nodes.start(2)
        wait_for(lambda: not fabric.stats()["outstanding"], 30.0)
        seen = [message.value for message in topic.subscribe(idle_timeout=1.0)]
        assert sorted(seen) == sorted(values(INPUTS))
        assert {key for key, _ in table.items()} == set(values(INPUTS))
        pushed: list[bytes] = []
        # What was on its way to a consumer when its shard went to another node comes back at once;
        # should it not be heard of there, when its lease is over.
        for message in target.consume(idle_timeout=40.0, max_messages=INPUTS):
            pushed.append(message.value)
            message.ack()
        assert sorted(pushed) == sorted(values(INPUTS))
        assert target.pop(timeout=1.0) is None
        assert source.pop() is None


def test_the_same_in_asyncio(url: str) -> None:
    async def work() -> None:
        async with aio.connect(url, timeout=30.0) as fabric:
            source, topic = await fabric.queue("ain"), await fabric.topic("alog", 6)
            await source.push_many(values(50), batch=1)
            while batch := await source.pop_many(9):
                async with fabric.transaction() as transaction:
                    transaction.ack(*batch)
                    for message in batch:
                        transaction.publish(topic, message.value, key=message.value)
            async with topic.subscribe(idle_timeout=1.0) as reader:
                seen = [read.value async for read in reader]
            assert sorted(seen) == sorted(values(50))
            async with await fabric.session(ttl=5.0) as session:
                table = await fabric.table("aheld")
                await table.put("k", b"v", session=session)
                assert await table.get("k") == b"v"

    asyncio.run(asyncio.wait_for(work(), 60.0))
    with penstock.connect(url, timeout=20.0) as fabric:
        table = fabric.table("aheld")
        wait_for(lambda: table.get("k") is None)


def test_entries_go_when_their_client_is_killed(url: str) -> None:
    with penstock.connect(url, timeout=20.0) as fabric:
        table = fabric.table("held")
        table.put("other", b"stays")
        holder = subprocess.Popen(
            [sys.executable, "-c", HOLDER, url, *KEYS], stdout=subprocess.PIPE, text=True
        )
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "ready\n"
            assert {key for key, _ in table.items()} == {*map(str.encode, KEYS), b"other"}
            holder.kill()
            wait_for(lambda: [key for key, _ in table.items()] == [b"other"], 20.0)
        finally:
            holder.kill()
            holder.communicate()
