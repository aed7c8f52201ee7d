"""A queue as a node sees it: all its shards here, and who waits for messages."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from heapq import heappop, heappush, heapreplace

import msgspec

from penstock.core.changes import Given
from penstock.core.index import Singles
from penstock.core.kernel import Timer, Timers
from penstock.core.lanes import LANE_SHIFT
from penstock.core.leases import Grant
from penstock.core.parking import Parking
from penstock.core.queue import QueueShard
from penstock.core.queue_rules import followers, next_given
from penstock.wire.frames import PopBody, Verb
from penstock.wire.limits import MAX_LEASE_MS

MAX_POP_MESSAGES = 100_000
MAX_POP_BYTES = 8 << 20
MAX_WAIT_MS = 300_000


@dataclass(slots=True, eq=False)
class Waiter:
    """A parked pop."""

    connection: int
    request: int
    body: PopBody
    over: bool = False  # answered, cancelled, or its connection is gone
    timer: Timer | None = None
    verb: int = Verb.POP


@dataclass(slots=True, eq=False)
class Subscription:
    """A standing pop: gets messages as long as it has credit."""

    connection: int
    request: int
    body: PopBody
    credit: int
    feeding: int = 0  # deliveries that are on their way to the journal
    paused: bool = False  # its connection takes no more for now
    over: bool = False
    verb: int = Verb.SUBSCRIBE


class Heads:
    """Which shard has the first ready message: highest priority, then oldest.

    A lazy heap with about one entry a shard: an entry may promise too much, never too little.
    """

    __slots__ = ("_best", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, int], int]] = []
        self._best: dict[int, tuple[int, int]] = {}

    def __bool__(self) -> bool:
        """Whether a shard may have a ready message; False is certain."""
        return bool(self._best)

    def shards(self) -> list[int]:
        """The shards that may have ready messages: all that have some, and seldom others."""
        return list(self._best)

    def forget(self, shard: int) -> None:
        """A shard is not served here any more."""
        self._best.pop(shard, None)

    def check(self, shards: dict[int, QueueShard]) -> None:
        """Messages were taken out otherwise than by a pop: no entry promises too much after it."""
        for number in self.shards():
            self.forget(number)
            if (queue := shards.get(number)) is not None:
                self.offer(queue)

    def offer(self, queue: QueueShard) -> None:
        """A shard may have a ready message that it did not have before."""
        head = queue.head()
        if head is None:
            return
        best = self._best.get(queue.shard)
        if best is None or head < best:
            self._best[queue.shard] = head
            heappush(self._heap, (head, queue.shard))

    def offer_newest(self, queue: QueueShard, lane: int) -> None:
        """The same for messages that arrived just now: behind all that are ready in their lane."""
        best = self._best.get(queue.shard)
        if best is None or lane < best[0]:
            self.offer(queue)

    def is_first(self, queue: QueueShard, before: _Line | None) -> bool:
        """Whether a shard that `first` gave is first again, as many batches of one producer follow
        each other in one shard. If it is not, it is offered."""
        head = queue.head()
        if head is None:
            return False
        heap, entry = self._heap, (head, queue.shard)
        if (not heap or entry < heap[0]) and (before is None or entry < before):
            return True
        self._best[queue.shard] = head
        heappush(heap, entry)
        return False

    def limit(self, lines: list[_Line]) -> tuple[int, int] | None:
        """The rank of what may come first in other shards than the one that is taken from; None if
        there is nothing."""
        ranks = [each[0][0] for each in (self._heap, lines) if each]
        return min(ranks, default=None)

    def may_be_before(self, line: _Line) -> bool:
        """Whether another shard may have a message that comes before that of a walk."""
        return bool(self._heap) and self._heap[0] < line

    def first(
        self, shards: dict[int, QueueShard], before: _Line | None = None
    ) -> QueueShard | None:
        """The shard to take from; its entry is used up, so offer it again afterwards.

        With `before`, only one whose head comes before that of another shard.
        """
        heap = self._heap
        while heap and (before is None or heap[0] < before):
            head, number = heappop(heap)
            if self._best.get(number) != head:
                continue
            del self._best[number]
            queue = shards.get(number)
            if queue is None:
                continue
            now = queue.head()
            if now == head:
                return queue
            if now is not None:
                self.offer(queue)
        return None


# A walk over messages of a shard: its head and number, as in Heads, which of `Taken.grants` it
# becomes, the shard's part of the queue, and the walk.
_Line = tuple[tuple[int, int], int, int, QueueShard, Singles]


class Taken(msgspec.Struct, eq=False):
    """What a pop got. The state is changed already; the caller logs it."""

    messages: int = 0
    # By the order of their begin.
    grants: dict[int, tuple[QueueShard, Given, Grant]] = msgspec.field(default_factory=dict)
    # Which grant comes next; one of many batches, once for each.
    order: list[int] = msgspec.field(default_factory=list)

    def by_shard(self) -> dict[int, list[Given]]:
        """The grants as they are logged."""
        shards: dict[int, list[Given]] = {}
        for queue, given, _ in self.grants.values():
            shards.setdefault(queue.shard, []).append(given)
        return shards


class QueueView:
    """One queue on this node."""

    def __init__(self, stream: int) -> None:
        self.stream = stream
        self.shards: dict[int, QueueShard] = {}
        self.heads = Heads()
        self.waiters: deque[Waiter] = deque()
        self.subscriptions: deque[Subscription] = deque()
        self.parking: Parking | None = None  # workers that wait for gangs, once there were any
        self.promised = 0  # messages that are leased, and not visible yet; see `core.promises`
        self.timers_us: dict[int, int] = {}  # shard: when its timer is set for
        self.timers: dict[int, Timer] = {}  # the same; it may have fired
        # Whether something may be ready here, and how often that has begun. Whoever found nothing
        # at a fill will find nothing before the next.
        self.full = False
        self.fill = 0

    @property
    def parked(self) -> int:
        """Workers that wait for gangs."""
        return 0 if self.parking is None else len(self.parking.waiting)

    def drop(self, shard: int, timers: Timers) -> None:
        """A shard has nothing of this queue any more, or is served elsewhere."""
        self.shards.pop(shard, None)
        self.timers_us.pop(shard, None)
        if (timer := self.timers.pop(shard, None)) is not None:
            timers.cancel(timer)
        self.heads.forget(shard)

    def turns(self) -> bool:
        """Notes whether something is ready now; whether that is another state than before."""
        full = bool(self.heads)
        if full == self.full:
            return False
        self.full = full
        self.fill += full
        return True

    def ready(self, most: int) -> int:
        """How many messages are ready; what is beyond `most` is not counted."""
        found = 0
        for number in self.heads.shards():
            queue = self.shards.get(number)
            found += 0 if queue is None else queue.ready
            if found >= most:
                return most
        return found

    def wanted(self) -> int:
        """How many messages are waited for here."""
        parked = sum(each.body.messages for each in self.waiters if not each.over)
        return parked + sum(
            max(each.credit, 0)
            for each in self.subscriptions
            if not (each.over or each.paused)
        )

    def consumers(self) -> int:
        """How many subscriptions and parked pops there are."""
        parked = sum(not each.over for each in self.waiters)
        return parked + sum(not each.over for each in self.subscriptions)

    def take(
        self, messages: int, max_bytes: int, lease_us: int, now_us: int, overdraw: bool = False,
        joins: bool = False,
    ) -> Taken:  # fmt: skip
        """Leases up to that many messages and bytes, first ready first; at least one if any is.

        With `overdraw` the last batch is leased whole if at least half of it may be: cutting it
        costs more than sending it, and whoever takes so many takes the rest soon. With `joins`,
        neighbouring batches become one grant.
        """
        if messages == 1 and not overdraw:
            return self._take_one(max_bytes, lease_us, now_us)
        return _Taking(self, lease_us, now_us, joins).take(messages, max_bytes, overdraw)

    def _take_one(self, max_bytes: int, lease_us: int, now_us: int) -> Taken:
        """What `_Taking` does for one message, in fewer steps."""
        queue = self.heads.first(self.shards) if max_bytes > 0 else None
        found = None if queue is None else next_given(queue, 1, max_bytes, lease_us)
        if queue is None or found is None:
            return Taken()
        given = found[0]
        grant = queue.granted(given, now_us)
        self.heads.offer(queue)
        return Taken(grant.messages, {1: (queue, given, grant)}, [1])


class _Taking:
    """One pop. Batches of one message are walked over shard by shard, in the order of all shards;
    what is taken of one walk becomes one grant."""

    def __init__(self, view: QueueView, lease_us: int, now_us: int, joins: bool) -> None:
        self._view = view
        self._joins = joins
        self._lease_us = lease_us
        self._now_us = now_us
        self._taken = Taken()
        self._lines: list[_Line] = []  # a heap
        self._begun = 0  # grants

    def take(self, messages: int, max_bytes: int, overdraw: bool) -> Taken:
        heads, shards, taken, lines = self._view.heads, self._view.shards, self._taken, self._lines
        queue: QueueShard | None = None
        while messages > 0 and max_bytes > 0:
            before = lines[0] if lines else None
            if queue is None or not heads.is_first(queue, before):
                queue = heads.first(shards, before)
            if queue is None:
                if not lines:
                    break
                count, size = self._along(messages, max_bytes)
            elif self._walk(queue):
                queue = None
                continue
            else:
                count, size = self._whole(queue, messages, max_bytes, overdraw)
            if not count:
                break
            messages -= count
            max_bytes -= size
        if queue is not None:
            heads.offer(queue)
        for line in lines:
            self._end(line)
        taken.messages = sum(grant.messages for _, _, grant in taken.grants.values())
        return taken

    def _along(self, messages: int, max_bytes: int) -> tuple[int, int]:
        """Goes along the walks, until another shard may be first: messages and bytes."""
        heads, lines, order = self._view.heads, self._lines, self._taken.order
        count = size = 0
        while lines and count < messages and size < max_bytes:
            line = lines[0]
            if heads.may_be_before(line):
                break
            rank, shard, place, queue, singles = line
            length = singles.length
            if order and size + length > max_bytes:  # an answer is one frame, and bounded
                break
            order.append(place)
            count += 1
            size += length
            if singles.step():
                rank = (rank[0], singles.arrived_us)
                heapreplace(lines, (rank, shard, place, queue, singles))
            else:
                heappop(lines)
                self._end(line)
        return count, size

    def _walk(self, queue: QueueShard) -> bool:
        """Begins a walk, if the first message is a batch of its own."""
        singles = queue.singles()
        if singles is None:
            return False
        self._begun += 1
        rank = (singles.first >> LANE_SHIFT, singles.arrived_us)
        heappush(self._lines, (rank, queue.shard, self._begun, queue, singles))
        return True

    def _end(self, line: _Line) -> None:
        _, _, place, queue, singles = line
        if singles.count:
            number = queue.leases.next_number
            given = Given(number, singles.first, singles.count, self._lease_us)
            self._taken.grants[place] = (queue, given, queue.granted(given, self._now_us))
        self._view.heads.offer(queue)

    def _whole(
        self, queue: QueueShard, messages: int, max_bytes: int, overdraw: bool
    ) -> tuple[int, int]:
        """A grant of one batch, or part of it, or of neighbours: messages and bytes; none if there
        is no room."""
        found = next_given(queue, messages, max_bytes, self._lease_us)
        assert found is not None
        given, stored = found
        if overdraw and given.span == messages and 2 * messages >= stored.span:
            found = next_given(queue, stored.span, max_bytes, self._lease_us)
            assert found is not None
            given = found[0]
        taken = self._taken
        if taken.order and stored.length > max_bytes:  # an answer is one frame, and bounded
            return 0, 0
        batches, span, size = 0, 0, 0
        if self._joins and given.position + given.span == stored.base + stored.span:
            limit = self._view.heads.limit(self._lines)
            room = max_bytes - stored.length
            batches, span, size = followers(queue, given, stored, messages, room, limit)
            given = given._replace(span=given.span + span) if span else given
        grant = queue.granted(given, self._now_us)
        self._begun += 1
        taken.order += [self._begun] * (1 + batches)
        taken.grants[self._begun] = (queue, given, grant)
        count = grant.messages
        return count, size + stored.length * (count - span) // stored.rows


def bounded(body: PopBody) -> PopBody:
    """The request with its numbers inside the limits."""
    usual = 0 < body.messages <= MAX_POP_MESSAGES and 0 < body.max_bytes <= MAX_POP_BYTES
    if usual and body.wait_ms <= MAX_WAIT_MS and body.lease_ms <= MAX_LEASE_MS:
        return body
    return body._replace(
        messages=max(1, min(body.messages, MAX_POP_MESSAGES)),
        max_bytes=max(1, min(body.max_bytes or MAX_POP_BYTES, MAX_POP_BYTES)),
        wait_ms=min(body.wait_ms, MAX_WAIT_MS),
        lease_ms=min(body.lease_ms, MAX_LEASE_MS),
    )
