"""RabbitMQ by pika: its asyncio connection for many messages, its blocking one for single ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from benchmarks.system import MIB, Body, Client, Place, Sink

QUEUE = "q"
WINDOW, WINDOW_BYTES = 2000, 16 * MIB
IDLE_SECONDS = 0.05
CALL_SECONDS = 30.0


class Confirms:
    """Which publishes the broker has confirmed; it does so one by one or all up to a tag."""

    def __init__(self) -> None:
        self.sent = 0
        self.confirmed = 0
        self._low = 0  # all tags up to here are confirmed
        self._early: set[int] = set()  # and these above
        self._moved = asyncio.Event()

    def on_frame(self, frame: Any) -> None:
        """Takes what the broker says of publishes."""
        method = frame.method
        if method.NAME != "Basic.Ack":
            raise RuntimeError("the broker refused a message")
        self.confirm(method.delivery_tag, method.multiple)

    def confirm(self, tag: int, multiple: bool) -> None:
        """One tag, or all up to it."""
        if multiple:
            self._early = {early for early in self._early if early > tag}
            self._low = max(self._low, tag)
        elif tag > self._low:
            self._early.add(tag)
        while self._low + 1 in self._early:
            self._low += 1
            self._early.remove(self._low)
        self.confirmed = self._low + len(self._early)
        self._moved.set()

    async def until(self, pending: int) -> None:
        """Waits until no more than these are not confirmed."""
        while self.sent - self.confirmed > pending:
            self._moved.clear()
            await asyncio.wait_for(self._moved.wait(), CALL_SECONDS)


class RabbitClient(Client):
    """A window of publishes that are not confirmed yet; acks of all that came in a turn."""

    uvloop = True
    _connection: Any = None
    _channel: Any
    _blocking: Any = None

    def __init__(self, place: Place, variant: str) -> None:
        super().__init__(place, variant)
        import pika

        self._parameters = pika.ConnectionParameters(
            "127.0.0.1", int(place.endpoint or 0), heartbeat=0
        )
        self._persistent = pika.BasicProperties(delivery_mode=2)

    async def _call(self, method: Callable[..., Any], *given: Any, **named: Any) -> Any:
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        method(*given, **named, callback=answered.set_result)
        return await asyncio.wait_for(answered, CALL_SECONDS)

    async def open(self) -> None:
        from pika.adapters.asyncio_connection import AsyncioConnection

        loop = asyncio.get_running_loop()
        opened: asyncio.Future[Any] = loop.create_future()
        self._connection = AsyncioConnection(
            self._parameters,
            on_open_callback=opened.set_result,
            on_open_error_callback=lambda _, error: opened.set_exception(RuntimeError(str(error))),
            custom_ioloop=loop,
        )
        await asyncio.wait_for(opened, CALL_SECONDS)
        channel: asyncio.Future[Any] = loop.create_future()
        self._connection.channel(on_open_callback=channel.set_result)
        self._channel = await asyncio.wait_for(channel, CALL_SECONDS)
        self._confirms = Confirms()
        await self._call(self._channel.confirm_delivery, self._confirms.on_frame)
        count = self.window(WINDOW, WINDOW_BYTES)
        await self._call(self._channel.basic_qos, prefetch_count=count)

    async def close(self) -> None:
        if self._blocking is not None:
            self._blocking.connection.close()
            self._blocking = None
        if self._connection is not None and self._connection.is_open:
            self._connection.close()
            for _ in range(100):
                if self._connection.is_closed:
                    return
                await asyncio.sleep(0.02)

    async def reset(self) -> None:
        await self._call(self._channel.queue_delete, QUEUE)
        await self.make_queue(QUEUE)

    async def make_queue(self, name: str) -> None:
        kind = {"x-queue-type": self.variant}
        await self._call(self._channel.queue_declare, name, durable=True, arguments=kind)

    def _publish(self, body: bytes) -> None:
        self._channel.basic_publish("", QUEUE, body, self._persistent)
        self._confirms.sent += 1

    async def push_all(self, bodies: Iterable[bytes]) -> int:
        window = self.window(WINDOW, WINDOW_BYTES)
        before = self._confirms.sent
        for body in bodies:
            if self._confirms.sent - self._confirms.confirmed >= window:
                await self._confirms.until(window - 1)
            self._publish(body)
        await self._confirms.until(0)
        return self._confirms.sent - before

    async def push_due(self, bodies: list[bytes]) -> None:
        for body in bodies:
            self._publish(body)

    def _blocked(self) -> Any:
        if self._blocking is None:
            import pika

            self._blocking = pika.BlockingConnection(self._parameters).channel()
            self._blocking.confirm_delivery()
        return self._blocking

    async def push_one(self, body: bytes) -> None:
        await self.push_to(QUEUE, body)

    async def push_to(self, name: str, body: bytes) -> None:
        self._blocked().basic_publish("", name, body, self._persistent)

    async def pop_one(self) -> Body:
        channel = self._blocked()
        method, _, body = channel.basic_get(QUEUE)
        if method is None:
            raise RuntimeError("no message")
        channel.basic_ack(method.delivery_tag)  # AMQP does not confirm it
        found: bytes = body
        return found

    async def consume(self, sink: Sink) -> None:
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        last = 0
        due = False

        def ack() -> None:
            nonlocal due
            due = False
            self._channel.basic_ack(last, multiple=True)

        def take(_channel: Any, method: Any, _properties: Any, body: bytes) -> None:
            nonlocal last, due
            last = method.delivery_tag
            if not due:
                due = True
                loop.call_soon(ack)
            if not sink((body,)):
                ended.set()

        tag = self._channel.basic_consume(QUEUE, take)
        while not ended.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), IDLE_SECONDS)
            if not ended.is_set() and not sink(()):
                ended.set()
        await self._call(self._channel.basic_cancel, tag)
        await self._call(self._channel.queue_declare, QUEUE, passive=True)  # acks are there
