"""Nodes of a cluster for tests: small servers that speak the protocol, in front of one engine.

The engine stands for what the nodes replicate. Each node refuses what it does not own, as the map
says; and nodes can be killed, made silent, or made to lose their answers.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

import msgspec
import pytest
from tests.client.conftest import SEGMENT_BYTES

from penstock.cluster.map import ClusterMap, NodeInfo, ShardPlace, diff, pack
from penstock.embedded import Inline, InlineTransport
from penstock.engine.recovery import open_engine
from penstock.errors import MovedError, UnavailableError
from penstock.store.memory import MemoryDisk
from penstock.testing import FakeClock
from penstock.wire import frames, messages
from penstock.wire.frames import (
    FRAME,
    FRAME_BYTES,
    MAPS,
    Flag,
    Splitter,
    Verb,
    error_frame,
    frame,
)

SHARDS = 16
_OF_PARTITIONS = (messages.Offsets, messages.OffsetAt, messages.Committed, messages.Claims)
_read_welcome = msgspec.msgpack.Decoder(messages.Welcome).decode


def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients lose patience sooner than they do in earnest."""
    monkeypatch.setattr("penstock.client.aio_watch._TICK_S", 0.1)
    monkeypatch.setattr("penstock.client.aio_watch._SILENT_S", 0.2)
    monkeypatch.setattr("penstock.client.aio_links._ASK_S", 0.5)
    monkeypatch.setattr("penstock.client.routing._OPENED_S", 0.3)


class FakeCluster:
    """`moves` shards between nodes; `map` is what the nodes say unless they are `stale`."""

    def __init__(self, nodes: int = 3) -> None:
        self.clock = FakeClock()
        disk = MemoryDisk()
        engine = open_engine(
            disk, self.clock.now_us(), 7, shards=SHARDS, node="fake", segment_bytes=SEGMENT_BYTES
        )
        self.inline = Inline(engine, disk, self.clock)
        self.maps: list[ClusterMap] = []
        self.nodes = {number: FakeNode(self, number) for number in range(1, nodes + 1)}
        self._publish([shard % nodes + 1 for shard in range(SHARDS)])

    @property
    def map(self) -> ClusterMap:
        return self.maps[-1]

    @property
    def url(self) -> str:
        return "penstock://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes.values())

    def _publish(self, owners: list[int]) -> None:
        version = len(self.maps) + 1
        infos = tuple(
            NodeInfo(node.number, f"n{node.number}", "127.0.0.1", node.port, "up", 1)
            for node in self.nodes.values()
        )
        places = tuple(ShardPlace(version, (owner,), (owner,)) for owner in owners)
        self.maps.append(ClusterMap(7, version, infos, places, 1))
        for node in self.nodes.values():
            node.tell()

    def move(self, shards: Iterator[int] | range | list[int], to: int) -> None:
        owners = [place.owner for place in self.map.shards]
        for shard in shards:
            owners[shard] = to
        self._publish(owners)

    def owned(self, node: int) -> list[int]:
        return [shard for shard in range(SHARDS) if self.map.owner_of(shard) == node]

    def fail_over(self, node: int, to: int) -> None:
        """A node dies, and another gets its shards."""
        self.nodes[node].kill()
        self.move(self.owned(node), to)

    def count(self, verb: int) -> dict[int, int]:
        return {
            number: sum(each == verb for each, _ in node.seen)
            for number, node in self.nodes.items()
        }

    def close(self) -> None:
        for node in self.nodes.values():
            node.kill()
        self.inline.close()


class FakeNode:
    """One front. `has_messages`: whether pops and subscriptions find any here."""

    def __init__(self, cluster: FakeCluster, number: int) -> None:
        self.cluster = cluster
        self.number = number
        self.has_messages = True
        self.stale = False  # refuses by its old map, and tells no newer one
        self.silent = False  # takes requests, and neither does nor answers anything
        self.ignores = 0  # a verb: requests of it are neither done nor answered
        self.lose_answers = 0  # so many requests are done, and the connection breaks instead
        self.tells = True  # holds a question for a newer map until there is one
        self.asked: list[tuple[_Connection, int, int]] = []  # those: request and version
        self.seen: list[tuple[int, int]] = []  # verb and flags
        self._lines: list[_Connection] = []
        self._door = threading.Lock()  # nobody comes in while it is being closed
        self._version = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._listen()

    @property
    def map(self) -> ClusterMap:
        if not self.stale:
            self._version = len(self.cluster.maps)
        return self.cluster.maps[self._version - 1]

    def _listen(self) -> None:
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                accepted, _ = listener.accept()
                with self._door:
                    if listener.fileno() < 0:  # killed meanwhile: whoever came in was let in dead
                        accepted.close()
                    else:
                        self._lines.append(_Connection(self, accepted))

    def kill(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        with self._door:
            self._listener.close()
            for line in self._lines:
                line.close()
            self._lines.clear()

    def revive(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._listen()

    def lose_track(self) -> None:
        """Of all connections that there are: they stay, and nothing more is done on them."""
        for line in self._lines:
            line.silent = True

    def break_connections(self) -> None:
        for line in self._lines:
            line.close()
        self._lines.clear()

    def owns(self, shard: int) -> bool:
        return self.map.owner_of(shard) == self.number

    def tell(self) -> None:
        """There is a newer map: whoever waits for one gets it."""
        asked, self.asked = self.asked, []
        for line, request, version in asked:
            if self.silent or self.stale:
                self.asked.append((line, request, version))
            else:
                with contextlib.suppress(OSError):
                    line.send_map(request, version)

    def map_since(self, version: int) -> bytes:
        now = self.map
        if version >= now.version:
            return b""
        if version:
            return b"d" + pack(diff(self.cluster.maps[version - 1], now))
        return b"m" + pack(now)


class _Connection:
    """Two threads: one asks the engine, the other answers."""

    def __init__(self, node: FakeNode, accepted: socket.socket) -> None:
        self._node = node
        self._socket = accepted
        self._inner = InlineTransport(node.cluster.inline)
        self._sending = threading.Lock()
        self.silent = False
        for work in (self._ask, self._answer):
            threading.Thread(target=self._run, args=(work,), daemon=True).start()

    def _run(self, work: Callable[[], None]) -> None:
        with contextlib.suppress(OSError, UnavailableError):
            work()
        self.close()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._inner.close()

    def _send(self, whole: bytes | bytearray) -> None:
        with self._sending:
            self._socket.sendall(whole)

    def _answer(self) -> None:
        while True:
            for each in self._inner.receive(1.0):
                _, verb, flags, _, request = FRAME.unpack_from(each)
                if verb == Verb.HELLO and not flags & Flag.ERROR:
                    welcome = _read_welcome(each[FRAME_BYTES:])
                    welcome.cluster_map = self._node.map.version
                    if self._node.tells:
                        welcome.features.append(MAPS)
                    self._send(frame(verb, request, flags, messages.pack(welcome)))
                    continue
                if self._node.lose_answers and flags & Flag.RESPONSE:
                    self._node.lose_answers -= 1
                    raise OSError("lost")
                self._send(each)

    def _ask(self) -> None:
        splitter = Splitter()
        while True:
            data = bytearray(1 << 16)
            rest = splitter.buffer()
            count = self._socket.recv_into(data if rest is None else rest)
            if not count:
                return
            if rest is None:
                found = splitter.feed(memoryview(data)[:count])
            else:
                whole = splitter.filled(count)
                found = [] if whole is None else [whole]
            for each in found:
                self._handle(each)

    def _handle(self, each: bytearray) -> None:
        _, verb, flags, _, request = FRAME.unpack_from(each)
        self._node.seen.append((verb, flags))
        if self.silent or self._node.silent or self._node.ignores == verb:
            return
        answer = self._refusal(verb, request, memoryview(each)[FRAME_BYTES:])
        if answer is None:
            self._inner.send([each])
        elif answer:
            self._send(answer)

    def _refusal(self, verb: int, request: int, body: memoryview) -> bytes | None:
        """What the node answers itself; None if the engine does. Empty: nothing for now."""
        node = self._node
        if verb == Verb.CALL:
            return self._call(request, messages.read_request(body))
        if verb == Verb.PUSH:
            shards = [frames.PushBody(*frames.PUSH.unpack_from(body)).shard]
        elif verb == Verb.FETCH:
            head = frames.FetchBody(*frames.FETCH.unpack_from(body))
            shards = [self._placement(head.stream)[head.partition]]
        elif verb == Verb.SETTLE:
            _, items = frames.read_settle(body)
            lost = [at for at, item in enumerate(items) if not node.owns(item.shard)]
            if not lost:
                return None
            rows = b"".join(frames.REFUSED.pack(at, MovedError.code) for at in range(len(items)))
            answer = frames.COUNT.pack(0, len(items)) + rows
            return frame(verb, request, Flag.RESPONSE, answer)
        elif verb in (Verb.POP, Verb.SUBSCRIBE) and not node.has_messages:
            parked = verb == Verb.POP and frames.PopBody(*frames.POP.unpack_from(body)).wait_ms
            empty = frames.COUNT.pack(0, 0) if verb == Verb.POP else b""
            return b"" if parked else frame(verb, request, Flag.RESPONSE, empty)
        else:
            return None
        if all(node.owns(shard) for shard in shards):
            return None
        return error_frame(verb, request, MovedError("not mine"))

    def send_map(self, request: int, version: int) -> None:
        body = messages.pack(self._node.map_since(version))
        self._send(frame(Verb.CALL, request, Flag.RESPONSE, body))

    def _placement(self, stream: int) -> list[int]:
        return self._node.cluster.inline.engine.fabric.kernel.streams[stream].info.placement

    def _call(self, request: int, call: messages.Request) -> bytes | None:
        node = self._node
        if isinstance(call, messages.ClusterMap):
            if call.wait_ms and call.version >= node.map.version:
                node.asked.append((self, request, call.version))
            else:
                self.send_map(request, call.version)
            return b""
        shards: list[int] = []
        kernel = node.cluster.inline.engine.fabric.kernel
        if isinstance(call, messages.Put | messages.Get | messages.Remove):
            shards = [kernel.shard_of(call.key).id]
        elif isinstance(call, messages.Release):
            shards = [kernel.shard_of(key).id for key in call.ids]
        elif isinstance(call, messages.Commit):
            placement = self._placement(call.stream)
            shards = [placement[partition] for partition, _, _ in call.offsets]
        elif isinstance(call, messages.Renew):
            placement = self._placement(call.stream)
            shards = [placement[partition] for partition, _ in call.claims]
        elif isinstance(call, _OF_PARTITIONS):
            placement = self._placement(call.stream)
            chosen = range(len(placement)) if call.partitions is None else call.partitions
            shards = [placement[partition] for partition in chosen]
        elif isinstance(call, messages.Transact):
            shards = [call.home]
        if all(node.owns(shard) for shard in shards):
            return None
        return error_frame(Verb.CALL, request, MovedError("not mine"))
