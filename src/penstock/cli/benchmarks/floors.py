"""Floors: the same bytes with nothing of Penstock between the ends, the same way from one to the
other. They are the yardstick."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import cycle, islice
from pathlib import Path

from penstock.cli.benchmarks.bare import LOAD, PIPE_COUNT, PIPE_HEAD, STORE
from penstock.cli.benchmarks.figures import RATE, Figure, Figures, latencies
from penstock.cli.benchmarks.processes import Child
from penstock.cli.benchmarks.settings import Settings
from penstock.near import connect_near
from penstock.wire.batch import Batch
from penstock.wire.encode import encode_batch

ECHOES = ("echo", "written", "synced")
_DISTINCT_BATCHES = 64
_RECEIVE_BYTES = 256 << 10


class Floors:
    """The bare servers, started when they are first asked for, and what is measured with them.
    `fresh`: the pipe stores into a file that the page cache has nothing of."""

    def __init__(
        self, settings: Settings, directory: Path, stack: ExitStack, fresh: bool = False
    ) -> None:
        self._settings = settings
        self._fresh = fresh
        self._directory = directory
        self._stack = stack
        self._servers: dict[str, Child] = {}
        self._batches: list[bytes] = []

    @property
    def pids(self) -> list[int]:
        """Of all servers so far."""
        return [server.pid for server in self._servers.values()]

    def start(self, kind: str) -> int:
        """The port of a server; starts it if it does not run."""
        if kind not in self._servers:
            file, log = self._directory / f"floor-{kind}", self._directory / "floors.log"
            child = Child("penstock.cli.benchmarks.bare", kind, str(file), log=log)
            self._servers[kind] = self._stack.enter_context(child)
        return int(self._servers[kind].line)

    @contextmanager
    def _connected(self, kind: str) -> Iterator[socket.socket]:
        address = "127.0.0.1", self.start(kind)
        with connect_near(*address) or socket.create_connection(address, 60.0) as connection:
            connection.settimeout(None)
            if connection.family == socket.AF_INET:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            yield connection

    def round_trips(self, kind: str, name: str) -> Figures:
        """One message there and back, one after the other."""
        message = bytes(self._settings.size)
        taken: list[int] = []
        with self._connected(kind) as connection:
            for _ in range(self._settings.singles):
                started = time.perf_counter_ns()
                connection.sendall(message)
                received = len(connection.recv(4096))
                taken.append(time.perf_counter_ns() - started)
                if received != len(message):
                    raise RuntimeError("an echo was cut")
        return latencies(name, taken)

    def _encoded(self) -> Iterator[bytes]:
        """Batches of the run, encoded before anything is timed."""
        settings = self._settings
        if not self._batches:
            values = settings.values(_DISTINCT_BATCHES * settings.batch)
            starts = range(0, len(values), settings.batch)
            self._batches = [
                bytes(encode_batch(values[at : at + settings.batch], timestamp_us=1))
                for at in starts
            ]
        count = max(settings.messages // settings.batch, 1)
        return islice(cycle(self._batches), count)

    def pipe_in(self, encode: bool = False) -> Figures:
        """Batches to a process that writes and syncs them. `encode`: made while they are sent."""
        batches = list(self._encoded())
        size = sum(map(len, batches))
        sync = self._settings.durability == "synced"
        values = self._settings.values(self._settings.batch)
        with self._connected("pipe") as connection:
            _ask(connection, STORE, sync, size, self._fresh)
            started = time.perf_counter()
            for batch in batches:
                connection.sendall(encode_batch(values, timestamp_us=1) if encode else batch)
            _await_count(connection, size)
            seconds = time.perf_counter() - started
        name = "pipe in, encoding" if encode else "pipe in"
        return {name: Figure(len(batches) * self._settings.batch / seconds, RATE)}

    def pipe_out(self, decode: bool = False) -> Figures:
        """Stored batches from a process that reads them. `decode`: values are taken out of them."""
        batches = list(self._encoded())
        size, one = sum(map(len, batches)), len(batches[0])
        self._store(batches, size)
        buffer = memoryview(bytearray(one if decode else _RECEIVE_BYTES))
        flags = socket.MSG_WAITALL if decode else 0
        with self._connected("pipe") as connection:
            _ask(connection, LOAD, False, size)
            started = time.perf_counter()
            connection.sendall(b"g")
            received = 0
            while received < size:
                some = connection.recv_into(buffer, 0, flags)
                if not some:
                    raise RuntimeError("the pipe ended early")
                received += some
                if decode:
                    sum(map(len, Batch.parse(memoryview(bytes(buffer))).values))
            seconds = time.perf_counter() - started
        name = "pipe out, decoding" if decode else "pipe out"
        return {name: Figure(len(batches) * self._settings.batch / seconds, RATE)}

    def _store(self, batches: list[bytes], size: int) -> None:
        with self._connected("pipe") as connection:
            _ask(connection, STORE, False, size)
            for batch in batches:
                connection.sendall(batch)
            _await_count(connection, size)


def _ask(
    connection: socket.socket, what: bytes, sync: bool, size: int, fresh: bool = False
) -> None:
    connection.sendall(PIPE_HEAD.pack(what, sync, fresh, size))
    connection.recv(PIPE_COUNT.size, socket.MSG_WAITALL)


def _await_count(connection: socket.socket, size: int) -> None:
    while True:
        answer = connection.recv(PIPE_COUNT.size, socket.MSG_WAITALL)
        if len(answer) < PIPE_COUNT.size:
            raise RuntimeError("the pipe ended early")
        if PIPE_COUNT.unpack(answer)[0] == size:
            return
