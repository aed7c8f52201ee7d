"""What the clients did and saw: the only evidence that the checkers use, but for moves.

Times are of the world's clock. An outcome of None means: nobody knows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.sim.attempts import Attempt, Hold
    from penstock.sim.seats import SeatNote

from penstock.wire.growth import Layout, PartitionFamily

Place = tuple[int, int]  # shard and position


@dataclass(slots=True)
class Push:
    """One message on its way in. `stored`: True acknowledged, False refused, None unknown.

    Of several pushes with the same `id` all but one may be told that they are a `duplicate`.
    """

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
    id: bytes | None = None
    held: bool = False
    duplicate: bool = False
    priority: int = 0
    ttl_us: int = 0
    delay_us: int = 0
    scheduled: bool = False  # for a time of the clock, and not for so long after its arrival
    size: int = 0


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
class Move:
    """Messages, one after the other, that a cluster moved to another shard; nobody had been given
    any. This no client sees: it is what the nodes' records say."""

    queue: str
    source: Place  # of the first of them
    target: Place
    span: int
    left_us: int
    arrived_us: int
    granted: int  # the last grant of the queue in that shard before they left
    epoch: int  # of the shard that they came to

    def steps(self) -> Iterator[tuple[Place, Place]]:
        """Each message: from where, and to where."""
        (home, position), (shard, base) = self.source, self.target
        return (((home, position + row), (shard, base + row)) for row in range(self.span))


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
    table: str = "table"


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


@dataclass(slots=True)
class Pass:
    """A partition, read from its start to its end."""

    topic: str
    partition: int
    sent_us: int
    done_us: int
    rows: list[tuple[int, bytes]]


@dataclass(slots=True)
class Ends:
    """The first offset of a partition and the next one to be written, as somebody was told."""

    topic: str
    partition: int
    sent_us: int
    done_us: int
    first: int
    end: int


@dataclass(slots=True)
class LatestBatch:
    """A batch of a topic that keeps the latest of every key. `base` is -1 if nobody knows it."""

    topic: str
    keys: list[bytes]
    values: list[bytes]
    sent_us: int
    base: int = -1
    done_us: int = 0


@dataclass(slots=True)
class FinalTable:
    """All entries of a table at the end: value and version."""

    sent_us: int
    done_us: int
    entries: dict[bytes, tuple[bytes, int]]


@dataclass(slots=True)
class Heard:
    """One entry of an event, or that events were lost."""

    got_us: int
    key: bytes = b""
    value: bytes = b""
    version: int = 0  # 0: the entry is gone
    lost: bool = False


@dataclass(slots=True)
class Probe:
    """A write by a watcher itself: when it hears of it, it has heard of all that came before."""

    sent_us: int
    heard: int  # how many entries it had heard by then


@dataclass(slots=True)
class Resync:
    """What a watcher found when it read anew because events were lost."""

    sent_us: int
    done_us: int
    versions: dict[bytes, int]


@dataclass(slots=True)
class Watch:
    """One watch, from when it was registered."""

    table: str
    watcher: str
    started_us: int
    heard: list[Heard] = field(default_factory=list)
    probes: list[Probe] = field(default_factory=list)
    resyncs: list[Resync] = field(default_factory=list)


@dataclass(slots=True)
class Look:
    """A session's entry as somebody found it."""

    sent_us: int
    done_us: int
    there: bool


@dataclass(slots=True)
class Session:
    """A session with one entry. Times are 0 as long as nobody knows."""

    key: bytes
    ttl_us: int
    opened_us: int  # when it was asked for
    put_us: int = 0  # when the entry was known to be written
    kept: list[tuple[int, int, bool]] = field(default_factory=list)  # sent, done, still there
    closed_us: int = 0  # sent
    ended_us: int = 0  # known to be over
    late_put: bool = False  # an entry was bound to it after it was known to be over
    looks: list[Look] = field(default_factory=list)


@dataclass(slots=True)
class Claim:
    """One call of a group member: claim, renew, unclaim, commit, or committed (a look)."""

    op: str
    topic: str
    partition: int
    owner: str
    token: int  # that it goes by, or that it got
    sent_us: int
    lease_us: int = 0
    offset: int = -1
    done_us: int = 0
    accepted: bool | None = None
    state: int = -1  # of a look: the offset that the state was committed with


@dataclass(slots=True)
class Upkeep:
    """A call that changes a whole queue: purge, purge_dead, redrive."""

    queue: str
    op: str
    sent_us: int
    done_us: int = 0  # 0: nobody knows how it ended

    def within(self, start_us: int, end_us: int) -> bool:
        """Whether it may have taken effect in this time."""
        return self.sent_us <= end_us and (not self.done_us or self.done_us >= start_us)


@dataclass(slots=True)
class Release:
    """A call that releases one held message, by its id."""

    queue: str
    id: bytes
    sent_us: int
    done_us: int = 0
    answer: str = ""


@dataclass(slots=True)
class Refusal:
    """A push that was refused because the queue is full."""

    queue: str
    count: int
    sent_us: int
    done_us: int


@dataclass(slots=True)
class Peek:
    """What a look at a queue, or at its dead letters, showed."""

    queue: str
    dead: bool
    sent_us: int
    done_us: int
    values: list[bytes]


@dataclass(slots=True)
class GraphTask:
    """A held message. `stored`: True once it is known to be; otherwise nobody knows."""

    queue: str
    name: bytes
    after: list[bytes]
    policy: str
    sent_us: int
    ttl_us: int
    stored: bool | None = None
    writes: list[tuple[int, int]] = field(default_factory=list)  # of its entry: sent, and the mark
    done_us: int = 0  # when its entry was known to be written
    left: list[bytes] = field(default_factory=list)  # what it waited for when the work was over
    left_us: int = 0  # when that was asked


LONGEST_US = 1 << 40  # no span is longer, however far in the future its end is


@dataclass(slots=True)
class Trouble:
    """What befell the nodes, and when. `drift`: how wrong clocks go, as a part of the time."""

    crashes: list[int] = field(default_factory=list)  # of the process or the machine
    power_losses: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    jumps: list[tuple[int, int]] = field(default_factory=list)  # of a clock: when, how far
    drift: float = 0.0

    def may_lose(self, level: str, start_us: int, end_us: int) -> bool:
        """Whether what was only so safe may have been lost in this time."""
        if level in ("synced", "replicated"):
            return False
        times = self.crashes if level == "memory" else self.power_losses
        return any(start_us <= at <= end_us for at in times)

    def may_lose_leases(self, level: str, start_us: int, end_us: int) -> bool:
        """The same for leases, which nowhere are more than written."""
        return self.may_lose("memory" if level == "memory" else "written", start_us, end_us)

    def skew(self, start_us: int, end_us: int) -> int:
        """By how much clocks may have gone wrong in this time."""
        jumped_us = sum(abs(by_us) for at, by_us in self.jumps if start_us <= at <= end_us)
        return jumped_us + self.drifted(min(end_us - start_us, LONGEST_US))

    def drifted(self, span_us: int) -> int:
        """By how much two clocks may differ about a span, though none was set."""
        return int(span_us * self.drift)


@dataclass
class History:
    """Everything, in the order in which it happened."""

    pushes: dict[bytes, Push] = field(default_factory=dict)
    deliveries: list[Delivery] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    reads: list[TopicRead] = field(default_factory=list)
    table: list[TableOp] = field(default_factory=list)
    transactions: list[Transaction] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    upkeep: list[Upkeep] = field(default_factory=list)
    releases: list[Release] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    peeks: list[Peek] = field(default_factory=list)
    watches: list[Watch] = field(default_factory=list)
    sessions: list[Session] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    latest: list[LatestBatch] = field(default_factory=list)
    passes: list[Pass] = field(default_factory=list)
    ends: list[Ends] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    surprises: list[str] = field(default_factory=list)  # errors that nothing explains
    holds: dict[tuple[str, int], Hold] = field(default_factory=dict)  # by queue and number
    graph: dict[bytes, GraphTask] = field(default_factory=dict)
    members: dict[bytes, int] = field(default_factory=dict)  # of gangs: how many they need
    seats: list[SeatNote] = field(default_factory=list)
    trouble: Trouble = field(default_factory=Trouble)
    dead: set[bytes] = field(default_factory=set)  # values among the dead letters at the end
    final_tables: dict[str, FinalTable] = field(default_factory=dict)
    final_topics: dict[tuple[str, int], Pass] = field(default_factory=dict)
    layouts: dict[str, Layout] = field(default_factory=dict)  # of topics that have grown
    families: dict[str, list[PartitionFamily]] = field(default_factory=dict)  # of those
    drained: bool = False

    def origin(self, topic: str, partition: int) -> int:
        """The first offset that a partition ever had."""
        family = self.families.get(topic)
        return (family[partition].origin or 0) if family else 0

    def push(self, push: Push) -> Push:
        """Notes a push before it is sent; a named producer may send the same one again."""
        known = self.pushes.setdefault(push.value, push)
        known.sent_us = min(known.sent_us, push.sent_us)
        return known

    def redriven(self, queue: str, start_us: int, end_us: int) -> bool:
        """Whether a message may have been a dead letter, and come back, in this time."""
        redrives = (each for each in self.upkeep if each.op == "redrive" and each.queue == queue)
        return any(each.within(start_us, end_us) for each in redrives)

    def pushes_to(self, stream: str) -> Iterator[Push]:
        """All pushes to a queue or topic."""
        return (push for push in self.pushes.values() if push.stream == stream)

    def by_value(self, queue: str) -> dict[bytes, list[Delivery]]:
        """The deliveries of a queue's messages, each in the order of their grants."""
        found: dict[bytes, list[Delivery]] = defaultdict(list)
        for each in self.deliveries:
            if each.queue == queue:
                found[each.value].append(each)
        for deliveries in found.values():
            deliveries.sort(key=lambda each: each.grant)
        return found


def message(name: str, size: int) -> bytes:
    """A value that is found again by its name, of a given size."""
    return name.encode().ljust(size, b".")


def name_of(value: bytes) -> bytes:
    """The part of a value that says which message it is."""
    return bytes(value).rstrip(b".")
