"""The publisher and the reader of the topic."""

from __future__ import annotations

import random
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from penstock import Fabric, Topic
from penstock.cli.demonstration import message
from penstock.cli.faulting.ledgers import SEEN, Ledger
from penstock.cli.faulting.pace import Orders, Pace
from penstock.cli.faulting.queue_work import IDLE_SECONDS, timed
from penstock.errors import UnavailableError

TOPIC = "faults"
PARTITIONS = 8
KEYS = 32
RATE = 400  # messages each second
LARGEST_BATCH = 64


def publish(fabric: Fabric, number: int, folder: Path, orders: Orders) -> None:
    """Publishes batches until it is told to rest. The key of a message follows from its number, so
    within a key numbers grow."""
    sizes = random.Random(number)
    topic = fabric.topic(TOPIC, PARTITIONS)
    pace = Pace(RATE)
    first, count = 0, 1
    with Ledger(folder / f"publisher-{number}.published") as ledger:
        while pace.wait(count, orders.rest):
            count = sizes.randint(1, LARGEST_BATCH)
            values = message.make(number, first, count)
            keys = [str(key_of(each)) for each in range(first, first + count)]
            timed(ledger, first, count, partial(topic.publish_many, values, keys=keys))
            first += count


def key_of(number: Any) -> Any:
    """The key of the message with this number, or the keys of a column of numbers."""
    return number % KEYS


def read(fabric: Fabric, number: int, folder: Path, orders: Orders) -> None:
    """Reads all partitions from the start until it is told to end. After an error it goes on where
    it was."""
    topic = fabric.topic(TOPIC, PARTITIONS)
    positions = dict.fromkeys(range(PARTITIONS), 0)
    with Ledger(folder / f"reader-{number}.seen") as ledger:
        while not orders.end.is_set():
            try:
                _read_on(topic, positions, ledger, orders)
            except UnavailableError:
                orders.end.wait(0.1)


def _read_on(topic: Topic, positions: dict[int, int], ledger: Ledger, orders: Orders) -> None:
    start = min(positions.values())
    subscription = topic.subscribe(start=start, idle_timeout=IDLE_SECONDS, batches=True)
    with subscription:
        for partition, batch in subscription:
            new = batch.offsets >= positions[partition]  # the others were noted before the error
            sent = message.read(batch.values)[new]
            rows = np.zeros(len(sent), SEEN)
            rows["partition"], rows["offset"] = partition, batch.offsets[new]
            rows["number"], rows["ended_ns"] = sent["number"], time.monotonic_ns()
            ledger.add(rows)
            positions[partition] = max(positions[partition], int(batch.offsets[-1]) + 1)
            if orders.end.is_set():
                return
