"""A rolling upgrade of real nodes under load, from a release that speaks the first level only."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest
from tests.node.test_cluster import Nodes, wait_for

import penstock
from penstock.cluster.levels import HIGHEST
from penstock.errors import ConflictError, PenstockError, UnavailableError
from penstock.node.admission import LEVEL_VARIABLE

OLD = {LEVEL_VARIABLE: "1"}
BATCH = 20


class Load:
    """Pushes and consumes until it is told to stop; knows what must have arrived."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.pushed: list[bytes] = []
        self.acked: Counter[bytes] = Counter()
        self.problems: list[str] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=run) for run in (self._push, self._consume)]
        for thread in self._threads:
            thread.start()

    def _push(self) -> None:
        try:
            with penstock.connect(self.url, timeout=30.0) as fabric:
                queue, number = fabric.queue("work"), 0
                while not self._stop.wait(0.05):
                    values = [b"%d" % each for each in range(number, number + BATCH)]
                    queue.push_many(values)
                    self.pushed += values
                    number += BATCH
        except PenstockError as error:
            self.problems.append(f"push: {error}")

    def _consume(self) -> None:
        try:
            with penstock.connect(self.url, timeout=30.0) as fabric:
                queue = fabric.queue("work")
                while not self._stop.is_set():
                    self._take(queue, wait=0.2)
        except PenstockError as error:
            self.problems.append(f"consume: {error}")

    def _take(self, queue: penstock.Queue, wait: float) -> None:
        for message in queue.pop_many(100, timeout=wait):
            try:
                message.ack(wait=True)
            except UnavailableError:
                raise
            except PenstockError:
                continue  # another delivery counts
            self.acked[message.value] += 1

    def end(self) -> None:
        """All that was pushed is acknowledged, once."""
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
        with penstock.connect(self.url, timeout=30.0) as fabric:
            queue = fabric.queue("work")

            def drained() -> bool:
                self._take(queue, wait=1.0)
                return set(self.acked) >= set(self.pushed)

            wait_for(drained, 60.0)
        assert self.problems == []
        assert set(self.acked.values()) == {1}


@pytest.fixture
def nodes(tmp_path: Path) -> Nodes:
    return Nodes(tmp_path)


def level(nodes: Nodes, number: int) -> int:
    found: int = nodes.status(number)["level"]
    return found


def grow(nodes: Nodes, partitions: int) -> int:
    """What only nodes of the newest level know."""
    with penstock.connect(f"penstock://{nodes.processes[2].listen}") as fabric:
        topic = fabric.topic("events", 2)
        topic.grow(partitions)
        return topic.partitions


def upgrade(nodes: Nodes, number: int) -> None:
    assert nodes.processes[number].end(signal.SIGTERM) == 0
    nodes.environment = {}
    nodes.start(number)
    wait_for(lambda: nodes.whole(1, 2, 3), 30.0)


def test_a_rolling_upgrade_under_load(nodes: Nodes) -> None:
    nodes.environment = OLD
    try:
        nodes.start(1, 2, 3)
        wait_for(lambda: nodes.whole(1, 2, 3))
        listen = (process.listen for process in nodes.processes.values())
        load = Load(f"penstock://{','.join(listen)}")
        for number in (3, 2, 1):
            assert level(nodes, 1) == 1
            with pytest.raises(ConflictError):
                grow(nodes, 3)
            upgrade(nodes, number)
        wait_for(lambda: {level(nodes, number) for number in (1, 2, 3)} == {HIGHEST})
        assert grow(nodes, 3) == 3
        shown = nodes.status(2)["nodes"]
        assert {tuple(node["speaks"]) for node in shown} == {(1, HIGHEST)}
        assert all(node["release"] for node in shown)
        load.end()
        assert len(load.pushed) > BATCH
        _check_who_is_refused(nodes)
    finally:
        nodes.end()


def _check_who_is_refused(nodes: Nodes) -> None:
    """Neither a new node nor one that was there before comes with the old release."""
    seed = nodes.processes[1].listen
    newcomer = ["--join", seed, "--data", str(nodes.folder / "4")]
    before = ["--data", str(nodes.folder / "3")]
    nodes.processes[3].end(signal.SIGTERM)
    for options in (newcomer, before):
        command = [sys.executable, "-m", "penstock.node", "--listen", "127.0.0.1:0", *options]
        refused = subprocess.run(
            command, env={**os.environ, **OLD}, capture_output=True, text=True, timeout=60
        )
        assert refused.returncode == 1
        assert f"the cluster is at level {HIGHEST}; a node with Penstock" in refused.stderr
        assert "speaks level 1" in refused.stderr
        assert "release of the other nodes" in refused.stderr
    nodes.start(3)
    wait_for(lambda: nodes.whole(1, 2, 3), 30.0)
