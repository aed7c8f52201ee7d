"""A simulated worker: production dispatch, bundles, leases and routes, virtual time around them."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from penstock.cluster.pops import Ask, Hint, Pop, PopRoute
from penstock.sim.world import Action
from penstock.tasks.envelope import TaskCall
from penstock.tasks.simulation.executor import TaskExecutor
from penstock.tasks.simulation.fabric import TaskFabric, task_key, task_of
from penstock.tasks.simulation.node import Lot
from penstock.tasks.worker.dispatch import Dispatch
from penstock.tasks.worker.jobs import Effect, Ended, Finish, GiveBack, Job, Retry, Send, TakeBack
from penstock.tasks.worker.leases import Leases
from penstock.wire.frames import Settle, SettleItem

MAX_UNDER_WAY = 4  # transactions
MAX_TASKS = 1_000  # of one transaction
EXTEND_PART = 12  # so often in a lease it is looked at


class Held(NamedTuple):
    """One row of a delivery: where its message is, and under which grant."""

    node: int
    shard: int
    grant: int
    position: int
    task: int


class TaskWorker:
    """A puller and its executors on one machine. What arrives when it is down is lost."""

    def __init__(
        self, number: int, fabric: TaskFabric, executors: int, local: int | None = None
    ) -> None:
        """`local`: the node on the same machine, if there is one."""
        self.number = number
        self.up = True
        self.fabric = fabric
        self.world = fabric.world
        self.dispatch = Dispatch(self.world.random.random)
        self.route = PopRoute(local)
        self.executors: dict[int, TaskExecutor] = {}
        self._leases = Leases(fabric.lease_us)
        self._deliveries: dict[int, list[Held]] = {}
        self._made = 0  # jobs, deliveries and executors, which share their numbers
        self._busy_until_us = 0
        self._pulling = False
        self._tick_us: int | None = None  # when the next tick is due
        self._over: dict[tuple[int, int], deque[Job]] = {}  # by node and shard
        self._under_way = 0
        for _ in range(executors):
            self.add_executor()
        self.world.after(fabric.lease_us // EXTEND_PART, self._extend)

    # --- life and death --------------------------------------------------------------------

    def add_executor(self) -> None:
        """One more, idle."""
        if self.up:
            number = self._number()
            fabric = self.fabric
            self.executors[number] = TaskExecutor(
                number, self.world, fabric.costs, fabric.ledger, task_of, self._reported
            )
            self.dispatch.joined(number, self.world.now_us)
            self._act()

    def lose_executor(self, number: int) -> None:
        """An executor dies; the puller sees it at once."""
        executor = self.executors.pop(number)
        executor.up = False
        running = None if executor.running is None else executor.running.number
        self.dispatch.left(number, running, self.world.now_us)
        self._act()

    def crash(self) -> None:
        """All of it ends, in the middle of whatever it does."""
        self.up = False
        for executor in self.executors.values():
            executor.up = False
        self.fabric.gone(self.number)

    def pause(self, us: int) -> None:
        """The puller stands still, and so do its leases; executors go on."""
        self._busy_until_us = max(self.world.now_us, self._busy_until_us) + us

    def _number(self) -> int:
        self._made += 1
        return self._made

    def _then(self, cost_us: float, action: Action) -> None:
        """The puller does something when it gets to it, unless it is down by then."""
        self._busy_until_us = max(self.world.now_us, self._busy_until_us) + int(cost_us)

        def act() -> None:
            if self.up:
                action()

        self.world.after(self._busy_until_us - self.world.now_us, act)

    # --- pulling ---------------------------------------------------------------------------

    def _pull(self) -> None:
        wanted = 0 if self._pulling else self.dispatch.wanted(self.world.now_us)
        if not wanted:
            return
        self._pulling = True
        todo = self.route.next()
        if isinstance(todo, Pop):
            node, fill = todo
            self.fabric.pop(
                node, wanted,
                lambda lots, later: self._then(0, lambda: self._arrived(node, fill, lots, later)),
            )  # fmt: skip
        else:
            assert isinstance(todo, Ask)
            self.fabric.where(
                self.number, todo.emptied, lambda hints: self._then(0, lambda: self._listed(hints))
            )

    def _listed(self, hints: Iterable[Hint]) -> None:
        self.route.listed(hints)
        self._pulling = False
        self._pull()

    def _arrived(self, node: int, fill: int, lots: list[Lot], later: int) -> None:
        self._pulling = False
        if not lots:
            self.route.empty(node, max(fill, later))
            self._pull()
            return
        number = self._number()
        rows, jobs = self._jobs_of(number, node, lots)
        self.route.found(node, len(rows))
        self._deliveries[number] = rows
        self._leases.add(number, len(rows), self.world.now_us - self.fabric.costs.network_us)

        def delivered() -> None:
            self.dispatch.delivered(jobs, self.world.now_us)
            self._act()

        self._then(len(jobs) * self.fabric.costs.puller_task_us / 2, delivered)

    def _jobs_of(
        self, number: int, node: int, lots: Iterable[Lot]
    ) -> tuple[list[Held], list[Job]]:
        rows: list[Held] = []
        jobs: list[Job] = []
        now_us = self.world.now_us
        for lot in lots:
            for position, task in zip(lot.positions, lot.tasks, strict=True):
                call = TaskCall("nap", b"", task_key(task))
                jobs.append(
                    Job(self._number(), number, len(rows), call, b"", lot.deliveries, now_us)
                )
                rows.append(Held(node, lot.shard, lot.grant, position, task))
        return rows, jobs

    # --- executors -------------------------------------------------------------------------

    def _reported(self, executor: TaskExecutor, ended: list[Ended]) -> None:
        def heard() -> None:
            self.dispatch.ended(executor.number, ended, self.world.now_us)
            self._act()

        costs = self.fabric.costs
        cost_us = len(ended) * costs.puller_task_us / 2
        self.world.after(costs.pipe_us, lambda: self._then(cost_us, heard))

    def _act(self) -> None:
        """Carries out what dispatch has decided."""
        while effects := self.dispatch.taken():
            for effect in effects:
                self._carry_out(effect)
        self._commit()
        self._pull()
        after_us = self.dispatch.tick_us(self.world.now_us)
        if after_us is not None:
            due_us = self.world.now_us + after_us
            if self._tick_us is None or due_us < self._tick_us:
                self._tick_us = due_us
                self.world.after(after_us, lambda: self._then(0, lambda: self._tick(due_us)))

    def _carry_out(self, effect: Effect) -> None:
        if isinstance(effect, Send):
            executor = self.executors[effect.executor]
            self.world.after(self.fabric.costs.pipe_us, lambda: executor.run(effect.jobs))
        elif isinstance(effect, Finish):
            held = self._held(effect.job)
            self._over.setdefault((held.node, held.shard), deque()).append(effect.job)
        elif isinstance(effect, TakeBack):
            executor = self.executors[effect.executor]
            self.world.after(
                2 * self.fabric.costs.pipe_us, lambda: self._taken_back(executor, effect.jobs)
            )
        elif isinstance(effect, GiveBack):
            self._back(effect.job, Settle.RETURN, effect.delay_ms)
        elif isinstance(effect, Retry):
            self._back(effect.job, Settle.NACK, effect.delay_ms)

    def _taken_back(self, executor: TaskExecutor, jobs: int) -> None:
        if self.up and executor.up:
            self.dispatch.returned(executor.number, executor.give_back(jobs), self.world.now_us)
            self._act()

    def _tick(self, due_us: int) -> None:
        if due_us != self._tick_us:
            return  # an earlier one has taken its place
        self._tick_us = None
        self.dispatch.tick({}, self.world.now_us)
        self._act()

    # --- settling --------------------------------------------------------------------------

    def _held(self, job: Job) -> Held:
        return self._deliveries[job.delivery][job.row]

    def _commit(self) -> None:
        """Tasks that are over, those of one shard together; a few transactions at a time."""
        while self._over and self._under_way < MAX_UNDER_WAY:
            place, waiting = next(iter(self._over.items()))
            jobs = [waiting.popleft() for _ in range(min(len(waiting), MAX_TASKS))]
            del self._over[place]
            if waiting:
                self._over[place] = waiting
            self._under_way += 1
            self._settle(place[0], jobs)

    def _settle(self, node: int, jobs: list[Job]) -> None:
        items = self._items(jobs, Settle.ACK, 0)
        done = [self._held(job).task for job in jobs]
        self.fabric.settle(
            node, items, done,
            lambda accepted: self._then(0, lambda: self._settled(node, jobs, accepted)),
        )  # fmt: skip

    def _settled(self, node: int, jobs: list[Job], accepted: bool) -> None:
        """If one of them came too late, the others are settled without it."""
        if accepted or len(jobs) == 1:
            self._under_way -= 1
            self._released(jobs)
            self._commit()
            return
        half = len(jobs) // 2
        self._under_way += 1
        self._settle(node, jobs[:half])
        self._settle(node, jobs[half:])

    def _back(self, job: Job, op: Settle, delay_ms: int) -> None:
        items = self._items([job], op, delay_ms)
        self.fabric.settle(self._held(job).node, items, (), lambda accepted: None)
        self._released([job])

    def _items(self, jobs: Sequence[Job], op: Settle, arg: int) -> list[SettleItem]:
        """One item for the messages of each grant."""
        grants: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        for job in jobs:
            held = self._held(job)
            grants[held.shard, held.grant].append(held.position)
        items = []
        for (shard, grant), positions in grants.items():
            first = min(positions)
            mask = sum(1 << (position - first) for position in positions)
            items.append(SettleItem(op, shard, mask.bit_length(), grant, first, arg, mask))
        return items

    def _released(self, jobs: Iterable[Job]) -> None:
        rows: defaultdict[int, list[int]] = defaultdict(list)
        for job in jobs:
            rows[job.delivery].append(job.row)
        for delivery, settled in rows.items():
            if self._leases.settled(delivery, settled):
                del self._deliveries[delivery]

    def _extend(self) -> None:
        if not self.up:
            return
        lease_us = self.fabric.lease_us
        for delivery, rows in self._leases.due(self.world.now_us):
            by_node: defaultdict[int, list[SettleItem]] = defaultdict(list)
            for row in rows:
                held = self._deliveries[delivery][row]
                by_node[held.node].append(
                    SettleItem(
                        Settle.EXTEND, held.shard, 1, held.grant, held.position, lease_us // 1000
                    )
                )
            for node, items in by_node.items():
                self.fabric.settle(node, items, (), lambda accepted: None)
        self.world.after(lease_us // EXTEND_PART, lambda: self._then(0, self._extend))
