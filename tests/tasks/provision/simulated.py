"""Workers and a queue in simulated time, one second after the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.tasks.provision import Leaving, Provisioner, Terms, WorkerInfo

TASKS_A_SECOND = 10  # of one worker
START_S = 3.0  # until a new worker takes tasks
LOOK_S = 5


@dataclass
class SimulatedWorker:
    began_s: float
    leaving: Leaving | None
    stopped: bool = False
    done: int = 0
    busy_s: float = 0.0

    def work(self, waiting: int, now_s: float) -> int:
        """One second of work; how many tasks it has done."""
        if now_s - self.began_s < START_S:
            return 0
        done = min(waiting, TASKS_A_SECOND)
        self.done += done
        self.busy_s += done / TASKS_A_SECOND
        if self.leaving is not None:
            self.leaving.seen(done > 0, now_s)
        return done


@dataclass
class SimulatedCloud:
    """A `Provider` whose workers end as real ones do; `waiting` is the queue."""

    terms: Terms
    now_s: float = 0.0
    waiting: int = 0
    workers: dict[str, SimulatedWorker] = field(default_factory=dict)
    lifetimes_s: list[float] = field(default_factory=list)
    _started: int = 0

    def start(self, stays: bool) -> str:
        self._started += 1
        worker = f"w{self._started}"
        leaving = None if stays else Leaving(self.terms.period_s, self.terms.idle_s, self.now_s)
        self.workers[worker] = SimulatedWorker(self.now_s, leaving)
        return worker

    def stop(self, worker: str) -> None:
        self.workers[worker].stopped = True

    def list(self) -> list[WorkerInfo]:
        return [
            WorkerInfo(name, self.now_s - worker.began_s >= START_S, 0, worker.done, worker.busy_s)
            for name, worker in self.workers.items()
        ]

    def second(self) -> None:
        for name, worker in list(self.workers.items()):
            self.waiting -= worker.work(self.waiting, self.now_s)
            leaves = worker.leaving is not None and worker.leaving.should_leave(self.now_s)
            if leaves or worker.stopped:
                self.lifetimes_s.append(self.now_s - worker.began_s)
                del self.workers[name]
        self.now_s += 1.0


@dataclass
class Run:
    """What was seen in the course of a simulation."""

    cloud: SimulatedCloud
    provisioner: Provisioner
    workers: list[int] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)


def simulate(terms: Terms, arrivals: Callable[[int], int], seconds: int) -> Run:
    """`arrivals`: how many tasks come in a second."""
    cloud = SimulatedCloud(terms)
    run = Run(cloud, Provisioner(terms, cloud))
    for second in range(seconds):
        cloud.waiting += arrivals(second)
        if second % LOOK_S == 0:
            run.provisioner.look(cloud.waiting, cloud.now_s)
        cloud.second()
        run.workers.append(len(cloud.workers))
        run.waiting.append(cloud.waiting)
    return run
