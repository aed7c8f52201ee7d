"""The provisioner: looks at the queue, starts workers, keeps the books."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import UnavailableError
from penstock.tasks.provision.ledger import Ledger
from penstock.tasks.provision.policy import Policy, Terms
from penstock.tasks.provision.provider import Provider, WorkerInfo

MAX_LOST = 3  # workers in a row that ended before they were ready


@dataclass(frozen=True, slots=True)
class Status:
    """What was found and done at one look."""

    waiting: int
    workers: list[WorkerInfo]
    started: list[str]
    ended: list[str]


class Provisioner:
    """Call `look` at even times. It holds no thread and no clock of its own."""

    def __init__(self, terms: Terms, provider: Provider) -> None:
        self.ledger = Ledger(terms)
        self._terms = terms
        self._policy = Policy(terms)
        self._provider = provider
        self._known: dict[str, WorkerInfo] = {}
        self._staying: set[str] = set()
        self._lost = 0
        self._stopping = False

    def look(self, waiting: int, now_s: float) -> Status:
        """So many tasks wait: starts what workers are needed, unless it was stopped.

        UnavailableError if workers end before they are ready, again and again: something is wrong
        with them that more of them would not mend.
        """
        found = {each.worker: each for each in self._provider.list()}
        ended = [worker for worker in self._known if worker not in found]
        for worker in ended:
            self._end(worker, now_s)
        for worker, info in found.items():
            self._known[worker] = info
            self.ledger.worked(worker, info.busy_s)
        wanted = 0 if self._stopping else self._policy.wanted(waiting, len(found))
        started = [self._start(now_s) for _ in range(wanted)]
        return Status(waiting, list(self._known.values()), started, ended)

    def stop(self) -> None:
        """Has all workers finish what they run, and end; no more are started."""
        self._stopping = True
        for worker in list(self._known):
            self._provider.stop(worker)

    def _start(self, now_s: float) -> str:
        stays = len(self._staying) < self._terms.minimum
        worker = self._provider.start(stays)
        if stays:
            self._staying.add(worker)
        self._known[worker] = WorkerInfo(worker)
        self.ledger.began(worker, now_s)
        return worker

    def _end(self, worker: str, now_s: float) -> None:
        info = self._known.pop(worker)
        self._staying.discard(worker)
        self.ledger.ended(worker, now_s)
        self._lost = 0 if info.ready or self._stopping else self._lost + 1
        if self._lost >= MAX_LOST:
            raise UnavailableError(
                f"{self._lost} workers in a row have ended before they were ready",
                advice="Start one by hand with `penstock worker`, and see what it says.",
            )
