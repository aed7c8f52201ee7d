"""A node: its part of a task set's queue and results, by the state machines of the core."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from penstock.core import holds, queue_rules
from penstock.core.changes import Change
from penstock.core.holds import Waits, Watcher, Watchers
from penstock.core.lanes import lane_start
from penstock.core.queue import QueueShard, Totals
from penstock.core.runs import full
from penstock.core.views import QueueView
from penstock.errors import LeaseLostError
from penstock.sim.world import World
from penstock.tasks.simulation.costs import Costs
from penstock.wire.batch import Header
from penstock.wire.frames import SettleItem
from penstock.wire.messages import QueueOptions

QUEUE, RESULTS = 1, 2  # numbers of streams
SWEEP_US = 100_000
TASK_BYTES = 100
_ALL_BYTES = 1 << 40
_FIRST = lane_start(0)
_HEADER = Header(b"", 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)

Reply = Callable[[], None]
Request = Callable[[], tuple[int, Reply]]
"""Done when the node gets to it: how many tasks it was about, and what is done afterwards."""


class Lot(NamedTuple):
    """Tasks that were leased under one grant: their positions, and how often they were so far."""

    shard: int
    grant: int
    deliveries: int
    positions: Sequence[int]
    tasks: Sequence[int]


class TaskNode:
    """One process: requests are dealt with one after the other, each for its time.

    `turned` is called when tasks are ready here and were not, or the other way round."""

    def __init__(
        self, number: int, shards: Iterable[int], world: World, costs: Costs,
        turned: Callable[[TaskNode], None],
    ) -> None:  # fmt: skip
        self.number = number
        self.world = world
        self.view = QueueView(QUEUE)
        self.watchers = Watchers()
        self.results: set[bytes] = set()
        self._tasks: dict[int, array[int]] = {}  # by shard and position
        self._costs = costs
        self._turned = turned
        self._requests: deque[Request] = deque()
        self._busy = False
        self._sweeping = False
        for shard in shards:
            queue = QueueShard(shard, QUEUE, QueueOptions(), Totals(lambda places: None))
            self.view.shards[shard] = queue
            self._tasks[shard] = array("I")

    # --- requests --------------------------------------------------------------------------

    def ask(self, request: Request) -> None:
        """A request arrives."""
        self._requests.append(request)
        if not self._busy:
            self._next()

    def _next(self) -> None:
        if not self._requests:
            self._busy = False
            return
        self._busy = True
        tasks, reply = self._requests.popleft()()
        costs = self._costs

        def done() -> None:
            reply()
            self._next()

        self.world.after(int(costs.node_call_us + tasks * costs.node_task_us), done)

    def _check_turn(self) -> None:
        if self.view.turns():
            self._turned(self)

    # --- the queue -------------------------------------------------------------------------

    def push(self, shard: int, tasks: Sequence[int]) -> None:
        """A batch of tasks that may be run at once."""
        queue = self.view.shards[shard]
        self._store(queue, tasks, None)
        self.view.heads.offer_newest(queue, _FIRST >> 56)
        self._check_turn()

    def hold(self, shard: int, task: int, key: bytes, after: list[tuple[int, bytes]]) -> None:
        """A task that waits for the results of others, by their shards and keys."""
        queue = self.view.shards[shard]
        waits = Waits([(place, RESULTS, parent) for place, parent in after], 0, b"")
        holds.began(queue, key, waits)
        self._store(queue, [task], key)

    def _store(self, queue: QueueShard, tasks: Sequence[int], held: bytes | None) -> None:
        known = self._tasks[queue.shard]
        lane = queue.lane(0)
        header = _HEADER._replace(
            base=_FIRST + len(known), count=len(tasks), arrived_us=self.world.now_us
        )
        known.extend(tasks)
        queue.stored(header, len(known), TASK_BYTES * len(tasks), None, held)
        assert lane.end == _FIRST + len(known)

    def take(self, most: int, lease_us: int) -> list[Lot]:
        """Leases tasks, those first that are ready for longest."""
        taken = self.view.take(most, _ALL_BYTES, lease_us, self.world.now_us)
        lots = []
        for queue, _, grant in taken.grants.values():
            known, first = self._tasks[queue.shard], grant.position
            positions: Sequence[int] = range(first, first + grant.span)
            if grant.mask != full(grant.span):
                positions = [at for at in positions if grant.mask >> (at - first) & 1]
            tasks = [known[at - _FIRST] for at in positions]
            lots.append(Lot(queue.shard, grant.number, grant.deliveries, positions, tasks))
        self._check_turn()
        self._sweep_later()
        return lots

    def settle(self, items: Sequence[SettleItem]) -> bool:
        """All of it, or nothing if a lease is over: whether it was done."""
        try:
            decided = [self._decided(item) for item in items]
        except LeaseLostError:
            return False
        for item, change in zip(items, decided, strict=True):
            queue = self.view.shards[item.shard]
            if change is not None:
                queue.changed(change, self.world.now_us)
            self.view.heads.offer(queue)
        self._check_turn()
        self._sweep_later()
        return True

    def _decided(self, item: SettleItem) -> Change | None:
        return queue_rules.settle(self.view.shards[item.shard], item, self.world.now_us)

    # --- results ---------------------------------------------------------------------------

    def watch(self, key: bytes, watcher: Watcher) -> bool:
        """A held task waits for a result; whether it is there already."""
        if key in self.results:
            return True
        self.watchers.add(RESULTS, key, watcher)
        return False

    def write(self, key: bytes) -> list[Watcher]:
        """A result is there; the held tasks that are to be told."""
        self.results.add(key)
        return self.watchers.take(RESULTS, key)

    def meet(self, watcher: Watcher, key: bytes) -> None:
        """A held task hears of a result; with the last one it is ready."""
        queue = self.view.shards[watcher.shard]
        holds.met(queue, watcher.id, holds.packed_edge(RESULTS, key), 0)
        self.view.heads.offer(queue)
        self._check_turn()

    # --- time ------------------------------------------------------------------------------

    def _sweep_later(self) -> None:
        if not self._sweeping:
            self._sweeping = True
            self.world.after(SWEEP_US, self._sweep)

    def _sweep(self) -> None:
        self._sweeping = False
        now_us = self.world.now_us
        for queue in self.view.shards.values():
            due_us = queue_rules.next_due(queue, now_us)
            if due_us is None:
                continue
            self._sweep_later()
            if due_us <= now_us + 1:
                for change in queue_rules.overdue(queue, now_us):
                    queue.changed(change, now_us)
                queue_rules.make_due(queue, now_us)
                self.view.heads.offer(queue)
        self._check_turn()
