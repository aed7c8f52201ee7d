"""A damaged batch on the disk of a real node: its readers do not notice, and `doctor` says so."""

from __future__ import annotations

import re
import signal
from collections import Counter
from pathlib import Path

import pytest
from tests.node.test_cluster import Nodes, wait_for

import penstock
from penstock.node.examine import examine
from penstock.wire import messages as m

VALUES = [b"payload %04d " % number * 500 for number in range(20)]


@pytest.fixture
def nodes(tmp_path: Path) -> Nodes:
    return Nodes(tmp_path)


def break_bytes(folder: Path, found: bytes) -> int:
    """Changes a byte in the middle of these, wherever journals of a node have them; how often."""
    broken = 0
    for journal in folder.glob("j-*"):
        for at in re.finditer(re.escape(found), journal.read_bytes()):
            with journal.open("r+b") as file:
                file.seek(at.start() + len(found) // 2)
                file.write(b"\xff")
            broken += 1
    return broken


def restart(nodes: Nodes) -> str:
    """What was just written is in no node's memory any more. The address of them all."""
    for process in nodes.processes.values():
        process.end(signal.SIGTERM)
    nodes.start(*nodes.processes)
    wait_for(lambda: nodes.whole(*nodes.processes), 30.0)
    return "penstock://" + ",".join(process.listen for process in nodes.processes.values())


def settled_owner(nodes: Nodes, shard: int) -> int:
    """Who owns a shard, once shards move no more and all nodes know it; 0 before: after a restart
    they are shared out, and a node may have an older map than the others."""
    maps = [nodes.map(number) for number in nodes.processes]
    owned = Counter(place.owner for place in maps[0].shards)
    even = len(owned) == len(nodes.processes) and max(owned.values()) - min(owned.values()) <= 1
    agreed = len({known.version for known in maps}) == 1
    return maps[0].owner_of(shard) if even and agreed else 0


def test_readers_get_what_was_written(nodes: Nodes) -> None:
    try:
        nodes.start(1, 2, 3)
        wait_for(lambda: nodes.whole(1, 2, 3), 30.0)
        with nodes.processes[1].connect() as fabric:
            topic = fabric.topic("t", 1)
            for value in VALUES:
                topic.publish(value)
            shard = topic.info.placement[0]
        url = restart(nodes)
        owner = wait_for(lambda: settled_owner(nodes, shard), 60.0)
        folder = nodes.processes[owner].data
        assert break_bytes(folder, VALUES[7])
        with penstock.connect(url) as fabric:
            batches = list(fabric.topic("t").read(0))
        assert [value for batch in batches for value in batch.values] == VALUES
        wait_for(lambda: nodes.call(owner, m.Stats())["repaired"] == 1)
        nodes.processes[owner].end(signal.SIGTERM)
        findings = examine(folder, 0)
        assert (findings.repaired, findings.lost_messages) == (1, 0)
        assert findings.of_a_cluster
    finally:
        nodes.end()
