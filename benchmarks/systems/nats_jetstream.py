"""NATS JetStream: a stream in files with work-queue retention; nats-py, explicit acks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.install import Needs, debian_folder
from benchmarks.servers import Server, first_line
from benchmarks.system import MIB, Body, Client, Sink, System

STREAM, SUBJECT, GROUP, PULL = "S", "s", "g", "p"
IDLE_SECONDS = 0.05
WINDOW_BYTES = 16 * MIB


class NatsJetStream(System):
    """One server with its defaults but for the place of its files."""

    module = "nats_jetstream"
    needs = Needs(debian=("nats-server",), python=("nats-py>=2.10,<3",))
    library = "nats-py"
    counts_memory = True

    @property
    def durable(self) -> str:
        return "handed to the kernel, synced every two minutes"

    @property
    def settings(self) -> str:
        return "file storage, work-queue retention, 1 replica, sync_interval as it comes (2 min)"

    def _binary(self) -> Path:
        return debian_folder(self.module) / "usr/sbin/nats-server"

    def start(self, fresh: bool = True) -> None:
        folder, port = self.place(fresh)
        config = folder / "nats.conf"
        config.write_text(
            f"listen: 127.0.0.1:{port}\nmax_payload: 8MB\n"
            f'jetstream {{ store_dir: "{folder}/js" }}\n'
        )
        server = Server([self._binary(), "-c", config], folder / "log")
        self.servers.append(server)
        self.endpoint = f"nats://127.0.0.1:{port}"
        server.await_port(port)

    def version(self) -> str:
        return first_line([self._binary(), "--version"], self.module)


class NatsClient(Client):
    """publish_async with a window, and a push consumer with a callback; pull for single pops."""

    _connection: Any = None
    _stream: Any
    uvloop = True
    _pull: Any = None

    async def open(self) -> None:
        import nats

        self._connection = await nats.connect(
            self.place.endpoint, pending_size=64 * MIB, allow_reconnect=False
        )
        self._stream = self._connection.jetstream(
            publish_async_max_pending=self.window(4000, WINDOW_BYTES)
        )

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()

    def _limits(self) -> dict[str, Any]:
        return {"max_ack_pending": self.window(20_000, WINDOW_BYTES), "ack_wait": 60}

    async def reset(self) -> None:
        from nats.js.api import AckPolicy, ConsumerConfig, RetentionPolicy, StreamConfig
        from nats.js.errors import NotFoundError

        with suppress(NotFoundError):
            await self._stream.delete_stream(STREAM)
        retention = RetentionPolicy.WORK_QUEUE  # in files, as it comes
        await self._stream.add_stream(
            StreamConfig(name=STREAM, subjects=[SUBJECT], retention=retention)
        )
        group = ConsumerConfig(
            durable_name=GROUP, deliver_group=GROUP, deliver_subject="deliver",
            ack_policy=AckPolicy.EXPLICIT, **self._limits(),
        )  # fmt: skip
        await self._stream.add_consumer(STREAM, group)

    async def push_all(self, bodies: Iterable[bytes]) -> int:
        count = 0
        under_way: list[Any] = []
        for body in bodies:
            under_way.append(await self._stream.publish_async(SUBJECT, body))
            count += 1
            if len(under_way) >= 10_000:
                under_way = [each for each in under_way if not each.done() or each.exception()]
        await self._stream.publish_async_completed()
        for each in under_way:
            each.result()
        return count

    async def push_one(self, body: bytes) -> None:
        await self._stream.publish(SUBJECT, body)

    async def push_due(self, bodies: list[bytes]) -> None:
        for body in bodies:
            await self._stream.publish_async(SUBJECT, body)

    async def pop_one(self) -> Body:
        if self._pull is None:
            from nats.js.api import ConsumerConfig
            from nats.js.errors import NotFoundError

            with suppress(NotFoundError):
                await self._stream.delete_consumer(STREAM, GROUP)  # a work queue has only one
            self._pull = await self._stream.pull_subscribe(
                SUBJECT, PULL, stream=STREAM, config=ConsumerConfig(**self._limits())
            )
        [message] = await self._pull.fetch(1, timeout=5)
        await message.ack_sync()
        body: bytes = message.data
        return body

    async def consume(self, sink: Sink) -> None:
        ended = asyncio.Event()

        async def take(message: Any) -> None:
            wanted = sink((message.data,))
            await message.ack()
            if not wanted:
                ended.set()

        subscription = await self._stream.subscribe(
            SUBJECT, queue=GROUP, stream=STREAM, cb=take, manual_ack=True,
            pending_msgs_limit=1_000_000, pending_bytes_limit=1 << 30,
        )  # fmt: skip
        while not ended.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), IDLE_SECONDS)
            if not ended.is_set() and not sink(()):
                ended.set()
        await self._connection.flush()  # acks have reached the server
        await subscription.unsubscribe()


SYSTEM = NatsJetStream
CLIENT = NatsClient
