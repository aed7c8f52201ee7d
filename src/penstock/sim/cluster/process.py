"""A client process: the production asyncio client on a loop of the world, with its tasks."""

from __future__ import annotations

import asyncio
import socket
import traceback
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from penstock.client.aio import AsyncFabric, connect
from penstock.errors import PenstockError
from penstock.sim.cluster.cluster import Cluster
from penstock.sim.cluster.host import PORT, NodeHost
from penstock.sim.cluster.loop import VirtualLoop
from penstock.sim.network import Link
from penstock.wire.frames import Splitter

TIMEOUT_S = 8.0
RETRY_S = 0.5
SYN_S = 0.25  # how often an address that does not answer is called
MAX_SYNS = 400

Role = Callable[[AsyncFabric, str], Coroutine[Any, Any, None]]


class _NoSocket:
    """The client asks the kernel to watch over its connections; here the world does."""

    family = socket.AF_UNSPEC

    def setsockopt(self, *_: object) -> None:
        """Nothing to set."""


class Wire(asyncio.Transport):
    """The client's end of a connection."""

    def __init__(self, protocol: asyncio.BufferedProtocol, loop: VirtualLoop) -> None:
        super().__init__({"socket": _NoSocket()})
        self.link: Link | None = None
        self._protocol = protocol
        self._loop = loop
        self._splitter = Splitter()
        self._over = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """The world takes everything."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert self.link is not None
        if not self._over:
            for frame in self._splitter.feed(memoryview(data)):
                self.link.send(frame)

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def is_closing(self) -> bool:
        return self._over

    def close(self) -> None:
        assert self.link is not None
        if not self._over:
            self._over = True
            self.link.close()
            self._loop.call_soon(self._protocol.connection_lost, None)

    def abort(self) -> None:
        self.close()

    # --- the world's side ------------------------------------------------------------------

    def arrived(self, frame: bytearray) -> None:
        """A frame of the node."""
        self._loop.enter(self._receive, frame)

    def _receive(self, frame: bytearray) -> None:
        rest = memoryview(frame)
        while rest and not self._over:
            buffer = memoryview(self._protocol.get_buffer(len(rest)))
            size = min(len(buffer), len(rest))
            buffer[:size] = rest[:size]
            self._protocol.buffer_updated(size)
            rest = rest[size:]

    def lost(self) -> None:
        """The connection is gone."""
        self._loop.enter(self._end)

    def _end(self) -> None:
        if not self._over:
            self._over = True
            self._protocol.connection_lost(ConnectionResetError("reset"))


class ClientProcess:
    """A client that may die and come back as a new one. `place`: the node that it is beside.

    `broken` is set by what no fault explains.
    """

    def __init__(self, cluster: Cluster, name: str, place: int, roles: Sequence[Role]) -> None:
        self.name = name
        self.place = place
        self.lives = 0
        self.broken: str | None = None
        self._cluster = cluster
        self._world = cluster.world
        self._roles = roles
        self._loop: VirtualLoop | None = None
        self._wires: list[Wire] = []

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._loop is not None

    def start(self) -> None:
        """A new life."""
        if self._loop is None:
            self.lives += 1
            self._loop = VirtualLoop(self._world, self, self.fail)  # type: ignore[abstract]
            self._loop.spawn(self._live(f"{self.name}.{self.lives}"))

    def kill(self) -> None:
        """Nothing of it is left but what it sent."""
        loop, self._loop = self._loop, None
        if loop is not None:
            for wire in self._wires:
                if wire.link is not None:
                    wire.link.close()
            self._wires = []
            loop.kill()

    def crash(self, down_us: int) -> None:
        """It dies and is started again later."""
        if self._loop is not None:
            self._world.note(f"{self.name}.{self.lives} dies")
            self.kill()
            self._world.after(down_us, self.start)

    def fail(self, text: str) -> None:
        """Something that must never happen, whatever the faults."""
        if self.broken is None:
            self.broken = f"{self.name}.{self.lives}: {text}"
            self._world.note(f"{self.name} is broken: {text.splitlines()[-1]}")

    async def _live(self, name: str) -> None:
        while True:
            try:
                fabric = await connect(self._cluster.url, timeout=TIMEOUT_S, name=name)
                break
            except PenstockError:
                await asyncio.sleep(RETRY_S)
        for role in self._roles:
            asyncio.get_running_loop().create_task(self._play(role, fabric, name))

    async def _play(self, role: Role, fabric: AsyncFabric, name: str) -> None:
        try:
            await role(fabric, name)
        except Exception:  # whatever it is, it is the finding
            self.fail(f"a call ended in a way that nothing explains:\n{traceback.format_exc()}")

    # --- connections -----------------------------------------------------------------------

    async def dial(self, protocol: asyncio.BaseProtocol, host: str, port: int) -> asyncio.Transport:
        """Connects to a node; who is not reached does not even refuse."""
        assert isinstance(protocol, asyncio.BufferedProtocol)
        assert self._loop is not None
        node = self._cluster.hosts.get(port - PORT)
        network = self._cluster.network
        await asyncio.sleep(2 * network.latency() / 1e6)
        if node is None or not await self._answers(node):
            raise ConnectionRefusedError(f"{host}:{port} refuses")
        wire = Wire(protocol, self._loop)
        wire.link = network.connect(self.place, node.number, node, wire.arrived, wire.lost)
        self._wires = [each for each in self._wires if not each.is_closing()]
        self._wires.append(wire)
        protocol.connection_made(wire)
        return wire

    async def _answers(self, node: NodeHost) -> bool:
        """Whether a process listens there. One that is paused, or cannot be reached, does not even
        refuse: the kernel calls again and again, until the client has had enough."""
        for _ in range(MAX_SYNS):
            reached = self._cluster.network.reaches(self.place, node.number)
            if reached and not (node.up and node.paused):
                return node.up
            await asyncio.sleep(SYN_S)
        raise TimeoutError(f"{node.name} does not answer")
