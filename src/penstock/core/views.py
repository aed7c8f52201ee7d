"""A queue as a node sees it: all its shards here, and who waits for messages."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from heapq import heappop, heappush

from penstock.core.changes import Given
from penstock.core.kernel import Timer
from penstock.core.leases import Grant
from penstock.core.queue import QueueShard
from penstock.core.queue_rules import next_given
from penstock.wire.frames import PopBody


@dataclass(slots=True, eq=False)
class Waiter:
    """A parked pop."""

    connection: int
    request: int
    body: PopBody
    over: bool = False  # answered, cancelled, or its connection is gone
    timer: Timer | None = None


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


class Heads:
    """Which shard has the first ready message: highest priority, then oldest.

    A lazy heap with about one entry a shard: an entry may promise too much, never too little.
    """

    __slots__ = ("_best", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, int], int]] = []
        self._best: dict[int, tuple[int, int]] = {}

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

    def first(self, shards: dict[int, QueueShard]) -> QueueShard | None:
        """The shard to take from; its entry is used up, so offer it again afterwards."""
        while self._heap:
            head, number = heappop(self._heap)
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


class QueueView:
    """One queue on this node."""

    def __init__(self, stream: int) -> None:
        self.stream = stream
        self.shards: dict[int, QueueShard] = {}
        self.heads = Heads()
        self.waiters: deque[Waiter] = deque()
        self.subscriptions: deque[Subscription] = deque()
        self.timers_us: dict[int, int] = {}  # shard: when its timer is set for

    def take(
        self, messages: int, max_bytes: int, lease_us: int, now_us: int, overdraw: bool = False
    ) -> list[tuple[QueueShard, list[tuple[Given, Grant]]]]:
        """Leases up to that many messages and bytes, first ready first; at least one if any is.

        With `overdraw` the last batch is leased whole if at least half of it may be: cutting it
        costs more than sending it, and whoever takes so many takes the rest soon.
        The state is changed; the caller logs what is returned, grouped by shard.
        """
        taken: dict[int, tuple[QueueShard, list[tuple[Given, Grant]]]] = {}
        while messages > 0 and max_bytes > 0:
            queue = self.heads.first(self.shards)
            if queue is None:
                break
            found = next_given(queue, messages, max_bytes, lease_us)
            assert found is not None
            given, stored = found
            if overdraw and given.span == messages and 2 * messages >= stored.span:
                found = next_given(queue, stored.span, max_bytes, lease_us)
                assert found is not None
                given = found[0]
            if taken and stored.length > max_bytes:  # an answer is one frame, and bounded
                self.heads.offer(queue)
                break
            grant = queue.granted(given, now_us)
            self.heads.offer(queue)
            taken.setdefault(queue.shard, (queue, []))[1].append((given, grant))
            count = grant.messages
            messages -= count
            max_bytes -= stored.length * count // stored.rows
        return list(taken.values())
