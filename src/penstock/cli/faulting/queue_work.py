"""Producers and consumers of the queue."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from penstock import Delivery, Fabric, Queue, Refusal
from penstock.cli.demonstration import message
from penstock.cli.demonstration.settling import verdicts
from penstock.cli.faulting.ledgers import ACCEPTED, CONSUMED, UNKNOWN, Ledger
from penstock.cli.faulting.pace import Orders, Pace
from penstock.errors import ConflictError, ForgottenError, LimitError, UnavailableError

QUEUE = "faults"
LEASE_SECONDS = 5.0
RATE = 700  # messages of one producer, each second
SINGLES = 4  # pushes of one message after every batch
IDLE_SECONDS = 4.0
PREFETCH = 500


def produce(fabric: Fabric, number: int, folder: Path, orders: Orders) -> None:
    """Pushes batches and single messages at an even rate until it is told to rest. A number is used
    for one message only: what may or may not be stored is not pushed again."""
    sizes = random.Random(number)
    queue = fabric.queue(QUEUE)
    pace = Pace(RATE)
    first = 0
    with Ledger(folder / f"producer-{number}.pushed") as ledger:

        def push(count: int) -> None:
            nonlocal first
            values = message.make(number, first, count)
            act = (lambda: queue.push(values[0])) if count == 1 else (
                lambda: queue.push_many(values, batch=count)
            )  # fmt: skip
            timed(ledger, first, count, act)
            first += count

        while pace.wait(1, orders.rest):
            count = sizes.randint(50, 100)
            push(count)
            for _ in range(SINGLES):
                push(1)
            pace.wait(count + SINGLES - 1, orders.rest)


def timed(ledger: Ledger, first: int, count: int, act: Callable[[], object]) -> None:
    """Stores messages, and notes whether that is known to have worked."""
    started_ns = time.monotonic_ns()
    verdict = ACCEPTED
    try:
        act()
    except (UnavailableError, LimitError, ForgottenError):
        # The last: what was sent before it was given up, so that a node which was started anew has
        # never heard of this producer, and cannot tell whether it has forgotten it.
        verdict = UNKNOWN
    ledger.note(first, count, verdict, started_ns, time.monotonic_ns())


def consume(fabric: Fabric, number: int, folder: Path, orders: Orders) -> None:
    """Takes deliveries until it is told to end; each is noted when its acks are settled, and so is
    every time that the loop is left: it then gives back what it has not handed out."""
    queue = fabric.queue(QUEUE)
    name = f"consumer-{number}"
    with Ledger(folder / f"{name}.consumed") as ledger, Ledger(folder / f"{name}.left") as left:
        consumer = _Consumer(queue, ledger)
        while not orders.end.is_set():
            try:
                for delivery in queue.consume_batches(IDLE_SECONDS, PREFETCH, LEASE_SECONDS):
                    consumer.settle(delivery)
                    if orders.end.is_set():
                        break
            except UnavailableError:  # it was cut off for longer than a call may take
                orders.end.wait(0.1)
            left.note(consumer.heard_ns, time.monotonic_ns())


class _Consumer:
    """Acks deliveries and notes what became of that. `heard_ns`: when it last had one."""

    def __init__(self, queue: Queue, ledger: Ledger) -> None:
        self._ledger = ledger
        self._refusals: list[Refusal] = []
        queue.on_refused = self._refusals.append
        self.heard_ns = time.monotonic_ns()

    def settle(self, delivery: Delivery) -> None:
        """Acks a whole delivery."""
        self.heard_ns = time.monotonic_ns()
        sent = message.read(delivery.values)
        rows = np.zeros(len(sent), CONSUMED)
        rows["producer"], rows["number"] = sent["producer"], sent["number"]
        rows["delivery"], rows["received_ns"] = delivery.deliveries, self.heard_ns
        self._refusals.clear()
        try:
            delivery.ack(wait=True)
        except ConflictError:
            rows["verdict"] = verdicts(delivery, self._refusals, ACCEPTED)
        except UnavailableError:
            rows["verdict"] = verdicts(delivery, self._refusals, UNKNOWN)
        rows["ended_ns"] = time.monotonic_ns()
        self._ledger.add(rows)
