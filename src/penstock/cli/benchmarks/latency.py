"""Latencies of single operations on a node, and from end to end at a fixed rate."""

from __future__ import annotations

import multiprocessing
import struct
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection

import numpy as np

from penstock import Fabric, connect
from penstock.cli.benchmarks.figures import Figures, latencies
from penstock.cli.benchmarks.settings import Settings
from penstock.cli.benchmarks.waking import wake_on_time

PACE_PER_SECOND = 1000
_WARM_UP = 100
_LEAD_NS = 300_000_000  # between the start of both ends and the first message
_CHILD_SECONDS = 120.0
_SENT = struct.Struct("<q")


class Latency:
    """One client, one operation at a time; and a producer and a consumer, each a process."""

    def __init__(self, settings: Settings, url: str, fabric: Fabric) -> None:
        self._settings = settings
        self._url = url
        self._fabric = fabric

    def push(self, durability: str, name: str) -> Figures:
        """A push and its receipt."""
        queue = self._fabric.queue(f"bench-single-{durability}", durability=durability)
        value = bytes(self._settings.size)
        taken: list[int] = []
        for _ in range(_WARM_UP + self._settings.singles):
            started = time.perf_counter_ns()
            queue.push(value)
            taken.append(time.perf_counter_ns() - started)
        queue.delete()
        return latencies(name, taken[_WARM_UP:])

    def pop(self, name: str) -> Figures:
        """A pop, and an acknowledgement that is committed."""
        queue = self._fabric.queue("bench-single-pop", durability=self._settings.durability)
        count = _WARM_UP + self._settings.singles
        queue.push_many([bytes(self._settings.size)] * count, batch=1)
        taken: list[int] = []
        for _ in range(count):
            started = time.perf_counter_ns()
            message = queue.pop()
            if message is None:
                raise RuntimeError("a message that was pushed cannot be popped")
            message.ack(wait=True)
            taken.append(time.perf_counter_ns() - started)
        queue.delete()
        return latencies(name, taken[_WARM_UP:])

    def end_to_end(self, name: str) -> Figures:
        """From the time a message should have been sent until the consumer has it."""
        count = self._settings.singles
        queue = self._fabric.queue("bench-paced", durability=self._settings.durability)
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        consumer = context.Process(target=_consume_paced, args=(self._url, count, there))
        producer = context.Process(
            target=_produce_paced, args=(self._url, count, self._settings.size)
        )
        try:
            consumer.start()
            there.close()  # so that the pipe ends with the process
            if not here.poll(_CHILD_SECONDS):
                raise RuntimeError("the consumer did not start")
            here.recv()
            producer.start()
            if not here.poll(_CHILD_SECONDS):
                raise RuntimeError("the consumer did not get all messages in time")
            taken: list[int] = here.recv()
        finally:
            for process in (producer, consumer):
                if process.pid is not None:
                    process.join(10.0)
                    process.kill()
                    process.join()
            queue.delete()
        return latencies(name, taken)


def paced(count: int, size: int) -> Iterator[bytes]:
    """Messages that carry the time at which they should be sent, each at that time or late."""
    begin = time.monotonic_ns() + _LEAD_NS
    filler = bytes(max(size - _SENT.size, 0))
    for number in range(count):
        due = begin + number * 1_000_000_000 // PACE_PER_SECOND
        if (wait := due - time.monotonic_ns()) > 0:
            time.sleep(wait / 1e9)
        yield _SENT.pack(due) + filler


def _produce_paced(url: str, count: int, size: int) -> None:
    """Sends without waiting for receipts, up to the producer's window: the loop stays open."""
    wake_on_time()
    with connect(url, name="bench-producer") as fabric:
        fabric.queue("bench-paced").push_many(paced(count, size), batch=1)


def _consume_paced(url: str, count: int, pipe: Connection) -> None:
    taken = np.zeros(count, np.int64)
    with connect(url, name="bench-consumer") as fabric:
        queue = fabric.queue("bench-paced")
        pipe.send("ready")
        messages = queue.consume(idle_timeout=30.0, max_messages=count)
        for number, message in enumerate(messages):
            taken[number] = time.monotonic_ns() - _SENT.unpack_from(message.value)[0]
            message.ack()
    pipe.send(taken.tolist())
