"""Redis Streams with a consumer group; redis-py with hiredis, in pipelines."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.install import Needs, debian_folder
from benchmarks.servers import Server, first_line, library_path, socket_folder
from benchmarks.system import Body, Client, Sink, System, chunks

KEY, GROUP, FIELD = "q", "g", b"b"
IDLE_MS = 50
PIPELINE = 500

_DURABLE = {
    "always": "on disk: synced before it is confirmed",
    "everysec": "handed to the kernel, synced once a second",
}


class RedisStreams(System):
    """The append-only file, with one of its two policies, and no snapshots."""

    module = "redis_streams"
    needs = Needs(
        debian=("redis-server", "redis-tools", "libjemalloc2", "liblzf1"),
        python=("redis>=7,<9", "hiredis>=3,<4"),
    )
    library = "redis"
    max_queues = 10_000
    counts_memory = True

    @property
    def durable(self) -> str:
        return _DURABLE[self.variant]

    @property
    def settings(self) -> str:
        return f'appendonly yes, appendfsync {self.variant}, save "", Unix socket'

    def _binary(self) -> Path:
        return debian_folder(self.module) / "usr/bin/redis-server"

    def start(self, fresh: bool = True) -> None:
        folder, port = self.place(fresh)
        self.endpoint = str(socket_folder(self.name) / "socket")
        options = {
            "bind": "127.0.0.1", "port": str(port), "unixsocket": self.endpoint,
            "dir": str(folder), "daemonize": "no",
            "appendonly": "yes", "appendfsync": self.variant, "save": "",
        }  # fmt: skip
        argv: list[str | Path] = [self._binary()]
        for name, value in options.items():
            argv += [f"--{name}", value]
        server = Server(argv, folder / "log", env=library_path(self.module))
        self.servers.append(server)
        server.await_port(port)

    def version(self) -> str:
        return first_line([self._binary(), "--version"], self.module).split(" sha")[0]


class RedisClient(Client):
    """XADD in pipelines; XACK of many and the next XREADGROUP in one."""

    _redis: Any = None

    async def open(self) -> None:
        import redis

        self._redis = redis.Redis(unix_socket_path=self.place.endpoint, protocol=2)
        self._redis.ping()

    async def close(self) -> None:
        self._redis.close()

    async def reset(self) -> None:
        self._redis.delete(KEY)
        self._redis.xgroup_create(KEY, GROUP, id="0", mkstream=True)

    async def push_all(self, bodies: Iterable[bytes]) -> int:
        count = 0
        for chunk in chunks(bodies, self.window(PIPELINE)):
            pipeline = self._redis.pipeline(transaction=False)
            for body in chunk:
                pipeline.xadd(KEY, {FIELD: body})
            count += len(pipeline.execute())
        return count

    async def push_one(self, body: bytes) -> None:
        self._redis.xadd(KEY, {FIELD: body})

    async def pop_one(self) -> Body:
        [[_, [(ident, fields)]]] = self._redis.xreadgroup(
            GROUP, f"c{self.place.number}", {KEY: ">"}, count=1
        )
        self._redis.xack(KEY, GROUP, ident)
        body: bytes = fields[FIELD]
        return body

    async def consume(self, sink: Sink) -> None:
        count = self.window(PIPELINE)
        taken: list[bytes] = []
        wanted = True
        while wanted:
            pipeline = self._redis.pipeline(transaction=False)
            if taken:
                pipeline.xack(KEY, GROUP, *taken)
            pipeline.xreadgroup(
                GROUP, f"c{self.place.number}", {KEY: ">"}, count=count, block=IDLE_MS
            )
            found = pipeline.execute()[-1]
            entries = found[0][1] if found else []
            wanted = sink([fields[FIELD] for _, fields in entries])
            taken = [ident for ident, _ in entries]
        if taken:
            self._redis.xack(KEY, GROUP, *taken)

    async def make_queue(self, name: str) -> None:
        self._redis.xgroup_create(name, GROUP, id="0", mkstream=True)

    async def push_to(self, name: str, body: bytes) -> None:
        self._redis.xadd(name, {FIELD: body})


SYSTEM = RedisStreams
CLIENT = RedisClient
