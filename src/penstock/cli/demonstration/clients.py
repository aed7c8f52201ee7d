"""Producers and consumers of the demo, each a process that reports over a pipe."""

from __future__ import annotations

import signal
import sys
import time
from multiprocessing.connection import Connection
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock import Delivery, Queue, Refusal, connect
from penstock.cli.demonstration import message
from penstock.cli.demonstration.settling import ACCEPTED, verdicts
from penstock.errors import ConflictError

QUEUE = "demo"
TIMEOUT_SECONDS = 60.0  # an outage may take so long before a client gives up
PREFETCH = 10_000


class Pushed(NamedTuple):
    """A producer: these messages were acknowledged."""

    producer: int
    first: int
    count: int  # type: ignore[assignment]  # a field, not the method of tuple
    seconds: float


class Consumed(NamedTuple):
    """A consumer: these messages were delivered, and of these the acks were accepted."""

    producers: NDArray[np.uint32]
    numbers: NDArray[np.uint32]
    waited_ns: NDArray[np.int64]  # since they were sent
    deliveries: NDArray[np.uint16]
    accepted: NDArray[np.bool_]
    received_ns: int


def produce(url: str, producer: int, count: int, batch: int, pipe: Connection) -> None:
    """Pushes all messages batch by batch, and reports every receipt."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the demo ends its processes itself
    with connect(url, TIMEOUT_SECONDS, name=f"producer-{producer}") as fabric:
        queue = fabric.queue(QUEUE)
        for first in range(0, count, batch):
            values = message.make(producer, first, min(batch, count - first))
            started = time.perf_counter()
            queue.push_many(values, batch=batch)
            seconds = time.perf_counter() - started
            pipe.send(Pushed(producer, first, len(values), seconds))


def consume(url: str, consumer: int, lease: float, pipe: Connection) -> None:
    """Takes deliveries until it is told to end, and reports each after its acks are committed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with connect(url, TIMEOUT_SECONDS, name=f"consumer-{consumer}") as fabric:
        queue = fabric.queue(QUEUE)
        refusals: list[Refusal] = []
        queue.on_refused = refusals.append
        for delivery in queue.consume_batches(prefetch=PREFETCH, lease=lease):
            pipe.send(_settled(queue, delivery, refusals))


def _settled(queue: Queue, delivery: Delivery, refusals: list[Refusal]) -> Consumed:
    received_ns = time.monotonic_ns()
    rows = message.read(delivery.values)
    deliveries = np.array(delivery.deliveries, np.uint16)
    accepted = np.ones(len(rows), np.bool_)
    refusals.clear()
    try:
        delivery.ack(wait=True)
    except ConflictError:
        accepted = verdicts(delivery, refusals, ACCEPTED) == ACCEPTED
    return Consumed(
        rows["producer"].copy(),
        rows["number"].copy(),
        received_ns - rows["sent_ns"],
        deliveries,
        accepted,
        received_ns,
    )
