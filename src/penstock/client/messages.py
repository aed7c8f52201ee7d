"""What users get back: receipts, messages, refusals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple, Self

from penstock.client.inputs import moment_of
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.client.delivery import Granted, Part
    from penstock.wire.batch import Batch


class Receipt(NamedTuple):
    """The node's word that a batch is stored, and how safely."""

    base: int
    count: int  # type: ignore[assignment]  # a field, not the method of tuple
    shard: int
    durability: str
    duplicate: bool  # it was stored before: this push changed nothing
    partition: int = 0

    @property
    def offset(self) -> int:
        """Of the first message in its partition (topic)."""
        return self.base

    @property
    def position(self) -> int:
        """Of the first message in its shard (queue)."""
        return self.base


class Receipts:
    """The receipts of a bulk push: one for each batch, in the order of the values."""

    __slots__ = ("_all", "count", "duplicates")

    def __init__(self) -> None:
        self._all: list[Receipt] = []
        self.count = 0  # messages stored, duplicates among them
        self.duplicates = 0  # messages that were stored before

    def append(self, receipt: Receipt) -> None:
        """Adds the receipt of the next batch."""
        self._all.append(receipt)
        self.count += receipt.count
        if receipt.duplicate:
            self.duplicates += receipt.count

    @property
    def durability(self) -> str | None:
        """The lowest of all batches; None if nothing was pushed."""
        order = ("unknown", "memory", "written", "synced", "replicated")
        return min((receipt.durability for receipt in self._all), key=order.index, default=None)

    def __iter__(self) -> Iterator[Receipt]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def __repr__(self) -> str:
        return f"<{self.count:,} messages in {len(self._all):,} batches, {self.durability}>"


class Refusal(NamedTuple):
    """Leased messages whose settlement the node refused."""

    shard: int
    position: int
    count: int  # type: ignore[assignment]  # a field, not the method of tuple
    error: PenstockError


class LeasedMessage:
    """A message out of a queue. Its other columns are read when they are asked for."""

    __slots__ = {
        "_granted": "The lease that covers it.",
        "position": "Where it is in its shard.",
        "value": "What was pushed.",
    }

    def __init__(self, value: bytes, position: int, granted: Granted) -> None:
        self.value = value
        self.position = position
        self._granted = granted

    @classmethod
    def all_of(cls, parts: Sequence[Part]) -> list[Self]:
        """The messages of a delivery."""
        if len(parts) == 1:
            part = parts[0]
            return list(map(cls, part.values, part.positions, part.owners))
        return [
            message
            for part in parts
            for message in map(cls, part.values, part.positions, part.owners)
        ]

    @property
    def key(self) -> bytes | None:
        """The key that it was pushed with."""
        granted = self._granted
        return granted.batch.keys[granted.row(self.position)]

    @property
    def headers(self) -> dict[str, bytes]:
        """The headers that it was pushed with."""
        granted = self._granted
        return granted.batch.headers[granted.row(self.position)]

    @property
    def timestamp_us(self) -> int:
        """Microseconds since 1970, UTC: as the producer set it, or when it was pushed."""
        granted = self._granted
        return int(granted.batch.timestamps[granted.row(self.position)])

    @property
    def timestamp(self) -> datetime:
        """As `timestamp_us`, with time zone UTC."""
        return moment_of(self.timestamp_us)

    @property
    def deliveries(self) -> int:
        """How often it has been delivered, this time included."""
        return self._granted.deliveries

    @property
    def shard(self) -> int:
        """The shard that `position` counts in."""
        return self._granted.shard

    def __repr__(self) -> str:
        return f"<message {self.shard}/{self.position}: {len(self.value):,} bytes>"


class SeenMessage(LeasedMessage):
    """A message that was looked at where no pop gets it: delayed, held, or leased by somebody."""

    __slots__ = ()

    @property
    def until_us(self) -> int:
        """When its delay or lease ends, in microseconds since 1970; of one that is held, 1."""
        return self._granted.grant


class TopicMessage:
    """A message of a topic."""

    __slots__ = {
        "_batch": "The batch that it is a row of.",
        "_row": "Which row.",
        "partition": "The partition that it is in.",
        "value": "What was published.",
    }

    def __init__(self, value: bytes, row: int, batch: Batch, partition: int) -> None:
        self.value = value
        self.partition = partition
        self._row = row
        self._batch = batch

    @property
    def offset(self) -> int:
        """Its offset in the partition."""
        return int(self._batch.offsets[self._row])

    @property
    def key(self) -> bytes | None:
        """The key that it was published with."""
        return self._batch.keys[self._row]

    @property
    def headers(self) -> dict[str, bytes]:
        """The headers that it was published with."""
        return self._batch.headers[self._row]

    @property
    def timestamp_us(self) -> int:
        """Microseconds since 1970, UTC: as the producer set it, or when it was published."""
        return int(self._batch.timestamps[self._row])

    @property
    def timestamp(self) -> datetime:
        """As `timestamp_us`, with time zone UTC."""
        return moment_of(self.timestamp_us)

    def __repr__(self) -> str:
        return f"<message {self.partition}/{self.offset}: {len(self.value):,} bytes>"
