"""A node: a data directory, an engine, a server."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from penstock.engine.engine import Engine
from penstock.engine.recovery import SHARDS, open_engine
from penstock.errors import InvalidError, PenstockError
from penstock.node.clock import Clock
from penstock.node.files import FileDisk
from penstock.node.runtime import Runtime
from penstock.node.server import Server

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 7411
RESERVED_FILES = 128  # for data files, the loop, and connections that are refused
SWITCH_SECONDS = 0.0005  # a thread that comes back from the disk must not wait long for the loop


@dataclass(frozen=True)
class Config:
    """What a node is started with. Zero configuration works."""

    data: str = "penstock-data"
    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    shards: int = SHARDS
    max_connections: int = 10_000
    accept_damage: bool = False


def parse_address(text: str) -> tuple[str, int]:
    """HOST:PORT, PORT or HOST; InvalidError otherwise."""
    host, colon, port = text.rpartition(":")
    if not colon:
        host, port = ("", text) if text.isdigit() else (text, str(DEFAULT_PORT))
    host = host or DEFAULT_HOST
    if not port.isdigit() or int(port) > 65535:
        raise InvalidError(f"{text!r} is not HOST:PORT")
    return host.strip("[]"), int(port)


def open_directory(
    path: str, clock: Clock, config: Config | None = None
) -> tuple[FileDisk, Engine]:
    """The disk and the engine of a data directory; recovery is done when this returns."""
    config = config or Config()
    disk = FileDisk(path)
    try:
        directory = int.from_bytes(os.urandom(8), "little") or 1
        engine = open_engine(
            disk, clock.now_us(), directory, shards=config.shards, node=path,
            accept_damage=config.accept_damage,
        )  # fmt: skip
    except BaseException:
        disk.close()
        raise
    clock.not_before(engine.fabric.newest_us())
    return disk, engine


class LocalNode:
    """A node without a listener: an engine on the running loop, for clients in this process."""

    def __init__(self, disk: FileDisk, engine: Engine, clock: Clock) -> None:
        self._disk, self.engine = disk, engine
        self._runtime = Runtime(engine, clock)
        self._server = Server(self._runtime)
        self._runtime.pump()

    async def connect(self, make_protocol: Callable[[], asyncio.BaseProtocol]) -> None:
        """Connects a protocol to the node, through a pair of sockets."""
        ours, theirs = socket.socketpair()
        await self._server.adopt(ours)
        await asyncio.get_running_loop().create_connection(make_protocol, sock=theirs)

    async def close(self) -> None:
        """Writes everything, takes a checkpoint, and lets the data directory go."""
        await self._server.stop()
        await self._runtime.stop()
        self._disk.close()


class Node:
    """A running node. `async with Node(config) as node:` serves until it is left."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.address = ("", 0)

    async def __aenter__(self) -> Node:
        clock = Clock()
        self._disk, self.engine = open_directory(self.config.data, clock, self.config)
        self._runtime = Runtime(self.engine, clock)
        self._server = Server(self._runtime, connections_that_fit(self.config.max_connections))
        self._runtime.pump()
        try:
            self.address = await self._server.start(self.config.host, self.config.port)
        except BaseException:  # the address is taken, say: let the directory go
            await self._runtime.stop(checkpoint=False)
            self._disk.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop()
        await self._runtime.stop()
        self._disk.close()

    @property
    def failed(self) -> BaseException | None:
        """The defect that ended the node, if there was one."""
        return self._runtime.failed

    def when_failed(self, tell: Callable[[], None]) -> None:
        """Calls this once if a defect ends the node."""
        self._runtime.on_failure.append(tell)

    @property
    def url(self) -> str:
        """What clients connect to."""
        host, port = self.address
        return f"penstock://{f'[{host}]' if ':' in host else host}:{port}"


async def serve(config: Config, started: Callable[[Node], None]) -> None:
    """Serves until SIGTERM or SIGINT, then stops cleanly. PenstockError if the node failed."""
    raise_file_limit()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with Node(config) as node:
        tune_process()
        node.when_failed(stop.set)
        started(node)
        await stop.wait()
    if node.failed is not None:
        raise PenstockError(f"the node failed: {node.failed!r}") from node.failed


def raise_file_limit() -> None:
    """Lets this process have as many files and connections open as it may at most."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):  # some systems name a limit that they do not allow
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def connections_that_fit(wanted: int) -> int:
    """How many connections a node takes: as many as are wanted, if there are files for them.

    One more can then still be accepted and told why it is refused; with the files used up, it would
    be left waiting without an answer.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return wanted
    return max(1, min(wanted, limit - RESERVED_FILES))


def tune_process() -> None:
    """Settings of the whole process that keep the tail of latencies short."""
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)


def run_loop(main: Coroutine[Any, Any, None]) -> None:
    """Runs on uvloop where it is there."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(main)
    else:
        uvloop.run(main)
