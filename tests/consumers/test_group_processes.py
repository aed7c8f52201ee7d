"""Members in processes of their own, which are killed, added and stopped, on one node and on three:
what comes out is what the generator says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.consumers import clicks

import penstock
from penstock.cli.local_cluster import LocalCluster

APP = """
from tests.consumers import clicks

Sessions = clicks.sessions
"""
ROOT = Path(__file__).resolve().parent.parent.parent
LEASE = "2s"


class Consumer:
    """One `penstock consume`."""

    def __init__(self, url: str, folder: Path, *options: str) -> None:
        (folder / "sessions_app.py").write_text(APP)
        command = [sys.executable, "-m", "penstock.cli.app", "consume", "sessions_app:Sessions"]
        settings = ["--group", "g", "--topic", "clicks", "--to", "queue:sessions", "--json"]
        timing = ["--lease", LEASE, "--commit-every", "200ms", "--url", url, "--timeout", "20s"]
        paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        self.process = subprocess.Popen(
            [*command, *settings, *timing, *options], stdout=subprocess.PIPE, cwd=folder,
            text=True, env={**os.environ, "PYTHONPATH": paths},
        )  # fmt: skip
        assert self.process.stdout is not None
        joined = json.loads(self.process.stdout.readline() or "{}")
        assert joined.get("event") == "joined"
        self.id: str = joined["id"]

    def kill(self) -> None:
        self.process.kill()
        self._end()

    def stop(self, number: int = signal.SIGTERM) -> dict[str, Any]:
        """Has it leave; what it said at last."""
        self.process.send_signal(number)
        lines = self._end()
        assert self.process.returncode == 0
        last: dict[str, Any] = json.loads(lines[-1])
        assert last["event"] == "left"
        return last

    def _end(self) -> list[str]:
        out, _ = self.process.communicate(timeout=60)
        return out.splitlines()


class Nodes:
    """A node, or a cluster of three, and its consumers."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder
        self.cluster = LocalCluster(folder / "cluster") if count > 1 else None
        self.node: subprocess.Popen[str] | None = None
        self.consumers: list[Consumer] = []
        if self.cluster is not None:
            self.cluster.start(count)
            self.cluster.wait_until_whole()
            self.url = self.cluster.url
            return
        self.start_node("127.0.0.1:0")

    def start_node(self, listen: str) -> None:
        command = [sys.executable, "-m", "penstock.node", "--data", str(self.folder / "data")]
        self.node = subprocess.Popen(
            [*command, "--listen", listen], stdout=subprocess.PIPE, text=True
        )
        assert self.node.stdout is not None
        self.url = self.node.stdout.readline().strip()

    def kill_node(self) -> None:
        assert self.node is not None
        self.node.kill()
        self.node.communicate()

    def consumer(self, *options: str) -> Consumer:
        self.consumers.append(Consumer(self.url, self.folder, *options))
        return self.consumers[-1]

    def close(self) -> None:
        for consumer in self.consumers:
            if consumer.process.poll() is None:
                consumer.kill()
        if self.node is not None:
            self.kill_node()
        if self.cluster is not None:
            self.cluster.stop()


@pytest.fixture(params=[1, 3], ids=["one-node", "three-nodes"])
def nodes(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Nodes]:
    running = Nodes(tmp_path, request.param)
    yield running
    running.close()


def until(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    ends = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < ends, "it does not come to that"
        time.sleep(0.05)


def owners(topic: penstock.Topic) -> set[str]:
    return {claim.owner for claim in topic.claims("g").values() if claim.left_ms}


@pytest.mark.slow
@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once", "at-most-once"])
def test_kills_and_moves_keep_the_guarantee(nodes: Nodes, guarantee: str):
    with penstock.connect(nodes.url, timeout=20) as fabric:
        topic = fabric.topic("clicks", clicks.PARTITIONS)
        feed = clicks.publish(topic, 20)

        def publish(steps: int) -> None:
            for _ in zip(range(steps), feed, strict=False):
                time.sleep(0.01)

        options = ("--guarantee", guarantee)
        first = nodes.consumer(*options)
        publish(20)
        second = nodes.consumer(*options)
        until(lambda: owners(topic) == {first.id, second.id})
        publish(20)
        first.kill()
        publish(20)
        until(lambda: owners(topic) == {second.id})
        third = nodes.consumer(*options)
        until(lambda: owners(topic) == {second.id, third.id})
        publish(20)
        left = second.stop()
        until(lambda: owners(topic) == {third.id})
        publish(10_000)
        until(lambda: sum(claim.lag for claim in topic.claims("g").values()) == 0)
        last = third.stop()
        assert clicks.mistakes(clicks.delivered(fabric.queue("sessions")), guarantee) == []
        assert left["resumes"]["count"] > 0  # of those that were killed
        assert last["handovers"]["count"] == clicks.PARTITIONS
        assert last["read_again"] == 0


@pytest.mark.slow
def test_a_topic_grows_while_members_are_killed(nodes: Nodes):
    with penstock.connect(nodes.url, timeout=20) as fabric:
        topic = fabric.topic("clicks", clicks.PARTITIONS)
        feed = clicks.publish(topic, 20)

        def publish(steps: int) -> None:
            for _ in zip(range(steps), feed, strict=False):
                time.sleep(0.01)

        first, second = nodes.consumer(), nodes.consumer()
        until(lambda: owners(topic) == {first.id, second.id})
        publish(20)
        topic.grow(7)
        publish(2)
        first.kill()
        publish(20)
        third = nodes.consumer()
        topic.grow(9)
        until(lambda: len(topic.committed("g")) == 9)
        publish(10_000)
        until(lambda: sum(claim.lag for claim in topic.claims("g").values()) == 0)
        until(lambda: owners(topic) == {second.id, third.id})
        for each in (second, third):
            each.stop()
        assert clicks.mistakes(clicks.delivered(fabric.queue("sessions")), "exactly-once") == []


@pytest.mark.slow
@pytest.mark.parametrize("away", [0.0, 4.0], ids=["at-once", "after-the-lease"])
def test_a_node_that_is_killed_and_comes_back(tmp_path: Path, away: float):
    nodes = Nodes(tmp_path, 1)
    try:
        with penstock.connect(nodes.url, timeout=30) as fabric:
            topic = fabric.topic("clicks", clicks.PARTITIONS)
            feed = clicks.publish(topic, 20)
            consumers = [nodes.consumer() for _ in range(2)]
            until(lambda: len(owners(topic)) == 2)
            for _ in zip(range(40), feed, strict=False):
                time.sleep(0.01)
            nodes.kill_node()
            time.sleep(away)
            nodes.start_node(nodes.url.removeprefix("penstock://"))
            list(feed)
            until(lambda: sum(claim.lag for claim in topic.claims("g").values()) == 0)
            until(lambda: owners(topic) == {each.id for each in consumers})
            for each in consumers:
                each.stop()
            assert clicks.mistakes(clicks.delivered(fabric.queue("sessions")), "exactly-once") == []
    finally:
        nodes.close()


@pytest.mark.slow
def test_a_member_that_is_paused_longer_than_its_lease_does_no_harm(nodes: Nodes):
    with penstock.connect(nodes.url, timeout=20) as fabric:
        topic = fabric.topic("clicks", clicks.PARTITIONS)
        feed = clicks.publish(topic, 20)
        first, second = nodes.consumer(), nodes.consumer()
        until(lambda: owners(topic) == {first.id, second.id})
        for _ in zip(range(30), feed, strict=False):
            time.sleep(0.01)
        first.process.send_signal(signal.SIGSTOP)
        for _ in zip(range(30), feed, strict=False):
            time.sleep(0.01)
        until(lambda: owners(topic) == {second.id})
        first.process.send_signal(signal.SIGCONT)
        list(feed)
        until(lambda: owners(topic) == {first.id, second.id})
        until(lambda: sum(claim.lag for claim in topic.claims("g").values()) == 0)
        for each in (first, second):
            each.stop()
        assert clicks.mistakes(clicks.delivered(fabric.queue("sessions")), "exactly-once") == []


@pytest.mark.slow
def test_the_command_says_what_is_wrong(nodes: Nodes, tmp_path: Path):
    def fails(*arguments: str) -> str:
        command = [sys.executable, "-m", "penstock.cli.app", "consume", *arguments]
        settings = ["--group", "g", "--topic", "clicks", "--to", "queue:s", "--url", nodes.url]
        run = subprocess.run(
            [*command, *settings], capture_output=True, text=True, cwd=tmp_path, timeout=60
        )
        assert run.returncode == 1
        assert "Traceback" not in run.stderr
        return run.stderr

    (tmp_path / "broken.py").write_text("1 / 0\n")
    (tmp_path / "half.py").write_text(
        "import penstock.consumers.sessions as s\nclass Mine(s.Sessionizer): pass\nx = 7\n"
    )
    assert "MODULE:NAME" in fails("half")
    assert "no module 'nosuch'" in fails("nosuch:Thing")
    assert "ZeroDivisionError" in fails("broken:Thing")
    assert "Mine" in fails("half:Other")
    assert "int" in fails("half:x")
