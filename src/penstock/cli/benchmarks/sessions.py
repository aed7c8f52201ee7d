"""Sessions assembled on one core: by a plain loop, by the assembler alone, and by a whole member of
a group that reads a topic, delivers to a queue and commits, exactly once."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

from penstock import Topic, connect
from penstock.cli.benchmarks.figures import COUNT, CPU, RATE, Figure, Figures
from penstock.cli.benchmarks.processes import Child, NodeProcess, cpu_seconds
from penstock.cli.benchmarks.settings import Settings
from penstock.consumers.generator import Clicks, is_end
from penstock.consumers.session_bench import measure_sessions
from penstock.consumers.sessions import Sessionizer
from penstock.errors import DeadlineError

TOPIC = "bench-clicks"
PARTITIONS = 8
HANDLER = "penstock.cli.benchmarks.sessions:handler"
PLAIN, ASSEMBLER, MEMBER = "sessions, plain loop", "sessions, assembler", "sessions, member"
_SHAPE = Clicks(seed=7)
_CHAINS, _QUICK_CHAINS = 5000, 300  # about 16 fragments each, four times
_LOOK_SECONDS = 0.05
_MEMBER_SECONDS = 300.0


def handler() -> Sessionizer:
    """What the member runs: the same as the assembler alone."""
    return Sessionizer(end=is_end, timeout=_SHAPE.timeout, delay=_SHAPE.delay)


class Sessions:
    """A topic with the fragments, and what assembles them; each round begins with a new group."""

    def __init__(self, settings: Settings, directory: Path, stack: ExitStack) -> None:
        chains = settings.scaled(_CHAINS, _QUICK_CHAINS)
        self._clicks = Clicks(seed=_SHAPE.seed, chains=chains)
        self._directory = directory
        self._node = stack.enter_context(NodeProcess(directory / "sessions"))
        self._fabric = stack.enter_context(connect(self._node.url, name="bench"))
        self._topic = self._fabric.topic(TOPIC, PARTITIONS)
        self._fragments = _fill(self._topic, self._clicks)
        self._round = 0

    def alone(self) -> Figures:
        """The plain loop, then the assembler one by one and in bulk, in processor time."""
        rates = measure_sessions(self._clicks, time.process_time)
        return {
            PLAIN: Figure(rates.plain_loop, RATE),
            ASSEMBLER: Figure(rates.one_by_one, RATE),
            f"{ASSEMBLER}/in bulk": Figure(rates.in_bulk, RATE),
            f"{ASSEMBLER}/sessions": Figure(rates.sessions, COUNT),
        }

    def member(self) -> Figures:
        """One member, from its joining until everything is committed: by its processor time, by the
        clock, and what it cost the node."""
        self._round += 1
        group = f"bench-{self._round}"
        node_cpu = cpu_seconds(self._node.pid)
        with Child(
            "penstock.cli.app", "consume", HANDLER, "--url", self._node.url, "--topic", TOPIC,
            "--group", group, "--to", f"queue:{group}",
            log=self._directory / "sessions-member.log",
        ) as member:  # fmt: skip
            started, member_cpu = time.perf_counter(), cpu_seconds(member.pid)
            self._wait(group)
            seconds = time.perf_counter() - started
            member_cpu = cpu_seconds(member.pid) - member_cpu
            node_cpu = cpu_seconds(self._node.pid) - node_cpu
        results = self._fabric.queue(group).stats()["messages"]
        self._fabric.delete_queue(group)
        return {
            MEMBER: Figure(self._fragments / member_cpu, RATE),
            f"{MEMBER}/by the clock": Figure(self._fragments / seconds, RATE),
            f"{MEMBER}/sessions": Figure(results, COUNT),
            f"{MEMBER}/node, cpu": Figure(node_cpu / self._fragments * 1e6, CPU),
        }

    def _wait(self, group: str) -> None:
        until = time.monotonic() + _MEMBER_SECONDS
        while sum(claim.lag for claim in self._topic.claims(group).values()):
            if time.monotonic() >= until:
                raise DeadlineError(f"a member needs more than {_MEMBER_SECONDS:g} s")
            time.sleep(_LOOK_SECONDS)


def _fill(topic: Topic, clicks: Clicks) -> int:
    """Publishes all fragments; how many there are."""
    count = 0
    for keys, values, times_us in clicks.columns():
        count += topic.publish_many(values, keys=keys, timestamps=(times_us / 1e6).tolist()).count
    return count
