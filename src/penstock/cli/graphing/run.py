"""One run: nodes, workers that are killed, a client with a graph, the check of what came out."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from penstock import Fabric, connect
from penstock.cli.benchmarks.processes import Child, NodeProcess
from penstock.cli.faulting.network import Loopback
from penstock.cli.faulting.nodes import Nodes
from penstock.cli.graphing.auditing import Audit
from penstock.cli.graphing.check import Checker, Kill, Killed, Run, Verdict, runs_of
from penstock.cli.graphing.crew import LOOK_SECONDS, Crew
from penstock.cli.graphing.graph import DOOMED, Graph, Shape
from penstock.cli.graphing.ledger import read_ledgers
from penstock.cli.graphing.standing import Excuses, Standstill, Standstills
from penstock.cli.graphing.submit import TASK_SET, Settings, Told
from penstock.errors import PenstockError
from penstock.tasks.names import streams_of, task_id_of

STALL_SECONDS = 90.0  # and ten leases: nothing has ended for so long, and nothing will
END_SECONDS = 60.0
STANDSTILL = 0.2  # of a lease: a third is left when it is extended
MOST_EXPLAINED = 3  # of the tasks that have not ended

Say = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """What a run is to do. Times in seconds."""

    tasks: int = 100_000
    seed: int = 1
    every: float = 1.0  # between kills
    workers: int = 4
    concurrency: int = 2
    lease: float = 5.0
    nodes: int = 1
    kills: int = 0  # no more than these; 0: until the end


@dataclass
class Outcome:
    """What a run showed."""

    plan: Plan
    shape: Shape
    verdict: Verdict
    kills: list[Kill]
    told: Told | None
    seconds: float = 0.0  # from the first submission to the last outcome
    longest_pause: float = 0.0  # without any outcome, after a kill
    recoveries: list[float] = field(default_factory=list)  # from a kill until it was begun again
    workers: int = 0
    standstills: list[Standstill] = field(default_factory=list)
    trouble: list[str] = field(default_factory=list)

    @property
    def correct(self) -> bool:
        """Whether every promise held, and all that was to happen did."""
        return not self.verdict.broken and not self.trouble and bool(self.kills)


class Proof:
    """Owns everything that is started; all of it has ended when `perform` returns."""

    def __init__(self, folder: Path, plan: Plan, say: Say) -> None:
        self._folder, self._plan, self._say = folder, plan, say
        self._graph = Graph(plan.tasks, plan.seed)
        self._runs = folder / "runs"
        self._runs.mkdir(parents=True)
        self._trouble: list[str] = []
        self.audit: Audit | None = None
        self.crew: Crew | None = None

    def perform(self) -> Outcome:
        """All of it."""
        standstills = Standstills(self._plan.lease * STANDSTILL)
        with ExitStack() as stack:
            stack.callback(standstills.close)
            url = self._start_nodes(stack)
            fabric = stack.enter_context(connect(url))
            self._say("workers start")
            crew = self.crew = self._start_workers(url)
            stack.callback(crew.close)
            crew.wait_until_ready()
            started_ns = time.monotonic_ns()
            submitter = self._start_submitter(url)
            stack.callback(submitter.kill)
            audit = self.audit = Audit(url, TASK_SET, bytes.fromhex(submitter.line))
            self._say("workers are killed, and replaced")
            over = self._over(submitter, audit)
            while not (audit.ended or over()):  # or the first kill would hit somebody idle
                time.sleep(LOOK_SECONDS)
            crew.kill_until(over, self._plan.every, self._plan.kills)
            told = self._come_to_rest(submitter, crew)
            audit.finish()
            self._look_at_queue(fabric, bytes.fromhex(submitter.line))
            self._say("checking what came out")
            kept = audit.kept(fabric)
        runs = runs_of(read_ledgers(self._runs))
        killed, came_ns = Killed(crew.kills), sorted(audit.came_ns.values())
        excuses = Excuses(standstills.found, int(self._plan.lease * 1e9))
        checker = Checker(audit.published, kept, runs, killed, audit.came_ns, excuses)
        verdict = checker.check(self._graph)
        self._trouble += [*crew.trouble, *audit.trouble]
        return Outcome(
            self._plan, Shape.of(self._graph), verdict, crew.kills, told,
            (max(came_ns, default=started_ns) - started_ns) / 1e9,
            longest_pause(crew.kills, came_ns), recoveries(runs, killed), crew.started,
            standstills.found, self._trouble,
        )  # fmt: skip

    def _start_nodes(self, stack: ExitStack) -> str:
        self._say("nodes start")
        if self._plan.nodes == 1:
            return stack.enter_context(NodeProcess(self._folder / "node-1", aside=True)).url
        nodes = Nodes(self._folder, Loopback())
        stack.callback(nodes.close)
        for number in range(1, self._plan.nodes + 1):
            nodes.start(number)
        nodes.wait_until_whole()
        return nodes.url()

    def _start_workers(self, url: str) -> Crew:
        plan = self._plan
        arguments = (
            "--tasks", TASK_SET, "--concurrency", str(plan.concurrency), "--lease",
            f"{plan.lease}s", "--url", url,
        )  # fmt: skip
        return Crew(self._folder, plan.workers, arguments, random.Random(plan.seed))

    def _start_submitter(self, url: str) -> Child:
        settings = msgspec.json.encode(Settings(self._plan.tasks, self._plan.seed)).decode()
        return Child(
            "penstock.cli.graphing.submit", url, settings, log=self._folder / "submit.log",
            aside=True,
        )  # fmt: skip

    def _over(self, submitter: Child, audit: Audit) -> Callable[[], bool]:
        """Whether it need not go on: all has ended, or nothing does any more."""
        stall_s = STALL_SECONDS + 10 * self._plan.lease
        last = [0, time.monotonic()]

        def over() -> bool:
            now, ended = time.monotonic(), audit.ended
            if ended != last[0]:
                last[:] = ended, now
            if ended >= self._plan.tasks or not submitter.running:
                return True
            if now - last[1] > stall_s:
                self._trouble.append(f"nothing has ended for {stall_s:.0f} s")
                return True
            return bool(audit.trouble)

        return over

    def _come_to_rest(self, submitter: Child, crew: Crew) -> Told | None:
        """Nothing is under way when this returns. What the client says at its end."""
        self._say("workers end")
        told = None
        if self._trouble or submitter.wait(END_SECONDS) != 0:
            self._trouble.append("the client did not end in order; see submit.log")
        else:
            told = msgspec.json.decode(submitter.answer(), type=Told)
            if told.unexpected:
                self._trouble.append(f"{told.unexpected:,} futures ended unexpectedly")
        crew.leave()
        return told

    def _look_at_queue(self, fabric: Fabric, first: bytes) -> None:
        """Nothing may be left but the tasks that failed for good; what is, is explained."""
        figures = fabric.queue(streams_of(TASK_SET).queue, create=False).stats()
        dead = sum(node.function == DOOMED for node in self._graph)
        left = figures["messages"] - figures["dead"]
        if left or figures["dead"] != dead:
            self._trouble.append(
                f"left in the queue: {left:,} tasks; dead: {figures['dead']:,}, of {dead:,} that "
                "fail"
            )
        assert self.audit is not None
        ended, count = self.audit.published, int.from_bytes(first[8:], "big")
        lost = [number for number in range(self._plan.tasks) if number not in ended]
        with fabric.tasks(TASK_SET) as app:
            for number in lost[:MOST_EXPLAINED]:
                try:
                    said = app.explain(task_id_of(first[:8], count + number))
                except PenstockError as error:
                    self._trouble.append(f"task {number}: {error}")
                else:
                    self._trouble.append(f"task {number}: {said}")


def longest_pause(kills: list[Kill], came_ns: list[int]) -> float:
    """Seconds from a kill until something ended; times in order."""
    longest, at = 0, 0
    for kill in sorted(kills, key=lambda each: each.at_ns):
        while at < len(came_ns) and came_ns[at] < kill.at_ns:
            at += 1
        if at < len(came_ns):
            longest = max(longest, came_ns[at] - kill.at_ns)
    return longest / 1e9


def recoveries(runs: dict[int, list[Run]], killed: Killed) -> list[float]:
    """Of each run that was lost with its worker: seconds from the kill until the task was begun
    again."""
    found: list[float] = []
    for own in runs.values():
        for run, following in itertools.pairwise(own):
            at_ns = killed.of(run.name)
            if run.begun_ns < at_ns < following.begun_ns:
                found.append((following.begun_ns - at_ns) / 1e9)
    return found
