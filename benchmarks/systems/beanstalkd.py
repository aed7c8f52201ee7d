"""beanstalkd with its binary log; greenstalk, which sends one command at a time."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.install import Needs, debian_folder
from benchmarks.servers import Server, first_line, socket_folder
from benchmarks.system import MIB, Body, Client, Sink, System


class Beanstalkd(System):
    """The variant is how many milliseconds may pass between two syncs."""

    module = "beanstalkd"
    needs = Needs(debian=("beanstalkd",), python=("greenstalk>=2,<3",))
    library = "greenstalk"
    max_queues = 10_000
    counts_memory = True

    @property
    def durable(self) -> str:
        if self.variant == "0":
            return "on disk: synced before it is confirmed"
        return f"handed to the kernel, synced at most every {self.variant} ms"

    @property
    def settings(self) -> str:
        return f"binary log (-b), -f {self.variant}, -z 2 MiB, Unix socket"

    def _binary(self) -> Path:
        return debian_folder(self.module) / "usr/bin/beanstalkd"

    def start(self, fresh: bool = True) -> None:
        folder, _ = self.place(fresh)
        address = socket_folder(self.name) / "socket"
        argv: list[str | Path] = [self._binary(), "-l", f"unix:{address}"]
        argv += ["-b", folder, "-f", self.variant, "-z", str(2 * MIB)]
        server = Server(argv, folder.with_suffix(".log"))
        self.servers.append(server)
        self.endpoint = str(address)
        server.await_socket(address)

    def version(self) -> str:
        return first_line([self._binary(), "-v"], self.module)


class BeanstalkClient(Client):
    """Every call is one command and its answer: the library knows no other way."""

    _connection: Any = None

    async def open(self) -> None:
        import greenstalk

        self._connection = greenstalk.Client(self.place.endpoint, encoding=None)
        self._timed_out = greenstalk.TimedOutError

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    async def reset(self) -> None:
        while True:
            try:
                self._connection.delete(self._connection.reserve(timeout=0))
            except self._timed_out:
                return

    async def push_all(self, bodies: Iterable[bytes]) -> int:
        count = 0
        for body in bodies:
            self._connection.put(body)
            count += 1
        return count

    async def push_one(self, body: bytes) -> None:
        self._connection.put(body)

    async def pop_one(self) -> Body:
        job = self._connection.reserve(timeout=5)
        self._connection.delete(job)
        body: bytes = job.body
        return body

    async def consume(self, sink: Sink) -> None:
        wanted = True
        while wanted:
            try:
                job = self._connection.reserve(timeout=1)  # whole seconds only
            except self._timed_out:
                wanted = sink(())
                continue
            wanted = sink((job.body,))
            self._connection.delete(job)

    async def make_queue(self, name: str) -> None:
        self._connection.use(name)  # a tube is there as soon as it is named, while it has jobs
        self._connection.put(b"first")

    async def push_to(self, name: str, body: bytes) -> None:
        self._connection.use(name)
        self._connection.put(body)


SYSTEM = Beanstalkd
CLIENT = BeanstalkClient
