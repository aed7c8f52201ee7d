"""Bytes of data files change while the node is down: nothing of it may be served, and nothing may
be missing that `penstock doctor` does not name."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from penstock import Queue, connect
from penstock.cli.benchmarks.processes import Child
from penstock.node.examine import examine
from penstock.node.findings import Findings
from penstock.store.locations import JOURNAL, SHARD
from penstock.store.record import MAGIC
from penstock.wire.entry import RECORD_HEADER_BYTES

MESSAGES = 6000
BATCH = 50
SIZE = 400  # bytes of a message: the whole is several segments
FLIPS = 6  # at most, of one round
HEADS = 0.2  # of them in heads of records
QUEUE = "damage"


@dataclass
class Damage:
    """What a number of rounds showed; `served` and `unnamed` and `twice` have to be zero."""

    rounds: int = 0
    flips: int = 0
    messages: int = 0
    lost: int = 0  # and named by the doctor
    refused: int = 0  # starts: it is not known what the damaged part said
    served: int = 0  # messages that nobody has sent
    unnamed: int = 0  # lost, and the doctor does not say so
    twice: int = 0

    @property
    def broken(self) -> int:
        """Promises that did not hold."""
        return self.served + self.unnamed + self.twice


def content(number: int) -> bytes:
    """A message of which every byte follows from its number."""
    seed = blake2b(number.to_bytes(8, "little")).digest()
    return number.to_bytes(8, "little") + (seed * (SIZE // len(seed)))[: SIZE - 8]


class Damager:
    """Rounds of storing, damaging and reading, from one seed."""

    def __init__(self, folder: Path, seed: int, say: Callable[[str], None]) -> None:
        self._folder = folder
        self._chance = random.Random(seed)
        self._say = say
        self.found = Damage()

    def round(self) -> None:
        """Fills a directory, changes bytes of it, and reads what is left."""
        self.found.rounds += 1
        data = self._folder / f"damaged-{self.found.rounds}"
        left = self._store(data)
        files = [path for kind in (JOURNAL, SHARD) for path in sorted(data.glob(f"{kind}-*"))]
        flips = self._flip(files)
        findings = examine(data, 0)
        self._say(f"{flips} bytes changed: {findings.summary}")
        self.found.flips += flips
        self.found.messages += len(left)
        self.found.refused += findings.refusal is not None
        self._judge(left, self._read(data, findings), findings)

    def _store(self, data: Path) -> set[int]:
        """Numbers of messages that are stored and not acknowledged when the node is killed."""
        with _node(data) as node, connect(node.line) as fabric:
            queue = fabric.queue(QUEUE)
            queue.push_many([content(number) for number in range(MESSAGES)], batch=BATCH)
            popped = queue.pop_many(self._chance.randint(0, MESSAGES // 2))
            for message in popped:
                message.ack()
            queue.flush()
            done = {int.from_bytes(message.value[:8], "little") for message in popped}
            node.kill()
        return set(range(MESSAGES)) - done

    def _flip(self, files: list[Path]) -> int:
        """Changes some bytes where something was written: anywhere, or in the head of a record,
        which is small and says what the rest means."""
        flips = self._chance.randint(1, FLIPS)
        for _ in range(flips):
            path = self._chance.choice(files)
            data = bytearray(path.read_bytes())
            at = self._chance.randrange(max(len(data.rstrip(b"\0")), 1))
            if self._chance.random() < HEADS:
                start = data.rfind(MAGIC, 0, at)
                at = min(max(start, 0) + self._chance.randrange(RECORD_HEADER_BYTES), len(data) - 1)
            data[at] ^= 1 << self._chance.randrange(8)
            path.write_bytes(data)
        return flips

    def _read(self, data: Path, findings: Findings) -> list[bytes]:
        """Everything that a node serves from the directory."""
        accept = ["--accept-damage"] if findings.refusal is not None else []
        with _node(data, *accept) as node, connect(node.line) as fabric:
            read = _consumed if self.found.rounds % 2 else _popped
            return list(read(fabric.queue(QUEUE)))

    def _judge(self, left: set[int], values: list[bytes], findings: Findings) -> None:
        found = self.found
        numbers = [int.from_bytes(value[:8], "little") for value in values]
        right = [n for n, value in zip(numbers, values, strict=True) if value == content(n)]
        found.served += len(values) - len(right)
        found.twice += len(right) - len(set(right))
        missing = len(left - set(right))
        found.lost += missing
        if findings.refusal is None:
            found.unnamed += max(0, missing - findings.lost_messages)


def _consumed(queue: Queue) -> Iterable[bytes]:
    for delivery in queue.consume_batches(idle_timeout=1.0):
        yield from delivery.values
        delivery.ack()


def _popped(queue: Queue) -> Iterable[bytes]:
    while messages := queue.pop_many(BATCH):
        yield from (message.value for message in messages)
        queue.ack(messages)


def _node(data: Path, *options: str) -> Child:
    return Child(
        "penstock.cli.soaking.hasty_node", "--data", str(data), "--listen", "127.0.0.1:0", *options,
        log=data.with_name(data.name + ".log"),
    )  # fmt: skip
