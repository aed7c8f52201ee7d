"""Who is let in as another node, what a link carries, and what ends it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from penstock.errors import (
    ConflictError,
    InvalidError,
    NotFoundError,
    PenstockError,
    ProtocolError,
    VersionError,
)
from penstock.node import link as link_module
from penstock.node import links as links_module
from penstock.node.clock import Clock
from penstock.node.links import Links
from penstock.node.node import open_directory
from penstock.node.runtime import Runtime
from penstock.node.server import Server
from penstock.wire import messages as m
from penstock.wire.frames import FRAME, FRAME_BYTES, Flag, Verb, frame, read_error

CLUSTER = 9
ME = m.Peer(1, 1, CLUSTER, 1, 2, "7.8")
PATIENCE_S = 10.0


class Recorder:
    """What happened to the links of a node."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int]] = []
        self.messages: list[bytes] = []
        self.refusal: ProtocolError | None = None

    def linked(self, peer: m.Peer) -> None:
        self.events.append(("linked", peer.node))

    def unlinked(self, node: int) -> None:
        self.events.append(("unlinked", node))

    def outdated(self, reason: VersionError) -> None:
        self.events.append(("outdated", 0))

    def received(self, node: int, messages: list[memoryview]) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.messages += map(bytes, messages)


class Node:
    """A node's server and links, with nothing behind them; node 2 in incarnation 3 is known."""

    def __init__(self, server: Server, number: int, highest: int = 2) -> None:
        self.server = server
        self.recorder = Recorder()
        self.level = 1
        known = {1: 1, 2: 3}
        me = m.Peer(number, known[number], CLUSTER, 1, highest, "7.8")
        self.links = Links(me, 8, self.recorder, known.get, lambda: self.level)
        server.accept_peer = self.links.accept

    async def stranger(self) -> Stranger:
        ours, theirs = socket.socketpair()
        await self.server.adopt(ours)
        theirs.setblocking(False)
        return Stranger(theirs)


class Stranger:
    """The other end of a pair of sockets."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected

    async def send(self, *frames: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.socket, b"".join(frames))

    async def receive(self) -> tuple[int, int, bytes]:
        """Verb, flags and body of the next frame; EOFError if there is none any more."""
        length, verb, flags, _, _ = FRAME.unpack(await self._exactly(FRAME_BYTES))
        return verb, flags, await self._exactly(length - FRAME_BYTES)

    async def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            part = await asyncio.get_running_loop().sock_recv(self.socket, count - len(data))
            if not part:
                raise EOFError
            data += part
        return data

    async def greet(self, node: int = 2, incarnation: int = 3, cluster: int = CLUSTER) -> m.Welcome:
        await self.send(hello(node, incarnation, cluster))
        verb, flags, body = await self.receive()
        assert verb == Verb.HELLO
        if flags & Flag.ERROR:
            raise read_error(body)
        return msgspec.msgpack.decode(body, type=m.Welcome)

    async def is_closed(self) -> bool:
        try:
            while True:
                await asyncio.wait_for(self.receive(), PATIENCE_S)
        except (EOFError, ConnectionResetError):
            self.socket.close()
            return True


def hello(node: int = 2, incarnation: int = 3, cluster: int = CLUSTER) -> bytes:
    greeting = m.Hello(1, peer=m.Peer(node, incarnation, cluster))
    return frame(Verb.HELLO, 0, 0, m.pack(greeting))


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110  # the recorder has no event to wait for
            await asyncio.sleep(0.005)


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[Server]:
    clock = Clock()
    disk, engine = open_directory(str(folder), clock)
    runtime = Runtime(engine, clock)
    server = Server(runtime)
    try:
        yield server
    finally:
        await server.stop()
        await runtime.stop(checkpoint=False)
        disk.close()


@asynccontextmanager
async def node_one(folder: Path, highest: int = 2) -> AsyncIterator[Node]:
    async with serving(folder) as server:
        node = Node(server, 1, highest)
        yield node
        await node.links.stop()


@pytest.mark.parametrize(
    ("peer", "refusal", "text"),
    [
        ((2, 3, 8), InvalidError, "is of cluster 9, not 8"),
        ((5, 1, CLUSTER), NotFoundError, "knows of no other node 5"),
        ((1, 1, CLUSTER), NotFoundError, "knows of no other node 1"),
        ((2, 2, CLUSTER), ConflictError, "incarnation 3 by now"),
    ],
)
def test_who_is_refused_and_told_why(
    tmp_path: Path, peer: tuple[int, int, int], refusal: type[PenstockError], text: str
) -> None:
    async def run() -> None:
        async with node_one(tmp_path) as node:
            stranger = await node.stranger()
            with pytest.raises(refusal, match=text):
                await stranger.greet(*peer)
            assert await stranger.is_closed()
            assert node.recorder.events == []
            assert node.server.connections == {}

    asyncio.run(run())


def test_a_node_without_a_cluster_takes_no_links(tmp_path: Path) -> None:
    async def run() -> None:
        async with node_one(tmp_path) as node:
            node.server.accept_peer = None
            stranger = await node.stranger()
            with pytest.raises(ProtocolError, match="not part of a cluster"):
                await stranger.greet()
            assert await stranger.is_closed()

    asyncio.run(run())


def test_a_link_carries_messages_both_ways(tmp_path: Path) -> None:
    async def run() -> None:
        async with node_one(tmp_path) as node:
            stranger = await node.stranger()
            await stranger.send(hello(), frame(Verb.PEER, 0, 0, b"at once"))
            _, _, body = await stranger.receive()
            assert msgspec.msgpack.decode(body, type=m.Welcome).peer == ME
            large = b"x" * (1 << 20)
            await stranger.send(frame(Verb.PEER, 0), frame(Verb.PEER, 0, 0, large))
            await until(lambda: len(node.recorder.messages) == 2)
            assert node.recorder.messages == [b"at once", large]
            node.links.send(2, [[b"one", b" ", b"message"], [b"two"]])
            node.links.send(7, [[b"to nobody"]])
            assert [(await stranger.receive())[2] for _ in range(2)] == [b"one message", b"two"]
            assert node.links.nodes == {2}
            await node.links.stop()
            assert await stranger.is_closed()
            assert node.recorder.events == [("linked", 2), ("unlinked", 2)]

    asyncio.run(run())


def test_a_newer_link_takes_the_place_of_an_older(tmp_path: Path) -> None:
    async def run() -> None:
        async with node_one(tmp_path) as node:
            older, newer = await node.stranger(), await node.stranger()
            await older.greet()
            await newer.greet(incarnation=4)
            assert await older.is_closed()
            assert node.recorder.events == [("linked", 2), ("unlinked", 2), ("linked", 2)]
            late = await node.stranger()
            with pytest.raises(ConflictError, match="incarnation 4 by now"):
                await late.greet(incarnation=3)
            await newer.send(frame(Verb.PEER, 0, 0, b"still there"))
            await until(lambda: node.recorder.messages == [b"still there"])
            newer.socket.close()
            late.socket.close()

    asyncio.run(run())


def test_a_node_that_does_not_speak_the_level_is_refused_and_told_so(tmp_path: Path) -> None:
    async def run() -> None:
        async with node_one(tmp_path / "1") as one, serving(tmp_path / "2") as server:
            address = await one.server.start("127.0.0.1", 0)
            one.level = 2
            stranger = await one.stranger()
            with pytest.raises(VersionError, match="is at level 2; a node that speaks level 1"):
                await stranger.greet()
            assert await stranger.is_closed()
            two = Node(server, 2, highest=1)
            two.links.expect({1: address})
            await until(lambda: two.recorder.events == [("outdated", 0)])
            assert one.recorder.events == []
            await two.links.stop()

    asyncio.run(run())


def test_a_node_that_is_called_hears_that_it_is_outdated(tmp_path: Path) -> None:
    async def run() -> None:
        async with node_one(tmp_path, highest=1) as node:
            stranger = await node.stranger()
            greeting = m.Hello(1, peer=m.Peer(2, 3, CLUSTER, 1, 2, "7.8", level=2))
            await stranger.send(frame(Verb.HELLO, 0, 0, m.pack(greeting)))
            await until(lambda: ("outdated", 0) in node.recorder.events)
            stranger.socket.close()

    asyncio.run(run())


def test_a_node_gets_in_although_clients_take_all_the_room(tmp_path: Path) -> None:
    async def run() -> None:
        async with node_one(tmp_path) as node:
            node.server.max_connections = 2
            clients = [await node.stranger() for _ in range(3)]
            for client in clients[:2]:
                await client.send(frame(Verb.HELLO, 0, 0, m.pack(m.Hello(1))))
                verb, flags, _ = await client.receive()
                assert (verb, flags) == (Verb.HELLO, Flag.RESPONSE)
            peer = await node.stranger()
            await peer.greet()
            assert node.links.nodes == {2}
            await clients[2].send(frame(Verb.HELLO, 0, 0, m.pack(m.Hello(1))))
            _, flags, body = await clients[2].receive()
            assert flags & Flag.ERROR
            assert "no more connections" in read_error(body).message
            assert await clients[2].is_closed()
            clients[0].socket.close()
            await until(lambda: len(node.server.connections) == 1)
            late = await node.stranger()
            await late.send(frame(Verb.HELLO, 0, 0, m.pack(m.Hello(1))))
            assert (await late.receive())[1] == Flag.RESPONSE
            for each in (clients[1], late, peer):
                each.socket.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    "junk",
    [
        frame(Verb.PUSH, 1, 0, b"x"),
        frame(Verb.PEER, 0, Flag.RESPONSE, b"x"),
        b"\xff" * 64,
        hello(),
    ],
    ids=["another verb", "flags", "no frame", "a second greeting"],
)
def test_what_is_no_message_ends_the_link(tmp_path: Path, junk: bytes) -> None:
    async def run() -> None:
        async with node_one(tmp_path) as node:
            stranger = await node.stranger()
            await stranger.greet()
            await stranger.send(junk)
            assert await stranger.is_closed()
            assert node.recorder.events == [("linked", 2), ("unlinked", 2)]

    asyncio.run(run())


def test_a_message_that_makes_no_sense_ends_the_link(tmp_path: Path) -> None:
    async def run() -> None:
        async with node_one(tmp_path) as node:
            stranger = await node.stranger()
            await stranger.greet()
            node.recorder.refusal = ProtocolError("no sense")
            await stranger.send(frame(Verb.PEER, 0, 0, b"x"))
            assert await stranger.is_closed()
            assert node.recorder.events == [("linked", 2), ("unlinked", 2)]

    asyncio.run(run())


def test_a_node_that_takes_nothing_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "MAX_UNSENT_BYTES", 1 << 20)

    async def run() -> None:
        async with node_one(tmp_path) as node:
            stranger = await node.stranger()
            await stranger.greet()
            for _ in range(16):
                node.links.send(2, [[b"x" * (1 << 20)]])
            await until(lambda: node.recorder.events == [("linked", 2), ("unlinked", 2)])
            stranger.socket.close()

    asyncio.run(run())


def test_a_silent_node_is_cut_off_and_one_that_speaks_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links_module, "BEAT_S", 0.02)
    monkeypatch.setattr(links_module, "SILENCE_S", 0.5)

    async def run() -> None:
        async with node_one(tmp_path) as node:
            stranger = await node.stranger()
            await stranger.greet()
            for _ in range(10):
                verb, _, body = await stranger.receive()
                assert (verb, body) == (Verb.PEER, b"")
                await stranger.send(frame(Verb.PEER, 0))
            assert node.recorder.messages == []
            assert await stranger.is_closed()
            assert node.recorder.events == [("linked", 2), ("unlinked", 2)]

    asyncio.run(run())


def test_the_higher_id_calls_and_calls_again(tmp_path: Path) -> None:
    async def run() -> None:
        async with node_one(tmp_path / "1") as one, serving(tmp_path / "2") as server:
            address = await one.server.start("127.0.0.1", 0)
            two = Node(server, 2)
            two.links.expect({1: address})
            assert two.links.missing == {1}
            await until(lambda: one.links.nodes == {2} and two.links.nodes == {1})
            two.links.send(1, [[b"hello"]])
            await until(lambda: one.recorder.messages == [b"hello"])
            one.recorder.refusal = ProtocolError("no sense")
            two.links.send(1, [[b"nonsense"]])
            await until(lambda: len(one.recorder.events) == 3)
            await until(lambda: len(two.recorder.events) == 3)
            assert one.recorder.events == [("linked", 2), ("unlinked", 2), ("linked", 2)]
            two.links.expect({})
            await until(lambda: one.links.nodes == set())
            assert two.links.missing == set()
            await two.links.stop()

    asyncio.run(run())
