"""A node: a data directory, an engine, a server."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from penstock.engine.engine import Engine
from penstock.engine.maintenance import Pace
from penstock.engine.recovery import SHARDS, open_engine
from penstock.errors import InvalidError, PenstockError
from penstock.node.admission import admit
from penstock.node.allocation import keep_freed_memory
from penstock.node.clock import Clock
from penstock.node.cluster import Cluster
from penstock.node.files import FileDisk
from penstock.node.identity import Address, Identity, read_identity
from penstock.node.life import hand_over, settle_in
from penstock.node.linger import AWAKE_US, MOST_AWAKE_US
from penstock.node.runtime import Runtime
from penstock.node.server import Server
from penstock.node.tidy import Tidy
from penstock.store.journal import MAX_SPARES, SEGMENT_BYTES

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 7411
RESERVED_FILES = 128  # for data files, the loop, and connections that are refused
SETTLE_SECONDS = 10.0  # a node that is new to its cluster waits so long for it before it is used
SWITCH_SECONDS = 0.0005  # a thread that comes back from the disk must not wait long for the loop

_PACE = Pace(prepared=MAX_SPARES)
_EMBEDDED_PACE = Pace()  # a program that has a fabric inside has other uses for the disk


@dataclass(frozen=True)
class Config:
    """What a node is started with. Zero configuration works."""

    data: str = "penstock-data"
    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    shards: int = SHARDS
    max_connections: int = 10_000
    accept_damage: bool = False
    cluster: bool = False  # found one, from this data directory
    join: tuple[Address, ...] = ()  # nodes of the cluster to join; the first that answers counts
    advertise: str = ""  # HOST or HOST:PORT at which the others find it; else where it listens
    segment_bytes: int = SEGMENT_BYTES
    pace: Pace = _PACE
    awake_us: int = AWAKE_US  # for the next request, where requests come that soon


def parse_address(text: str) -> tuple[str, int]:
    """HOST:PORT, PORT or HOST; InvalidError otherwise."""
    host, colon, port = text.rpartition(":")
    if not colon:
        host, port = ("", text) if text.isdigit() else (text, str(DEFAULT_PORT))
    host = host or DEFAULT_HOST
    if not port.isdigit() or int(port) > 65535:
        raise InvalidError(f"{text!r} is not HOST:PORT")
    return host.strip("[]"), int(port)


def advertised(config: Config, listens: Address) -> Address:
    """Where other nodes find this one; InvalidError if that cannot be told."""
    host, port = listens
    if config.advertise:
        named, colon, number = config.advertise.rpartition(":")
        if colon and number.isdigit():
            return parse_address(config.advertise)
        return (config.advertise if not colon else named), port
    if host in ("0.0.0.0", "::"):
        raise InvalidError(
            f"{host} is no address that other nodes can call", advice="Say --advertise HOST."
        )
    return host, port


def open_directory(
    path: str, clock: Clock, config: Config | None = None
) -> tuple[FileDisk, Engine]:
    """The disk and the engine of a data directory; recovery is done when this returns."""
    disk = FileDisk(path)
    try:
        if read_identity(disk) is not None:
            raise InvalidError(
                f"{path} belongs to a node of a cluster",
                advice="Start it with `penstock serve`, and connect to it.",
            )
        return disk, _open_engine(disk, clock, config or Config(pace=_EMBEDDED_PACE))
    except BaseException:
        disk.close()
        raise


def _open_engine(disk: FileDisk, clock: Clock, config: Config) -> Engine:
    directory = int.from_bytes(os.urandom(8), "little") or 1
    engine = open_engine(
        disk, clock.now_us(), directory, shards=config.shards, node=str(disk.path),
        accept_damage=config.accept_damage, segment_bytes=config.segment_bytes, pace=config.pace,
    )  # fmt: skip
    clock.not_before(engine.fabric.newest_us())
    return engine


class LocalNode:
    """A node without a listener: an engine on the running loop, for clients in this process."""

    def __init__(self, disk: FileDisk, engine: Engine, clock: Clock) -> None:
        self._disk, self.engine = disk, engine
        self._runtime = Runtime(engine, clock)
        self._server = Server(self._runtime)
        self._closed = False
        self._runtime.pump()

    async def connect(self, make_protocol: Callable[[], asyncio.BaseProtocol]) -> None:
        """Connects a protocol to the node, through a pair of sockets."""
        ours, theirs = socket.socketpair()
        await self._server.adopt(ours)
        await asyncio.get_running_loop().create_connection(make_protocol, sock=theirs)

    async def close(self) -> None:
        """Writes everything, takes a checkpoint, and lets the data directory go; only once."""
        if self._closed:
            return
        self._closed = True
        await self._server.stop()
        await self._runtime.stop()
        self._disk.close()


class Node:
    """A running node. `async with Node(config) as node:` serves until it is left."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.address: Address = ("", 0)
        self.cluster: Cluster | None = None
        self._settling: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Node:
        clock = Clock()
        if not 0 <= self.config.awake_us <= MOST_AWAKE_US:
            asked = self.config.awake_us
            raise InvalidError(f"awake for {asked:,} us: it can be 0 to {MOST_AWAKE_US:,}")
        self._disk = FileDisk(self.config.data)
        try:
            if self.config.cluster or self.config.join:  # before anybody is told of this node
                advertised(self.config, (self.config.host, self.config.port))
            identity = await admit(self._disk, self.config)
            shards = identity.shards if identity is not None else 0
            config = replace(self.config, shards=shards or self.config.shards)
            self.engine = _open_engine(self._disk, clock, config)
        except BaseException:
            self._disk.close()
            raise
        self._runtime = Runtime(self.engine, clock, self.config.awake_us)
        self._server = Server(self._runtime, connections_that_fit(self.config.max_connections))
        try:
            await self._start(identity)
        except BaseException:  # the address is taken, say: let the directory go
            await self._stop(checkpoint=False)
            raise
        return self

    async def _start(self, identity: Identity | None) -> None:
        if identity is not None:
            self.cluster = Cluster(self._runtime, self._disk, identity)
        self._runtime.pump()
        self.address = await self._server.start(self.config.host, self.config.port)
        if self.cluster is not None:
            new = not self.cluster.identity.settled and self.cluster.identity.incarnation == 1
            self.cluster.start(self._server)
            settling = settle_in(self.cluster, advertised(self.config, self.address))
            self._settling = asyncio.get_running_loop().create_task(settling)
            await asyncio.wait([self._settling], timeout=SETTLE_SECONDS if new else 0)
            if self.cluster.ended is not None:
                raise self.cluster.ended

    async def __aexit__(self, *_: object) -> None:
        if self.cluster is not None and self.failed is None:
            await hand_over(self.cluster)
        await self._stop()

    async def _stop(self, checkpoint: bool = True) -> None:
        if self._settling is not None:
            self._settling.cancel()
            await asyncio.wait([self._settling])
        await self._server.stop()
        if self.cluster is not None:
            await self.cluster.stop()
        await self._runtime.stop(checkpoint)
        self._disk.close()

    @property
    def failed(self) -> BaseException | None:
        """What ended the node, if something did: a defect, or its cluster."""
        return self._runtime.failed or (self.cluster.ended if self.cluster is not None else None)

    def when_failed(self, tell: Callable[[], None]) -> None:
        """Calls this once if a defect, or its cluster, ends the node."""
        self._runtime.on_failure.append(tell)
        if self.cluster is not None:
            self.cluster.on_end.append(tell)

    def own_process(self) -> None:
        """Nothing else is done in this process: its settings are now those that a node wants."""
        tune_process()
        self._runtime.tidy(Tidy())

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
        node.own_process()
        node.when_failed(stop.set)
        started(node)
        await stop.wait()
    if isinstance(node.failed, PenstockError):
        raise node.failed
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
    """Settings of the whole process that keep it fast and the tail of latencies short."""
    sys.setswitchinterval(SWITCH_SECONDS)
    keep_freed_memory()


def run_loop(main: Coroutine[Any, Any, None]) -> None:
    """Runs on uvloop where it is there."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(main)
    else:
        uvloop.run(main)
