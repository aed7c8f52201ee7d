"""Nodes of a cluster in processes of their own: they start, die, join and leave."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.node.conftest import NodeProcess
from tests.node.raw import RawClient

import penstock
from penstock.cluster.map import ClusterMap, patch, read_delta, read_map
from penstock.errors import ExistsError, InvalidError, MovedError, PenstockError, UnavailableError
from penstock.wire import messages as m

T = TypeVar("T")
PRODUCER = 7


def wait_for(look: Callable[[], T | None], seconds: float = 15.0) -> T:
    """What `look` finds, as soon as it does; errors of nodes that are away count as nothing yet."""
    until = time.monotonic() + seconds
    while True:
        try:
            found = look()
        except (OSError, UnavailableError):
            found = None
        if found:
            return found
        assert time.monotonic() < until, f"not within {seconds} s"
        time.sleep(0.02)


class Nodes:
    """A cluster on this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: dict[int, NodeProcess] = {}
        self.environment: dict[str, str] = {}

    def start(self, *numbers: int) -> None:
        """The first one founds; the others join, in this order, so that ids are known."""
        for number in numbers:
            known = number in self.processes
            process = self.processes.setdefault(number, NodeProcess(self.folder / str(number)))
            seed = "" if known or number == 1 else self.processes[1].listen
            process.environment = self.environment
            process.options = [] if known else ["--join", seed] if seed else ["--cluster"]
            process.start()

    def client(self, number: int) -> RawClient:
        return RawClient(self.processes[number].address)

    def call(self, number: int, call: m.Request) -> Any:
        with self.client(number) as client:
            return client.call(call)

    def status(self, number: int) -> dict[str, Any]:
        found: dict[str, Any] = self.call(number, m.ClusterStatus())
        return found

    def map(self, number: int) -> ClusterMap:
        packed = self.call(number, m.ClusterMap())
        assert packed[:1] == b"m"
        return read_map(packed[1:])

    def whole(self, *numbers: int) -> bool:
        """Whether these nodes share the shards, and each of them has a second copy."""
        status = self.status(numbers[0])
        owns = {node["id"]: node["owns"] for node in status["nodes"]}
        known = self.map(numbers[0])
        return all(owns.get(number) for number in numbers) and all(
            len(place.in_sync) >= 2 for place in known.shards
        )

    def owned_by(self, number: int) -> int:
        known = self.map(number)
        return next(s for s in range(len(known.shards)) if known.owner_of(s) == number)

    def end(self) -> None:
        for process in self.processes.values():
            if process.process is not None:
                process.end()


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    started = Nodes(tmp_path)
    yield started
    started.end()


def test_a_cluster_survives_its_owner_grows_and_shrinks(nodes: Nodes) -> None:
    nodes.start(1, 2, 3)
    wait_for(lambda: nodes.whole(1, 2, 3))

    with nodes.client(2) as client:
        assert client.welcome.cluster_map > 0
        info = client.open("q")
    assert info["options"]["durability"] == "replicated"
    for number in (1, 2, 3):
        wait_for(lambda number=number: nodes.call(number, m.Streams("queue")))  # type: ignore[misc]
    stream = info["id"]
    with ThreadPoolExecutor(3) as pool:
        opened = list(pool.map(lambda n: nodes.call(n, m.Open("topic", "t")), (1, 2, 3)))
    assert opened[0] == opened[1] == opened[2]

    shard = nodes.owned_by(2)
    with nodes.client(2) as client:
        assert client.push(stream, shard, b"safe", PRODUCER, 0)
    with nodes.client(1) as client, pytest.raises(MovedError):
        client.push(stream, shard, b"elsewhere", PRODUCER, 1)

    nodes.processes[2].end(signal.SIGKILL)
    killed = time.monotonic()
    heir = wait_for(lambda: {nodes.map(1).owner_of(shard)} - {2}, 3.0).pop()
    assert time.monotonic() - killed < 3.0

    def resend() -> bool:
        with nodes.client(heir) as client:
            return not client.push(stream, shard, b"safe", PRODUCER, 0)

    assert wait_for(resend), "it was stored before"
    with nodes.client(heir) as client:
        ((value, token),) = client.pop(stream)
        assert value == b"safe"
        assert client.ack(token)

    nodes.start(2)
    wait_for(lambda: nodes.whole(1, 2, 3))
    nodes.start(4)
    wait_for(lambda: nodes.whole(1, 2, 3, 4))
    assert nodes.call(4, m.Streams("queue"))[0]["id"] == stream

    nodes.call(3, m.ClusterChange("drain", 4))
    wait_for(lambda: nodes.status(1)["nodes"][3]["has"] == 0, 20.0)
    nodes.call(1, m.ClusterChange("remove", 4))
    assert [node["id"] for node in nodes.status(1)["nodes"]] == [1, 2, 3]


def test_a_clean_stop_hands_over(nodes: Nodes) -> None:
    nodes.start(1, 2)
    wait_for(lambda: nodes.whole(1, 2))
    before = nodes.map(2)
    assert nodes.processes[1].end(signal.SIGTERM) == 0
    after = nodes.map(2)
    assert {after.owner_of(shard) for shard in range(len(after.shards))} == {2}
    assert before.version < after.version
    with nodes.client(2) as client, pytest.raises(UnavailableError, match="no majority"):
        client.open("q")
    nodes.start(1)
    wait_for(lambda: nodes.whole(1, 2))


def test_the_data_of_one_node_becomes_a_cluster(nodes: Nodes, tmp_path: Path) -> None:
    with penstock.open(str(tmp_path / "1")) as fabric:
        fabric.queue("old").push(b"kept")
        fabric.queue("gone").delete()
        stream = fabric.queue("late").info.id
    nodes.start(1)
    with nodes.client(1) as client:
        ((value, _),) = client.pop(client.open("old")["id"])
        assert value == b"kept"
        before = nodes.map(1)
        assert client.open("new")["id"] > stream
        delta = client.call(m.ClusterMap(before.version))
        assert delta[:1] == b"d"
        assert patch(before, read_delta(delta[1:])) == (after := nodes.map(1))
        assert client.call(m.ClusterMap(after.version)) == b""
        with pytest.raises(ExistsError):
            client.open("new", lease_ms=5)
        changed = client.call(m.Configure(stream, {"lease_ms": 5}))
        assert changed["options"]["lease_ms"] == 5
        assert client.open("late", lease_ms=5)["id"] == stream
        assert client.call(m.Delete("queue", "new"))
        assert not client.call(m.Delete("queue", "new"))
    _check_who_cannot_join(nodes, tmp_path / "alone")
    assert nodes.processes[1].end(signal.SIGTERM) == 0
    with pytest.raises(InvalidError, match="node of a cluster"):
        penstock.open(str(tmp_path / "1"))

    nodes.start(1)

    def names() -> list[str]:
        return [info["name"] for info in nodes.call(1, m.Streams("queue"))]

    wait_for(lambda: nodes.status(1)["present"])
    assert names() == ["late", "old"]


def _check_who_cannot_join(nodes: Nodes, folder: Path) -> None:
    """One who has data already. It can be started alone, and is no help for others then."""
    with penstock.open(str(folder)) as fabric:
        fabric.queue("q")
    alone = NodeProcess(folder)
    command = [sys.executable, "-m", "penstock.node", "--data", str(folder)]
    command += ["--listen", "127.0.0.1:0", "--join", nodes.processes[1].listen]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert refused.returncode == 1
    assert refused.stderr.startswith("error: this directory holds the data of a node that stood")
    alone.start()
    with RawClient(alone.address) as client, pytest.raises(PenstockError, match="not part of a"):
        client.call(m.ClusterJoin("me"))
    alone.end()
