"""Whether the directory stays within its bound while messages come and go at full rate."""

from __future__ import annotations

import multiprocessing
import time
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
_QUEUE = "bench-space"
_MOST_WAITING = 2_000_000
_CHUNK = 100_000
_SAMPLE_SECONDS = 1.0
_PAUSE_SECONDS = 0.05
_END_SECONDS = 30.0


def push_and_pop(settings: Settings, directory: Path) -> Figures:
    """A producer and a consumer at full rate; the directory's size is sampled all along."""
    seconds = min(settings.seconds, 10.0) if settings.quick else settings.seconds
    data = directory / "space"
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    consumed: Counter = context.Value("q", 0)
    with NodeProcess(data) as node, connect(node.url) as fabric:
        queue = fabric.queue(_QUEUE, durability=settings.durability)
        workers: list[BaseProcess] = [
            context.Process(target=_produce, args=(node.url, settings, stop)),
            context.Process(target=_consume, args=(node.url, stop, consumed)),
        ]
        for worker in workers:
            worker.start()
        try:
            return _sampled(queue, data, seconds, workers, consumed)
        finally:
            stop.set()
            for worker in workers:
                worker.join(_END_SECONDS)
                worker.kill()
                worker.join()


def _sampled(
    queue: Queue, data: Path, seconds: float, workers: list[BaseProcess], consumed: Counter
) -> Figures:
    largest = worst = 0.0
    started = time.monotonic()
    while time.monotonic() - started < seconds:
        time.sleep(_SAMPLE_SECONDS)
        if any(worker.exitcode is not None for worker in workers):
            raise RuntimeError("a client ended early")
        live = queue.stats()["bytes"]
        size = directory_bytes(data)
        live = max(live, queue.stats()["bytes"])
        largest = max(largest, size)
        worst = max(worst, size / (2 * live + SLACK_BYTES))
    taken = time.monotonic() - started
    return {
        "space/of bound": Figure(worst, COUNT),
        "space/largest": Figure(largest / (1 << 20), MIB),
        "space/consumed": Figure(consumed.value / taken, RATE),
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


def _produce(url: str, settings: Settings, stop: Event) -> None:
    values = settings.values(_CHUNK)
    with connect(url, name="bench-producer") as fabric:
        queue = fabric.queue(_QUEUE)
        while not stop.is_set():
            queue.push_many(values, batch=settings.batch)
            while queue.stats()["messages"] > _MOST_WAITING and not stop.is_set():
                time.sleep(_PAUSE_SECONDS)


def _consume(url: str, stop: Event, consumed: Counter) -> None:
    with connect(url, name="bench-consumer") as fabric:
        queue = fabric.queue(_QUEUE)
        while not stop.is_set():
            for delivery in queue.consume_batches(idle_timeout=1.0, prefetch=PREFETCH):
                delivery.ack()
                consumed.value += len(delivery)
                if stop.is_set():
                    break
