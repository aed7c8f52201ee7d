"""What is broken, one after the other, and how it is put right again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from penstock.cli.faulting.nodes import Nodes, Status
from penstock.errors import DeadlineError, UnavailableError

ADDED = 4


class Lengths(NamedTuple):
    """How long something is broken, in seconds."""

    killed: float = 5.0  # long enough for others to take over
    cut: float = 12.0  # longer than a lease
    paused: float = 6.0  # longer than the failure detector waits


SHORT = Lengths(killed=2.5, cut=7.0)


@dataclass
class Fault:
    """One thing that was done to the cluster, and when. `cut`: the place that was cut off."""

    label: str
    started_ns: int
    cut: int = 0
    repaired_ns: int = 0  # nothing is broken any more; the cluster may still be busy with it
    whole_ns: int = 0

    @property
    def whole_seconds(self) -> float:
        """From the repair until every shard had its copies again."""
        return (self.whole_ns - self.repaired_ns) / 1e9


@dataclass
class Breaker:
    """Breaks a cluster and repairs it; `faults` is the history of that, in order. `trouble`: what
    the cluster did not recover from in time."""

    nodes: Nodes
    say: Callable[[str], None]
    lengths: Lengths
    faults: list[Fault] = field(default_factory=list)
    trouble: list[str] = field(default_factory=list)

    @contextmanager
    def _fault(self, label: str, cut: int = 0) -> Iterator[None]:
        """The body breaks and repairs; then the cluster has to become whole again."""
        self.say(label)
        fault = Fault(label, time.monotonic_ns(), cut)
        self.faults.append(fault)
        yield
        fault.repaired_ns = time.monotonic_ns()
        self.say(f"{label}: over; waiting until all copies are there")
        try:
            self.nodes.wait_until_whole()
        except DeadlineError as error:
            self.trouble.append(f"{label}: {error.message}")
        fault.whole_ns = time.monotonic_ns()
        if ended := self.nodes.ended():
            raise UnavailableError(f"nodes {ended} ended by themselves; see their logs")

    def kill(self, number: int) -> None:
        """SIGKILL, and a new start on the same directory a while later."""
        with self._fault(f"node {number} is killed"):
            self.nodes.kill(number)
            time.sleep(self.lengths.killed)
            self.nodes.start(number)

    def pause(self, lead: bool) -> None:
        """SIGSTOP for longer than a node may be silent: it wakes up and was replaced."""
        number = self._chosen(lead)
        seconds = self.lengths.paused
        with self._fault(f"node {number}{_title(lead)} is paused for {seconds:g} s"):
            self.nodes.pause(number)
            time.sleep(seconds)
            self.nodes.resume(number)

    def cut(self, lead: bool) -> None:
        """A partition: one node, and the clients at its place, reach nobody else."""
        number = self._chosen(lead)
        seconds = self.lengths.cut
        label = f"node {number}{_title(lead)} is cut off for {seconds:g} s"
        with self._fault(label, cut=number):
            self.nodes.cut(number)
            time.sleep(seconds)
            self.nodes.heal(number)

    def _chosen(self, lead: bool) -> int:
        """The leader of the control plane, or one of the first three that is not."""
        leader = self.nodes.leader()
        return leader if lead else next(n for n in self.nodes.numbers if n != leader)

    def add(self) -> None:
        """One more node joins."""
        with self._fault(f"node {ADDED} is added"):
            self.nodes.start(ADDED)

    def drain(self) -> None:
        """The node that was added gives away what it has and is removed."""

        def is_empty(status: Status) -> bool:
            return all(node["has"] == 0 for node in status["nodes"] if node["id"] == ADDED)

        with self._fault(f"node {ADDED} is drained and removed"):
            self.nodes.change("drain", ADDED)
            self.nodes.wait(f"node {ADDED} has nothing any more", is_empty)
            self.nodes.change("remove", ADDED)
            self.nodes.drop(ADDED)

    def restart(self, number: int) -> None:
        """SIGTERM, and a new start at once when it has ended."""
        with self._fault(f"node {number} is stopped (SIGTERM) and started again"):
            self.nodes.stop(number)
            self.nodes.start(number)


def _title(lead: bool) -> str:
    return ", which leads," if lead else ""


Step = Callable[[], None]


def plan(breaker: Breaker, full: bool, cuts: bool) -> Sequence[Step]:
    """What is done to a cluster of three nodes. `cuts`: places can be cut off."""
    leader_cut = [partial(breaker.cut, lead=True)] if cuts else []
    other_cut = [partial(breaker.cut, lead=False)] if cuts else []
    if not full:
        return [partial(breaker.kill, 2), *leader_cut]
    kills = [partial(breaker.kill, number) for number in (1, 2, 3)]
    return [
        *kills,
        *leader_cut,
        partial(breaker.pause, lead=False),
        breaker.add,
        *kills,
        *other_cut,
        partial(breaker.pause, lead=True),
        breaker.drain,
        *(partial(breaker.restart, number) for number in (1, 2, 3)),
    ]
