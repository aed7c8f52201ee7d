"""What clients saw, and what of it cannot be if promises were kept."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

LEASE_US = 5_000_000


@dataclass
class Delivery:
    """A message as a consumer got it."""

    value: bytes
    shard: int
    grant: int
    position: int
    deliveries: int
    asked_us: int
    got_us: int
    nacked: bool = False
    doubtful: bool = False  # an ack got no answer


class Ack(NamedTuple):
    """An ack that was accepted."""

    delivery: Delivery
    answered_us: int


@dataclass
class _Pushed:
    """What producers sent, by producer, and which of it was acknowledged."""

    sent: dict[int, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    bases: dict[bytes, int] = field(default_factory=dict)  # of what was acknowledged
    wrong: list[str] = field(default_factory=list)

    def value(self, producer: int, sequence: int) -> bytes:
        """The message with this number."""
        if sequence == len(self.sent[producer]):
            self.sent[producer].append(b"%d-%d" % (producer, sequence))
        return self.sent[producer][sequence]

    def acknowledged(self, producer: int, sequence: int, base: int) -> None:
        """A receipt came."""
        value = self.sent[producer][sequence]
        if self.bases.setdefault(value, base) != base:
            self.wrong.append(f"{value!r} is at {self.bases[value]} and at {base}")

    def _known(self) -> set[bytes]:
        return {value for values in self.sent.values() for value in values}


@dataclass
class Queue(_Pushed):
    """A queue: nothing lost, one ack for each, no delivery without a cause."""

    deliveries: list[Delivery] = field(default_factory=list)
    acks: list[Ack] = field(default_factory=list)

    def check(self, power_losses: Sequence[int]) -> list[str]:
        """What was promised and not kept."""
        wrong = list(self.wrong)
        seen = {one.value for one in self.deliveries}
        wrong += [f"{value!r} was never sent" for value in seen - self._known()]
        finished = {ack.delivery.value for ack in self.acks}
        finished |= {one.value for one in self.deliveries if one.doubtful}
        lost = self.bases.keys() - finished
        wrong += [f"{value!r} was acknowledged and is lost" for value in lost]
        wrong += self._double_acks()
        by_value: dict[bytes, list[Delivery]] = defaultdict(list)
        for one in self.deliveries:
            by_value[one.value].append(one)
        for found in by_value.values():
            found.sort(key=lambda one: (one.got_us, one.deliveries))
            for before, after in pairwise(found):
                wrong += _no_cause(before, after, power_losses)
        return wrong

    def _double_acks(self) -> Iterator[str]:
        accepted: dict[bytes, Delivery] = {}
        first_us: dict[bytes, int] = {}
        for ack in self.acks:
            one = accepted.setdefault(ack.delivery.value, ack.delivery)
            if one.grant != ack.delivery.grant:
                yield f"{one.value!r} was acked twice: {one} and {ack.delivery}"
            first_us.setdefault(one.value, ack.answered_us)
        for one in self.deliveries:
            if one.asked_us > first_us.get(one.value, one.asked_us):
                yield f"{one.value!r} was delivered after its ack: {one}"


def _no_cause(before: Delivery, after: Delivery, power_losses: Sequence[int]) -> Iterator[str]:
    if any(before.asked_us <= lost_us <= after.got_us for lost_us in power_losses):
        return
    over = before.nacked or after.got_us - before.asked_us >= LEASE_US
    if not over:
        yield f"delivered again without a cause: {before}, then {after}"
    apart = after.asked_us >= before.got_us
    if apart and after.deliveries <= before.deliveries:
        yield f"the count of deliveries does not grow: {before}, then {after}"


@dataclass
class Topic(_Pushed):
    """A topic: an offset is used once, each producer's messages are in order, none is lost."""

    seen: dict[tuple[int, int], bytes] = field(default_factory=dict)
    ends: Counter[int] = field(default_factory=Counter)

    def acknowledged(self, producer: int, sequence: int, base: int) -> None:
        super().acknowledged(producer, sequence, base)
        partition = producer % 1000
        self.ends[partition] = max(self.ends[partition], base + 1)

    def fetched(self, partition: int, offset: int, rows: list[tuple[int, bytes]]) -> int:
        """What a fetch found; where the next goes on."""
        for at, value in rows:
            if self.seen.setdefault((partition, at), value) != value:
                before = self.seen[partition, at]
                self.wrong.append(f"offset {at} of {partition} was {before!r} and is {value!r}")
            offset = max(offset, at + 1)
        return offset

    def check(self) -> list[str]:
        """What was promised and not kept."""
        wrong = list(self.wrong)
        places = {value: place for place, value in self.seen.items()}
        if len(places) != len(self.seen):
            wrong.append("a message is in a topic twice")
        for value, base in self.bases.items():
            if value not in places:
                wrong.append(f"{value!r} was acknowledged and is lost")
            elif places[value][1] != base:
                wrong.append(f"{value!r} should be at {base}, and is at {places[value][1]}")
        for values in self.sent.values():
            offsets = [places[value][1] for value in values if value in places]
            if offsets != sorted(offsets):
                wrong.append("messages of a producer are out of order")
        return wrong


@dataclass(frozen=True)
class Read:
    """What a get saw; version 0: nothing."""

    key: bytes
    asked_us: int
    got_us: int
    version: int
    value: bytes


@dataclass(frozen=True)
class Write(Read):
    """A put that was accepted, and the version that it asked for."""

    expected: int | None


@dataclass
class Table:
    """A table: each key is linearizable, as versions put its values into one order."""

    reads: list[Read] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)

    def check(self) -> list[str]:
        """What was promised and not kept."""
        wrong: list[str] = []
        for key in {each.key for each in _all(self.reads, self.writes)}:
            reads = [read for read in self.reads if read.key == key]
            writes = [write for write in self.writes if write.key == key]
            wrong += _values(reads, writes)
            wrong += _times(reads, writes)
            wrong += _conditions(reads, writes)
        return wrong


def _all(reads: list[Read], writes: list[Write]) -> list[Read]:
    return [*reads, *writes]


def _values(reads: list[Read], writes: list[Write]) -> Iterator[str]:
    values: dict[int, bytes] = {}
    for each in _all(reads, writes):
        if values.setdefault(each.version, each.value) != each.value:
            yield f"version {each.version} is {values[each.version]!r} and {each.value!r}"
    if len({write.version for write in writes}) != len(writes):
        yield "two writes have one version"


def _times(reads: list[Read], writes: list[Write]) -> Iterator[str]:
    """Who begins after another has ended sees no less."""
    operations = _all(reads, writes)
    operations.sort(key=lambda each: each.asked_us)
    ended = sorted(operations, key=lambda each: each.got_us)
    newest: Read | None = None
    at = 0
    for each in operations:
        while ended[at].got_us < each.asked_us:
            if newest is None or ended[at].version > newest.version:
                newest = ended[at]
            at += 1
        if newest is not None and each.version < newest.version + isinstance(each, Write):
            yield f"{each} after {newest}"


def _conditions(reads: list[Read], writes: list[Write]) -> Iterator[str]:
    versions = {each.version for each in _all(reads, writes)}
    for write in writes:
        expected = write.expected
        if expected is not None and any(expected < v < write.version for v in versions):
            yield f"{write} was not the next"
