"""One run: clients and workers on a fabric, some of which die, until every task is over."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.sim.world import START_US, Action
from penstock.tasks.simulation.client import TaskClient
from penstock.tasks.simulation.costs import Costs
from penstock.tasks.simulation.fabric import TaskFabric
from penstock.tasks.simulation.ledger import Ledger
from penstock.tasks.simulation.worker import TaskWorker

LEASE_US = 30_000_000
LIMIT_US = 3_600_000_000  # a run that takes longer hangs
RESTART_US = 1_000_000  # until something that died is replaced


@dataclass(frozen=True)
class Deaths:
    """How often something dies, on average, in microseconds between two of a kind; 0: never."""

    worker_us: int = 0
    executor_us: int = 0
    pause_us: int = 0
    paused_us: int = 0  # how long a pause lasts: longer than a lease


@dataclass(frozen=True)
class Setting:
    """How much of everything."""

    nodes: int
    workers: int
    executors: int = 2  # of each worker
    clients: int = 0  # as many as workers, unless said otherwise
    local: bool = False  # every worker has a node on its machine
    single: bool = False  # clients submit one task at a time
    lease_us: int = LEASE_US
    deaths: Deaths = field(default_factory=Deaths)
    costs: Costs = field(default_factory=Costs)


class Run:
    """`run` until all is over; the ledger has the figures."""

    def __init__(self, setting: Setting, ledger: Ledger, seed: int) -> None:
        self.setting = setting
        self.ledger = ledger
        self.fabric = TaskFabric(seed, setting.nodes, ledger, setting.lease_us, setting.costs)
        self.world = self.fabric.world
        self.workers: list[TaskWorker] = []
        self.deaths = 0
        self._numbers = 0
        for _ in range(setting.workers):
            self._start_worker()
        self._start_clients(setting.clients or setting.workers)
        deaths = setting.deaths
        self._now_and_then(deaths.worker_us, self._kill_worker)
        self._now_and_then(deaths.executor_us, self._kill_executor)
        self._now_and_then(deaths.pause_us, self._pause_worker)

    def run(self) -> None:
        """Lets it happen."""
        self.world.run(START_US + LIMIT_US, lambda: self.ledger.over)

    def efficiency(self) -> float:
        """The part of all executors' time in which tasks themselves ran."""
        executors = self.setting.workers * self.setting.executors
        return self.ledger.work_us() / (executors * self.ledger.span_us())

    def _start_worker(self) -> None:
        self._numbers += 1
        nodes = list(self.fabric.nodes)
        local = nodes[self._numbers % len(nodes)] if self.setting.local else None
        self.workers.append(TaskWorker(self._numbers, self.fabric, self.setting.executors, local))

    def _start_clients(self, clients: int) -> None:
        share = -(-self.ledger.count // clients)
        self.fabric.client_of = lambda task: task // share
        for number in range(-(-self.ledger.count // share)):
            tasks = range(number * share, min((number + 1) * share, self.ledger.count))
            TaskClient(self.fabric, number, tasks, self.setting.single)

    # --- deaths ----------------------------------------------------------------------------

    def _now_and_then(self, every_us: int, act: Action) -> None:
        if every_us:

            def again() -> None:
                if self.workers:
                    act()
                self._now_and_then(every_us, act)

            self.world.after(int(self.world.random.expovariate(1 / every_us)), again)

    def _any_worker(self) -> TaskWorker:
        return self.world.random.choice(self.workers)

    def _kill_worker(self) -> None:
        worker = self._any_worker()
        worker.crash()
        self.workers.remove(worker)
        self.deaths += 1
        self.world.after(RESTART_US, self._start_worker)

    def _kill_executor(self) -> None:
        worker = self._any_worker()
        if worker.executors:
            worker.lose_executor(self.world.random.choice(list(worker.executors)))
            self.deaths += 1
            self.world.after(RESTART_US, worker.add_executor)

    def _pause_worker(self) -> None:
        self._any_worker().pause(self.setting.deaths.paused_us)
        self.deaths += 1
