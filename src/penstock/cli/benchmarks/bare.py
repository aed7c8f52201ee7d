"""Servers that do the least: what a node could at best be. Each is a process of its own.

`python -m penstock.cli.benchmarks.bare echo|written|synced|pipe FILE` prints its port.
"""

from __future__ import annotations

import argparse
import asyncio
import mmap
import os
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import cast

from penstock.near import listen_near, widen
from penstock.node.node import run_loop

PIPE_HEAD = struct.Struct("<4s??2xQ")  # what to do, whether to sync, fresh pages, how many bytes
PIPE_COUNT = struct.Struct("<Q")
STORE, LOAD = b"stor", b"load"
ECHO_FILE_BYTES = 64 << 20
_CHUNK_BYTES = 1 << 20


class _Echo(asyncio.Protocol):
    """Sends back what comes, after what a subclass does with it."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


class _WrittenEcho(_Echo):
    """Writes it to a file first."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._at = 0

    def write(self, data: bytes) -> None:
        if self._at + len(data) > ECHO_FILE_BYTES:
            self._at = 0
        self._at += os.pwrite(self._fd, data, self._at)

    def data_received(self, data: bytes) -> None:
        self.write(data)
        self.transport.write(data)


class _SyncedEcho(_WrittenEcho):
    """Writes and syncs it in a thread first."""

    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[bytes] = SimpleQueue()
        threading.Thread(target=self._sync, daemon=True).start()

    def data_received(self, data: bytes) -> None:
        self._queue.put(data)

    def _sync(self) -> None:
        while data := self._queue.get():
            self.write(data)
            os.fdatasync(self._fd)
            self._loop.call_soon_threadsafe(self.transport.write, data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._queue.put(b"")


async def _echo(kind: str, path: Path) -> None:
    fd = -1 if kind == "echo" else used_file(path, ECHO_FILE_BYTES)

    def connected() -> _Echo:
        if kind == "echo":
            return _Echo()
        return _WrittenEcho(fd) if kind == "written" else _SyncedEcho(fd)

    loop = asyncio.get_running_loop()
    server = await loop.create_server(connected, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    near = listen_near("127.0.0.1", port)
    if near is not None:
        await loop.create_unix_server(connected, sock=near)
    print(port, flush=True)
    await server.serve_forever()


def used_file(path: Path, size: int, cached: bool = True) -> int:
    """A file whose blocks were written before, as those of a recycled journal segment were. If the
    page cache has nothing of it, whoever writes to it needs memory that was free before, as all do
    that keep more than ever."""
    present = path.stat().st_size if path.exists() else 0
    whole = -(-size // _CHUNK_BYTES) * _CHUNK_BYTES
    with mmap.mmap(-1, _CHUNK_BYTES) as zeros:  # of whole pages, which O_DIRECT wants
        fd = _open(path, 0 if cached else getattr(os, "O_DIRECT", 0))
        for start in range(present, whole, _CHUNK_BYTES):
            os.pwrite(fd, zeros, start)
        os.fsync(fd)
    if not cached:
        os.close(fd)
        fd = _open(path)
        if hasattr(os, "posix_fadvise"):  # for a file system that knows no other way
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    return fd


def _open(path: Path, flags: int = 0) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | flags, 0o600)
    except OSError:
        if not flags:
            raise
        return _open(path)


def _pipe(path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as far:
        port = far.getsockname()[1]
        server = listen_near("127.0.0.1", port) or far
        server.setblocking(True)
        print(port, flush=True)
        while True:
            connection, _ = server.accept()
            with connection:
                widen(connection)
                head = connection.recv(PIPE_HEAD.size, socket.MSG_WAITALL)
                if len(head) == PIPE_HEAD.size:
                    _serve(connection, path, *PIPE_HEAD.unpack(head))


def _serve(
    connection: socket.socket, path: Path, what: bytes, sync: bool, fresh: bool, size: int
) -> None:
    if fresh:
        path.unlink(missing_ok=True)
    fd = used_file(path, size, cached=not fresh)
    try:
        connection.sendall(PIPE_COUNT.pack(0))  # ready
        if what == LOAD:
            connection.recv(1)
            _load(connection, fd, size)
        elif sync:
            _store_synced(connection, fd, size)
        else:
            for end in _stored(connection, fd, size):
                connection.sendall(PIPE_COUNT.pack(end))
    finally:
        os.close(fd)


def _stored(connection: socket.socket, fd: int, size: int) -> Iterator[int]:
    """Writes what comes; how much that is, after every write."""
    buffer = memoryview(bytearray(_CHUNK_BYTES))
    end = 0
    while end < size:
        received = connection.recv_into(buffer)
        if not received:
            return
        end += os.pwritev(fd, (buffer[:received],), end)
        yield end


def _store_synced(connection: socket.socket, fd: int, size: int) -> None:
    """A thread syncs what is there and acknowledges it, while more is received and written."""
    changed = threading.Event()
    written = [0]

    def sync() -> None:
        synced = 0
        while synced < size:
            changed.wait()
            changed.clear()
            end = written[0]
            if end < 0:
                return
            if end > synced:
                os.fdatasync(fd)
                synced = end
                connection.sendall(PIPE_COUNT.pack(synced))

    syncer = threading.Thread(target=sync)
    syncer.start()
    try:
        for end in _stored(connection, fd, size):
            written[0] = end
            changed.set()
    finally:
        if written[0] < size:
            written[0] = -1
            changed.set()
        syncer.join()


def _load(connection: socket.socket, fd: int, size: int) -> None:
    buffer = memoryview(bytearray(_CHUNK_BYTES))
    at = 0
    while at < size:
        read = os.preadv(fd, (buffer[: size - at],), at)
        connection.sendall(buffer[:read])
        at += read


def main() -> None:
    """Serves until it is ended."""
    parser = argparse.ArgumentParser(prog="python -m penstock.cli.benchmarks.bare")
    parser.add_argument("kind", choices=("echo", "written", "synced", "pipe"))
    parser.add_argument("file", type=Path)
    arguments = parser.parse_args()
    if arguments.kind == "pipe":
        _pipe(arguments.file)
    else:
        run_loop(_echo(arguments.kind, arguments.file))


if __name__ == "__main__":
    main()
