"""Threads that use one fabric for everything at once, and take turns as often as they can."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

import penstock
from penstock.cli.benchmarks.processes import NodeProcess
from penstock.client import protocol

THREADS = 8
TURNS = 400  # of each


@pytest.fixture
def fabric(tmp_path: Path) -> Iterator[penstock.Fabric]:
    before = sys.getswitchinterval()
    with NodeProcess(tmp_path / "data") as node, penstock.connect(node.url) as connected:
        sys.setswitchinterval(1e-6)
        try:
            yield connected
        finally:
            sys.setswitchinterval(before)


class Work:
    """Things to do, and how often what was done."""

    def __init__(self, fabric: penstock.Fabric) -> None:
        self.fabric = fabric
        self.queue = fabric.queue("q")
        self.done = fabric.queue("done")
        self.topic = fabric.topic("t", partitions=4)
        self.table = fabric.table("kv")
        self.counts: Counter[str] = Counter()
        self.lock = threading.Lock()

    def count(self, what: str, messages: int) -> None:
        with self.lock:
            self.counts[what] += messages

    def push(self, _: Random) -> None:
        self.queue.push(b"x")
        self.count("pushed", 1)

    def push_many(self, _: Random) -> None:
        self.queue.push_many([b"x"] * 20)
        self.count("pushed", 20)

    def pop(self, _: Random) -> None:
        message = self.queue.pop()
        if message is not None:
            message.ack(wait=True)
            self.count("acked", 1)

    def consume(self, _: Random) -> None:
        for message in self.queue.consume(idle_timeout=0.0, max_messages=10):
            message.ack()
            self.count("acked", 1)

    def transact(self, _: Random) -> None:
        message = self.queue.pop()
        if message is not None:
            with self.fabric.transaction() as transaction:
                transaction.ack(message)
                transaction.push(self.done, b"done")
            self.count("acked", 1)
            self.count("done", 1)

    def publish(self, random: Random) -> None:
        self.topic.publish(b"x", key=b"%d" % random.randrange(50))
        self.count("published", 1)

    def put(self, random: Random) -> None:
        self.table.put(b"%d" % random.randrange(10), b"v")

    def get(self, random: Random) -> None:
        self.table.get(b"%d" % random.randrange(10))

    def look(self, _: Random) -> None:
        self.queue.stats()


def test_threads_share_a_fabric_for_everything(
    fabric: penstock.Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "_REMEMBERED", 32)  # so that some are forgotten
    work = Work(fabric)
    ways: list[Callable[[Random], None]] = [
        work.push, work.push_many, work.pop, work.consume, work.transact, work.publish, work.put,
        work.get, work.look,
    ]  # fmt: skip
    failures: list[BaseException] = []

    def run(seed: int) -> None:
        random = Random(seed)
        try:
            for _ in range(TURNS):
                random.choice(ways)(random)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    work.queue.flush()
    assert failures == []
    assert work.queue.refused == 0
    assert work.queue.stats()["messages"] == work.counts["pushed"] - work.counts["acked"]
    assert work.done.stats()["messages"] == work.counts["done"]
    ends = sum(each["end"] - each["start"] for each in work.topic.stats()["partitions"])
    assert ends == work.counts["published"]
