"""One node of Penstock, and the blocking client."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from benchmarks.servers import Server
from benchmarks.system import Body, Client, Place, Sink, System
from penstock import Fabric, Queue, connect

QUEUE = "bench"
IDLE_SECONDS = 0.05
PREFETCH = 50_000

AWAKE_US = 2000  # of the variants whose name says so

_DURABLE = {
    "synced": "on disk: synced before it is confirmed",
    "written": "handed to the kernel: outlives the process, not a loss of power",
}


class PenstockNode(System):
    """The node as it comes; durability is a setting of the queue."""

    module = "penstock_node"
    library = "penstock"
    max_queues = 10_000
    counts_memory = True

    def __init__(self, name: str, variant: str) -> None:
        super().__init__(name, variant)
        self._awake_us = AWAKE_US if name.endswith("-awake") else None
        if variant == "synced":  # what is small is written and synced in one call
            self.sync_calls = (*self.sync_calls, "pwritev2")

    @property
    def durable(self) -> str:
        return _DURABLE[self.variant]

    @property
    def settings(self) -> str:
        awake = f", --awake-us {self._awake_us}" if self._awake_us else ""
        return f"one node, durability {self.variant}{awake}, blocking client, Unix socket"

    def start(self, fresh: bool = True) -> None:
        folder, port = self.place(fresh)
        argv: list[str | Path] = [sys.executable, "-m", "penstock.node", "--data", folder / "data"]
        argv += ["--listen", f"127.0.0.1:{port}"]
        argv += ["--awake-us", str(self._awake_us)] if self._awake_us else []
        server = Server(argv, folder / "log")
        self.servers.append(server)
        self.endpoint = f"penstock://127.0.0.1:{port}"
        server.await_port(port)

    def version(self) -> str:
        return f"penstock {metadata.version('penstock')}"

    def client_version(self) -> str:
        return self.version()


class PenstockClient(Client):
    """Batches where the library makes them by itself; single pushes and pops otherwise."""

    _fabric: Fabric | None = None
    _queue: Queue

    def __init__(self, place: Place, variant: str) -> None:
        super().__init__(place, variant)
        self._many: dict[str, Queue] = {}

    async def open(self) -> None:
        self._fabric = connect(self.place.endpoint)
        self._queue = self._opened(QUEUE)

    def _opened(self, name: str) -> Queue:
        assert self._fabric is not None
        return self._fabric.queue(name, durability=self.variant)

    async def close(self) -> None:
        if self._fabric is not None:
            self._fabric.close()

    async def reset(self) -> None:
        self._queue.delete()
        self._queue = self._opened(QUEUE)

    async def push_all(self, bodies: Iterable[bytes]) -> int:
        return self._queue.push_many(bodies).count

    async def push_one(self, body: bytes) -> None:
        self._queue.push(body)

    async def push_due(self, bodies: list[bytes]) -> None:
        if len(bodies) == 1:
            self._queue.push(bodies[0])
        else:
            self._queue.push_many(bodies)

    async def pop_one(self) -> Body:
        message = self._queue.pop(timeout=5.0)
        if message is None:
            raise RuntimeError("no message")
        message.ack(wait=True)
        return message.value

    async def consume(self, sink: Sink) -> None:
        wanted = True
        prefetch = self.window(PREFETCH, 64 << 20)
        while wanted:
            for delivery in self._queue.consume_batches(IDLE_SECONDS, prefetch):
                wanted = sink(delivery.values)
                delivery.ack()
                if not wanted:
                    break
            else:
                wanted = sink(())
        self._queue.flush()

    async def make_queue(self, name: str) -> None:
        self._many[name] = self._opened(name)

    async def push_to(self, name: str, body: bytes) -> None:
        self._many[name].push(body)


SYSTEM = PenstockNode
CLIENT = PenstockClient
