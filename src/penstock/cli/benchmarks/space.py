"""Whether the directory stays within its bound while messages come and go at full rate."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import TypeAlias

from penstock import Queue, connect
from penstock.cli.benchmarks.figures import COUNT, MIB, RATE, Figure, Figures
from penstock.cli.benchmarks.processes import NodeProcess
from penstock.cli.benchmarks.settings import Settings
from penstock.cli.benchmarks.workloads import PREFETCH

Counter: TypeAlias = "Synchronized[int]"

SLACK_BYTES = 1 << 30
QUEUE = "bench-space"
_MOST_WAITING = 2_000_000
_CHUNK = 100_000
TIMEOUT_SECONDS = 60.0  # of a call: the node may be started anew meanwhile
_SAMPLE_SECONDS = 1.0
_PAUSE_SECONDS = 0.05
_END_SECONDS = 30.0


@dataclass
class Rush:
    """A producer and a consumer at full rate, each a process; at most so much waits in between."""

    workers: list[BaseProcess]
    _consumed: Counter

    @property
    def consumed(self) -> int:
        """Messages, so far."""
        return self._consumed.value

    def check(self) -> None:
        """RuntimeError if one of them has ended."""
        if any(worker.exitcode is not None for worker in self.workers):
            raise RuntimeError("a client ended early")


@contextmanager
def rush(url: str, settings: Settings, most_waiting: int = _MOST_WAITING) -> Iterator[Rush]:
    """Both have ended when this is left."""
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    consumed: Counter = context.Value("q", 0)
    with connect(url) as fabric:
        fabric.queue(QUEUE, durability=settings.durability)
    workers: list[BaseProcess] = [
        context.Process(target=_produce, args=(url, settings, most_waiting, stop)),
        context.Process(target=_consume, args=(url, stop, consumed)),
    ]
    for worker in workers:
        worker.start()
    try:
        yield Rush(workers, consumed)
    finally:
        stop.set()
        for worker in workers:
            worker.join(_END_SECONDS)
            worker.kill()
            worker.join()


def push_and_pop(settings: Settings, directory: Path) -> Figures:
    """A producer and a consumer at full rate; the directory's size is sampled all along."""
    seconds = min(settings.seconds, 10.0) if settings.quick else settings.seconds
    data = directory / "space"
    with (
        NodeProcess(data) as node,
        rush(node.url, settings) as clients,
        connect(node.url) as fabric,
    ):
        return _sampled(fabric.queue(QUEUE), data, seconds, clients)


def _sampled(queue: Queue, data: Path, seconds: float, clients: Rush) -> Figures:
    largest = worst = 0.0
    started = time.monotonic()
    while time.monotonic() - started < seconds:
        time.sleep(_SAMPLE_SECONDS)
        clients.check()
        live = queue.stats()["bytes"]
        size = directory_bytes(data)
        live = max(live, queue.stats()["bytes"])
        largest = max(largest, size)
        worst = max(worst, size / (2 * live + SLACK_BYTES))
    taken = time.monotonic() - started
    return {
        "space/of bound": Figure(worst, COUNT),
        "space/largest": Figure(largest / (1 << 20), MIB),
        "space/consumed": Figure(clients.consumed / taken, RATE),
    }


def directory_bytes(data: Path) -> int:
    """What the files of a directory occupy; files that go meanwhile do not count."""
    total = 0
    for file in data.iterdir():
        try:
            total += file.stat().st_blocks * 512
        except FileNotFoundError:
            continue
    return total


def _produce(url: str, settings: Settings, most_waiting: int, stop: Event) -> None:
    values = settings.values(_CHUNK)
    with connect(url, TIMEOUT_SECONDS, name="bench-producer") as fabric:
        queue = fabric.queue(QUEUE)
        while not stop.is_set():
            queue.push_many(values, batch=settings.batch)
            while queue.stats()["messages"] > most_waiting and not stop.is_set():
                time.sleep(_PAUSE_SECONDS)


def _consume(url: str, stop: Event, consumed: Counter) -> None:
    with connect(url, TIMEOUT_SECONDS, name="bench-consumer") as fabric:
        queue = fabric.queue(QUEUE)
        while not stop.is_set():
            for delivery in queue.consume_batches(idle_timeout=1.0, prefetch=PREFETCH):
                delivery.ack()
                consumed.value += len(delivery)
                if stop.is_set():
                    break
