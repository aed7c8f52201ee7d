"""One run: nodes, a publisher, a group that changes all the time, the check of what came out."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock import Fabric, connect
from penstock.cli.benchmarks.processes import Child, NodeProcess
from penstock.cli.faulting.network import Loopback
from penstock.cli.faulting.nodes import Nodes
from penstock.cli.grouping.changes import ABRUPT, Change, Changer
from penstock.cli.grouping.check import Causes, Verdict, check_late, check_sessions
from penstock.cli.grouping.load import LATE, RESULTS, TOPIC, Load
from penstock.cli.grouping.members import Members, Terms
from penstock.cli.grouping.publishing import Published
from penstock.cli.grouping.settling import Watch
from penstock.errors import UnavailableError

STATIONS = {"publisher": ("clicks", "1"), "collector": ("collect", "1", "collect", "2")}
REST_SECONDS = 120.0  # until everything is committed, and until it is collected
END_SECONDS = 40.0
LOOK_SECONDS = 0.2

Say = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """What a run is to do. Times in seconds."""

    guarantee: str
    seconds: float
    seed: int
    nodes: int = 1
    partitions: int = 64
    members: int = 6
    rate: int = 4000
    lease: float = 5.0
    gentle: bool = False  # nobody is killed or paused
    commit_every: float = 0.5


@dataclass
class Outcome:
    """What a run showed."""

    plan: Plan
    sessions: Verdict
    late: Verdict
    changes: list[Change]
    statuses: list[dict[str, Any]]  # the last of every member
    fragments: int
    seconds: float  # of load
    trouble: list[str] = field(default_factory=list)

    @property
    def read(self) -> int:
        """Messages that members have read, as far as they could tell."""
        return sum(each.get("messages", 0) for each in self.statuses)

    @property
    def read_again_in_order(self) -> int:
        """Messages that were read again although nobody was killed or paused: has to be 0."""
        if self.plan.gentle:
            return abs(self.read - self.fragments)
        return sum(each.read_again for each in self.changes if each.kind not in ABRUPT)

    @property
    def broken(self) -> int:
        """Promises that did not hold, each counted as often as that was so."""
        guarantee = self.plan.guarantee
        results = self.sessions.broken(guarantee) + self.late.broken(guarantee)
        return results + self.read_again_in_order

    @property
    def correct(self) -> bool:
        """Whether every promise held, and all that was to happen did."""
        return not self.broken and not self.trouble


class Run:
    """Owns everything that is started; all of it has ended when `perform` returns."""

    def __init__(self, folder: Path, plan: Plan, say: Say) -> None:
        self._folder, self._plan, self._say = folder, plan, say
        self._history = folder / "history"
        self._history.mkdir(parents=True)
        self._load = Load(plan.seed, plan.partitions, plan.rate, plan.seconds)
        self._load.write(self._history)
        self._stations: dict[str, Child] = {}
        self._trouble: list[str] = []
        self.members: Members | None = None

    def perform(self) -> Outcome:
        """Changes the group as long as something is published, and checks what came of it."""
        plan = self._plan
        with ExitStack() as stack:
            url, nodes = self._start_nodes(stack)
            fabric = stack.enter_context(connect(url))
            topic = fabric.topic(TOPIC, plan.partitions)
            terms = Terms(url, plan.guarantee, plan.lease, plan.commit_every)
            members = self.members = Members(terms, self._folder)
            stack.callback(members.close)
            watch = Watch(topic, plan.lease)
            changer = Changer(
                members, watch, nodes, plan.members, plan.gentle, random.Random(plan.seed),
                self._say,
            )  # fmt: skip
            self._say("members start")
            changer.begin(max(1, plan.members // 2))
            stack.enter_context(self._clients(url, fabric))
            # Or the first kill would hit a member that has done nothing.
            self._wait("partitions were not begun", watch.not_begun)
            published = self._change(changer)
            self._come_to_rest(fabric, members, watch)
        return self._judge(changer, members, published)

    def _start_nodes(self, stack: ExitStack) -> tuple[str, Nodes | None]:
        """Where they are; and those of a cluster, if there is more than one."""
        self._say("nodes start")
        if self._plan.nodes == 1:
            node = stack.enter_context(NodeProcess(self._folder / "node-1", aside=True))
            return node.url, None
        nodes = Nodes(self._folder, Loopback())
        stack.callback(nodes.close)
        for number in range(1, self._plan.nodes + 1):
            nodes.start(number)
        nodes.wait_until_whole()
        return nodes.url(), nodes

    @contextmanager
    def _clients(self, url: str, fabric: Fabric) -> Iterator[None]:
        fabric.queue(RESULTS)
        fabric.queue(LATE)
        try:
            for name, works in STATIONS.items():
                self._stations[name] = Child(
                    "penstock.cli.faulting.station", url, str(self._history), *works,
                    log=self._folder / f"{name}.log", aside=True,
                )  # fmt: skip
            yield
        finally:
            for station in self._stations.values():
                station.kill()

    def _change(self, changer: Changer) -> Published:
        """At least once, and until everything is published."""
        until = time.monotonic() + 3 * self._plan.seconds + REST_SECONDS
        published = None
        while published is None:
            changer.next()
            for name, station in self._stations.items():
                if not station.running:
                    raise UnavailableError(f"the {name} ended early; see {name}.log")
            if time.monotonic() >= until:
                raise UnavailableError("the publisher is far too slow; see publisher.log")
            published = Published.read(self._history)
        self._trouble += changer.trouble
        return published

    def _come_to_rest(self, fabric: Fabric, members: Members, watch: Watch) -> None:
        """All is read and committed; members leave; all results are collected."""
        self._say("everything is published: waiting until it is committed")
        self._wait("messages were not committed", watch.lag)
        if bad := members.leave_all():
            self._trouble.append(f"members {bad} did not leave in order")
        self._say("waiting until all results are collected")
        queues = [fabric.queue(RESULTS), fabric.queue(LATE)]
        self._wait("results were not collected", lambda: sum(q.stats()["messages"] for q in queues))
        for station in self._stations.values():
            station.hang_up()
        for name, station in self._stations.items():
            if station.wait(END_SECONDS) != 0:
                self._trouble.append(f"the {name} failed; see {name}.log")

    def _wait(self, what: str, count: Callable[[], int]) -> None:
        """Until a count is 0 twice, a second apart: what a transaction sent may be under way."""
        until = time.monotonic() + REST_SECONDS
        zeros = 0
        while zeros < 2:
            left = count()
            zeros = 0 if left else zeros + 1
            if time.monotonic() >= until:
                self._trouble.append(f"{left:,} {what} in time")
                for station in self._stations.values():
                    if station.running:
                        os.kill(station.pid, signal.SIGUSR1)  # what hangs is in its log
                return
            time.sleep(LOOK_SECONDS if left else 1.0)

    def _judge(self, changer: Changer, members: Members, published: Published) -> Outcome:
        self._say("checking the results")
        causes = Causes(changer.disruptions, self._plan.commit_every)
        return Outcome(
            self._plan,
            check_sessions(self._history, self._load, causes),
            check_late(self._history, self._load, causes),
            changer.changes,
            [member.status for member in members.all],
            published.fragments,
            published.seconds,
            self._trouble,
        )
