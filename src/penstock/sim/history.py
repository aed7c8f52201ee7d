"""What the clients did and saw: the only evidence that the checkers use.

Times are of the world's clock. An outcome of None means: nobody knows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Push:
    """One message on its way in. `stored`: True acknowledged, False refused, None unknown."""

    stream: str
    value: bytes
    key: bytes | None
    line: str  # pushes of one line are sent one after the other, so their order is known
    index: int
    sent_us: int
    stored: bool | None = None
    done_us: int = 0
    place: tuple[int, int] | None = None  # shard or partition, and position or offset
    level: str = "synced"
    transaction: str | None = None


@dataclass(slots=True)
class Settlement:
    """An ack or nack of a delivery. `accepted`: by the node's answer."""

    op: str
    sent_us: int
    accepted: bool | None = None
    done_us: int = 0
    delay_us: int = 0
    transaction: str | None = None


@dataclass(slots=True)
class Delivery:
    """A message as a consumer got it."""

    queue: str
    value: bytes
    shard: int
    position: int
    grant: int
    count: int  # the delivery count that came with it
    level: str
    consumer: str
    asked_us: int
    got_us: int
    lease_us: int
    settlements: list[Settlement] = field(default_factory=list)


@dataclass(slots=True)
class TopicRead:
    """A message as a reader of a topic got it."""

    topic: str
    partition: int
    offset: int
    value: bytes
    reader: str
    got_us: int


@dataclass(slots=True)
class TableOp:
    """One call on a table entry. `done_us` is 0 as long as nobody knows how it ended."""

    key: bytes
    kind: str  # get, put, cas, delete, append
    client: str
    sent_us: int
    value: bytes = b""
    if_version: int | None = None
    done_us: int = 0
    outcome: Any = None  # get: (value, version) or None; writes: version; conflict: "conflict"
    transaction: str | None = None


@dataclass(slots=True)
class Transaction:
    """Ack, push and put that happen together. `committed`: None if nobody knows."""

    name: str
    pushed: list[bytes]
    written: bytes  # key of the table
    acked: Delivery
    sent_us: int
    committed: bool | None = None


@dataclass(slots=True)
class Commit:
    """A group's offset: committed, or asked for (`read`)."""

    topic: str
    group: str
    partition: int
    offset: int
    sent_us: int
    done_us: int = 0
    read: bool = False


@dataclass
class History:
    """Everything, in the order in which it happened."""

    pushes: dict[bytes, Push] = field(default_factory=dict)
    deliveries: list[Delivery] = field(default_factory=list)
    reads: list[TopicRead] = field(default_factory=list)
    table: list[TableOp] = field(default_factory=list)
    transactions: list[Transaction] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    power_losses: list[int] = field(default_factory=list)
    dead: set[bytes] = field(default_factory=set)  # values among the dead letters at the end
    final_table: dict[bytes, tuple[bytes, int]] = field(default_factory=dict)
    final_topics: dict[tuple[str, int], list[tuple[int, bytes]]] = field(default_factory=dict)
    drained: bool = False

    def push(self, push: Push) -> Push:
        """Notes a push before it is sent; a named producer may send the same one again."""
        known = self.pushes.setdefault(push.value, push)
        known.sent_us = min(known.sent_us, push.sent_us)
        return known


def message(name: str, size: int) -> bytes:
    """A value that is found again by its name, of a given size."""
    return name.encode().ljust(size, b".")


def name_of(value: bytes) -> bytes:
    """The part of a value that says which message it is."""
    return bytes(value).rstrip(b".")
