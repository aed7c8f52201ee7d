"""Bulk workloads on a node: one client in this process, the node in another."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial

import numpy as np
from xxhash import xxh3_64_intdigest

from penstock import Delivery, Fabric, Queue
from penstock.cli.benchmarks.figures import NANOSECONDS, RATE, Figure, Figures
from penstock.cli.benchmarks.processes import NodeProcess, cpu_seconds
from penstock.cli.benchmarks.settings import Settings
from penstock.store.journal import MAX_SPARES, SEGMENT_BYTES
from penstock.wire.columns import Rows

PREFETCH = 32_000  # of the consumer that takes whole deliveries
LARGE = ", the client's batches"
COLUMNS = ", as Arrow"
_LATE_ROWS = 100  # one message of so many is acknowledged out of order
_WARM_UP_BYTES = (MAX_SPARES + 1) * SEGMENT_BYTES
_LOOP_SHARE = 4  # the loop over messages is slower: it gets this part of them


class Bulk:
    """Push, pop and the loop of the README, on one node."""

    def __init__(self, settings: Settings, node: NodeProcess, fabric: Fabric) -> None:
        self._settings = settings
        self._node = node
        self._fabric = fabric
        self._values = settings.values(settings.messages)

    def warm_up(self) -> None:
        """Fills the journal until it goes on in files that it has used before, as that of any node
        does that has run for a while, and as the file of the pipe is. Nothing is measured."""
        for _ in range(_WARM_UP_BYTES // (len(self._values) * self._settings.size) + 1):
            self.push()

    def push(self) -> Figures:
        """One producer, `push_many`; over when everything is acknowledged."""
        with self._queue("bench-push") as queue:
            queue.push_many(self._values[: self._settings.batch])
            count = len(self._values)
            return self._timed(
                "push", count, lambda: queue.push_many(self._values, batch=self._settings.batch)
            )

    def pop(self) -> Figures:
        """Deliveries: every value is touched, 1 % of the messages acknowledged out of order."""
        with self._queue("bench-pop") as queue:
            queue.push_many(self._values, batch=self._settings.batch)
            count = len(self._values)
            return self._timed(
                "pop", count, lambda: consume_batches(queue, count, self._settings.size)
            )

    def pop_columns(self) -> Figures:
        """As `pop`, of the same batches; values are read as Arrow columns, no message by itself."""
        with self._queue("bench-pop-columns") as queue:
            queue.push_many(self._values, batch=self._settings.batch)
            count = len(self._values)
            work = partial(consume_batches, queue, count, self._settings.size, arrow_bytes)
            return self._timed(f"pop{COLUMNS}", count, work)

    def push_large(self) -> Figures:
        """As `push`, in the batches that the client makes if nothing is said."""
        with self._queue("bench-push-large") as queue:
            work = partial(queue.push_many, self._values)
            return self._timed(f"push{LARGE}", len(self._values), work)

    def pop_arrow(self) -> Figures:
        """As `pop`, of batches that the client makes; values are read as Arrow columns."""
        with self._queue("bench-pop-large") as queue:
            queue.push_many(self._values)
            count = len(self._values)
            work = partial(consume_batches, queue, count, self._settings.size, arrow_bytes)
            return self._timed(f"pop{LARGE}", count, work)

    def loop(self) -> Figures:
        """Message by message, as the README shows it."""
        values = self._values[: max(len(self._values) // _LOOP_SHARE, 1)]
        with self._queue("bench-loop") as queue:
            queue.push_many(values, batch=self._settings.batch)
            return self._timed("loop", len(values), lambda: _consume(queue, len(values)))

    @contextmanager
    def _queue(self, name: str) -> Iterator[Queue]:
        queue = self._fabric.queue(name, durability=self._settings.durability)
        try:
            yield queue
        finally:
            queue.delete()

    def _timed(self, name: str, count: int, work: Callable[[], object]) -> Figures:
        """The rate of some work, and what a message costs either process."""
        gc.collect()
        pids = {"node": self._node.pid, "client": os.getpid()}
        before = {who: cpu_seconds(pid) for who, pid in pids.items()}
        started = time.perf_counter()
        work()
        seconds = time.perf_counter() - started
        figures = {name: Figure(count / seconds, RATE)}
        for who, pid in pids.items():
            used = cpu_seconds(pid) - before[who]
            figures[f"{name}/{who} cpu"] = Figure(used * 1e9 / count, NANOSECONDS)
        return figures


def value_bytes(delivery: Delivery) -> int:
    """Takes every value out of its batch; how many bytes that is."""
    return sum(map(len, delivery.values))


def arrow_bytes(delivery: Delivery) -> int:
    """Reads every byte of the column of values; how many there are."""
    total = 0
    for chunk in delivery.to_arrow().column("value").chunks:
        ends, data = chunk.buffers()[1:]
        xxh3_64_intdigest(data)
        ends = np.frombuffer(ends, np.int32)[chunk.offset : chunk.offset + len(chunk) + 1]
        total += int(ends[-1] - ends[0])
    return total


def consume_batches(
    queue: Queue, count: int, size: int, touch: Callable[[Delivery], int] = value_bytes
) -> None:
    """Takes `count` messages of `size` bytes, touches every value, and acknowledges all, 1 % of
    them out of order. RuntimeError if something is missing or refused."""
    late: tuple[Delivery, Rows] | None = None
    taken = touched = 0
    # Not `max_messages`: of a cluster, the last ones would come one by one.
    for delivery in queue.consume_batches(10.0, PREFETCH):
        taken += len(delivery)
        touched += touch(delivery)
        in_time, behind = _acked_rows(len(delivery))
        delivery.ack(rows=in_time)
        if late is not None:
            late[0].ack(rows=late[1])
        late = delivery, behind
        if taken >= count:
            break
    if late is not None:
        late[0].ack(rows=late[1])
    queue.flush()
    _check(touched, count * size, queue.refused)


@lru_cache
def _acked_rows(count: int) -> tuple[Rows, Rows]:
    """Rows that are acknowledged at once, and the one in a hundred after the next delivery."""
    rows = np.arange(count)
    return rows[rows % _LATE_ROWS != 0], rows[::_LATE_ROWS]


def _consume(queue: Queue, count: int) -> None:
    seen = size = 0
    for message in queue.consume(idle_timeout=10.0, max_messages=count):
        size += len(message.value)
        message.ack()
        seen += 1
    _check(seen, count, queue.refused)


def _check(found: int, expected: int, refused: int) -> None:
    if found != expected or refused:
        raise RuntimeError(f"found {found:,} of {expected:,}, and {refused:,} acks were refused")
