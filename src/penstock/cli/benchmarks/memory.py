"""What waiting and leased messages cost the node's memory, beyond the page cache."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from threading import Thread

from penstock import Fabric, Message, Queue, connect
from penstock.cli.benchmarks.figures import MIB, RATE, Figure, Figures
from penstock.cli.benchmarks.processes import NodeProcess, anonymous_bytes
from penstock.cli.benchmarks.settings import Settings

MESSAGE_BYTES = 100
_PUSHERS = 4
_POP = 10_000
_LEASE_SECONDS = 3600.0
_SAMPLES = 10
_SAMPLE_SECONDS = 0.1


class _Scene:
    """A fresh node with an empty queue; growth is counted from here."""

    def __init__(self, node: NodeProcess, fabric: Fabric) -> None:
        self._node = node
        self.queue: Queue = fabric.queue("bench-memory", durability="written")
        self._before = anonymous_bytes(node.pid)

    def growth(self, name: str) -> Figures:
        """The smallest growth within a second: what is only on its way does not count."""
        least = anonymous_bytes(self._node.pid)
        for _ in range(_SAMPLES):
            time.sleep(_SAMPLE_SECONDS)
            least = min(least, anonymous_bytes(self._node.pid))
        return {name: Figure((least - self._before) / (1 << 20), MIB)}


def in_batches(settings: Settings, directory: Path) -> Figures:
    """10 M messages in batches of 1,000; then 2 M of them leased and every second one acked."""
    count = settings.scaled(10_000_000, 500_000)
    figures: Figures = {}
    with NodeProcess(directory / "memory-batches") as node, connect(node.url) as fabric:
        scene = _Scene(node, fabric)
        started = time.perf_counter()
        scene.queue.push_many(repeat(bytes(MESSAGE_BYTES), count), batch=settings.batch)
        rate = count / (time.perf_counter() - started)
        figures["memory batches/push"] = Figure(rate, RATE)
        figures |= scene.growth("memory batches")
        for number, leased in enumerate(_leased(scene.queue, count // 5)):
            scene.queue.ack(leased[number % 2 :: 2])
        scene.queue.flush()
        figures |= scene.growth("memory batches/half acked")
    return figures


def one_by_one(settings: Settings, directory: Path) -> Figures:
    """1 M messages, each a batch of its own; all leased; then every second one acked."""
    count = settings.scaled(1_000_000, 20_000)
    figures: Figures = {}
    with NodeProcess(directory / "memory-singles") as node, connect(node.url) as fabric:
        scene = _Scene(node, fabric)
        started = time.perf_counter()
        _push_singles(scene.queue, count)
        rate = count / (time.perf_counter() - started)
        figures["memory singles/push"] = Figure(rate, RATE)
        figures |= scene.growth("memory singles")
        held = list(_leased(scene.queue, count))
        figures |= scene.growth("memory singles/leased")
        for leased in held:
            scene.queue.ack(leased[::2])
        scene.queue.flush()
        figures |= scene.growth("memory singles/half acked")
    return figures


def _push_singles(queue: Queue, count: int) -> None:
    """Several threads, each with its own window of pushes under way."""
    shares = [count // _PUSHERS + (number < count % _PUSHERS) for number in range(_PUSHERS)]
    threads = [
        Thread(target=queue.push_many, args=(repeat(bytes(MESSAGE_BYTES), share),),
               kwargs={"batch": 1})
        for share in shares
    ]  # fmt: skip
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if (found := queue.stats()["messages"]) != count:
        raise RuntimeError(f"{found:,} of {count:,} messages were stored")


def _leased(queue: Queue, count: int) -> Iterator[list[Message]]:
    """Messages under leases that do not run out, until there are so many."""
    while count > 0:
        messages = queue.pop_many(min(_POP, count), lease=_LEASE_SECONDS)
        if not messages:
            raise RuntimeError("messages that wait cannot be popped")
        count -= len(messages)
        yield messages
