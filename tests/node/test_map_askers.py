"""Clients that wait for a newer map: answered once, with all that changed, or not at all."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.node.test_cluster import Nodes, wait_for

from penstock.cluster.map import patch, read_delta
from penstock.core.effects import Send
from penstock.core.fabric import Fabric
from penstock.errors import LimitError
from penstock.node.map_askers import MapAskers
from penstock.wire.frames import FRAME, FRAME_BYTES, MAPS, Flag, Verb, frame
from penstock.wire.messages import ClusterMap, pack

VERSION = 7
WAIT_MS = 1000


class Asked:
    """A node with one client; the map that the cluster has is a number."""

    def __init__(self) -> None:
        self.newest = VERSION
        self.fabric = Fabric(4, 0)
        self.fabric.connections[1] = {}
        self.askers = MapAskers(self.fabric, lambda version: b"%d-%d" % (version, self.newest))

    def park(self, request: int) -> None:
        self.askers.park(1, request, ClusterMap(VERSION, WAIT_MS))

    def change(self) -> bool:
        self.newest += 1
        return self.askers.tell()

    def answers(self) -> dict[int, tuple[int, bytes]]:
        """Flags and body by request, of what was sent since the last look."""
        found = {}
        for effect in self.fabric.take_effects():
            assert isinstance(effect, Send)
            whole = b"".join(effect.parts)
            _, verb, flags, _, request = FRAME.unpack_from(whole)
            assert verb == Verb.CALL
            found[request] = flags, whole[FRAME_BYTES:]
        return found


@pytest.fixture
def node() -> Asked:
    return Asked()


def test_a_change_is_told_once(node):
    assert MAPS in node.fabric.features
    node.park(5)
    assert node.answers() == {}
    assert node.change()
    assert node.answers() == {5: (Flag.RESPONSE, pack(b"7-8"))}
    assert not node.change()
    node.fabric.tick(10_000_000)
    assert node.answers() == {}


def test_nothing_new_is_told_when_time_is_up(node):
    node.park(5)
    node.fabric.tick(WAIT_MS * 1000 - 1)
    assert node.answers() == {}
    node.fabric.tick(WAIT_MS * 1000)
    assert node.answers() == {5: (Flag.RESPONSE, pack(b"7-7"))}
    assert not node.change()


def test_a_cancelled_question_is_over(node):
    node.park(5)
    node.fabric.handle(1, bytearray(frame(Verb.CANCEL, 5)), 0)
    assert [flags for flags, _ in node.answers().values()] == [Flag.RESPONSE | Flag.ERROR]
    assert not node.change()


def test_a_lost_connection_takes_its_questions_along(node):
    node.park(5)
    node.fabric.disconnect(1)
    assert not node.change()
    node.fabric.tick(10_000_000)
    assert node.answers() == {}


def test_there_is_a_limit(node, monkeypatch):
    monkeypatch.setattr("penstock.node.map_askers.MAX_ASKERS", 2)
    node.park(5)
    node.park(6)
    with pytest.raises(LimitError):
        node.park(7)
    assert node.change()
    node.park(8)


def test_a_node_of_a_cluster_tells(tmp_path):
    nodes = Nodes(tmp_path)
    try:
        nodes.start(1)
        before = wait_for(lambda: nodes.map(1))
        with nodes.client(1) as waiting, nodes.client(1) as other, ThreadPoolExecutor(1) as pool:
            assert MAPS in waiting.welcome.features
            assert waiting.call(ClusterMap(before.version, 10)) == b""
            told = pool.submit(waiting.call, ClusterMap(before.version, 10_000))
            other.open("q")
            delta = told.result(8)
            assert patch(before, read_delta(delta[1:])).version > before.version
    finally:
        nodes.end()
