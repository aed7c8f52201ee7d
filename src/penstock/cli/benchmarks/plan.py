"""Which measurements a run consists of."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from penstock import connect
from penstock.cli.benchmarks.clusters import OneAgainstThree
from penstock.cli.benchmarks.figures import Figures
from penstock.cli.benchmarks.floors import ECHOES, Floors
from penstock.cli.benchmarks.latency import Latency
from penstock.cli.benchmarks.measure import Measurement
from penstock.cli.benchmarks.memory import in_batches, one_by_one
from penstock.cli.benchmarks.processes import NodeProcess, pinned
from penstock.cli.benchmarks.recovery import reopen
from penstock.cli.benchmarks.sessions import Sessions
from penstock.cli.benchmarks.settings import DEFAULT_GROUPS, Settings
from penstock.cli.benchmarks.space import push_and_pop
from penstock.cli.benchmarks.tasks import Tasks
from penstock.cli.benchmarks.topics import Topics
from penstock.cli.benchmarks.workloads import COLUMNS, LARGE, Bulk

ONE_CPU = ", one CPU"
Alone = Callable[[Settings, Path], Figures]
"""A measurement with a node of its own."""


class Plan:
    """The measurements of the groups that were asked for; what they need is started with them."""

    def __init__(self, settings: Settings, directory: Path, stack: ExitStack) -> None:
        self._settings = settings
        self._directory = directory
        self._stack = stack

    def measurements(self) -> Iterator[Measurement]:
        """In the order of a round: every floor next to what is compared with it."""
        chosen = set(self._settings.groups)
        if chosen & set(DEFAULT_GROUPS):
            yield from self._on_one_node(chosen)
        if "topics" in chosen:
            for name, count in Topics.SIZES.items():
                topics = Topics(self._settings, self._directory, self._stack, name, count)
                yield Measurement(name, topics.publish)
        if "cluster" in chosen:
            both = OneAgainstThree(self._settings, self._directory, self._stack)
            yield Measurement("push, one node and three", both.push)
            yield Measurement("pop, one node and three", both.pop)
            yield Measurement("single pushes, one node and three", both.single)
        if "sessions" in chosen:
            sessions = Sessions(self._settings, self._directory, self._stack)
            yield Measurement("sessions, loop and assembler", sessions.alone)
            yield Measurement("sessions, member", sessions.member)
        if "spark" in chosen:
            yield from self._on_spark()
        if "tasks" in chosen:
            yield from Tasks(self._settings, self._directory, self._stack).measurements()
        alone: dict[str, dict[str, Alone]] = {
            "memory": {"memory batches": in_batches, "memory singles": one_by_one},
            "recovery": {
                "recovery batches": partial(reopen, single=False),
                "recovery singles": partial(reopen, single=True),
            },
            "space": {"space": push_and_pop},
        }
        for group, runs in alone.items():
            for name, run in runs.items() if group in chosen else ():
                yield Measurement(name, partial(run, self._settings, self._directory), once=True)

    def _on_spark(self) -> Iterator[Measurement]:
        # Loads PySpark, which is in an extra.
        from penstock.cli.benchmarks.spark import SparkRuns

        runs = SparkRuns(self._settings, self._directory, self._stack)
        yield Measurement("spark, ready Arrow", runs.read_ready)
        yield Measurement("spark, topic", runs.read)
        yield Measurement("spark, rows", runs.read_rows)
        yield Measurement("spark, Parquet", runs.read_parquet)
        yield Measurement("spark sessions", runs.sessions)
        yield Measurement("spark sessions, of rows", runs.sessions_of_rows)
        yield Measurement("spark sessions, general", runs.sessions_general)
        yield Measurement("spark sessions, per key", runs.sessions_per_key)

    def _on_one_node(self, chosen: set[str]) -> Iterator[Measurement]:
        settings, stack = self._settings, self._stack
        node = stack.enter_context(NodeProcess(self._directory / "node"))
        fabric = stack.enter_context(connect(node.url, name="bench"))
        floors = Floors(settings, self._directory, stack)
        bulk = Bulk(settings, node, fabric)
        if chosen & {"push", "pop"} and not settings.quick:
            bulk.warm_up()
        if "push" in chosen:
            yield Measurement("pipe in", floors.pipe_in)
            yield Measurement("pipe in, encoding", partial(floors.pipe_in, encode=True))
            yield Measurement("push", bulk.push)
            yield Measurement(f"push{LARGE}", bulk.push_large)
        if "pop" in chosen:
            yield Measurement("pipe out", floors.pipe_out)
            yield Measurement("pipe out, decoding", partial(floors.pipe_out, decode=True))
            yield Measurement("pop", bulk.pop)
            if find_spec("pyarrow") is not None:
                yield Measurement(f"pop{COLUMNS}", bulk.pop_columns)
                yield Measurement(f"pop{LARGE}", bulk.pop_arrow)
        if "loop" in chosen:
            yield Measurement("loop", bulk.loop)
        if "latency" in chosen:
            latency = Latency(settings, node.url, fabric)
            yield from _latencies(floors, latency, node)
            if settings.pin:
                yield from _latencies(floors, latency, node, ONE_CPU)


def _latencies(
    floors: Floors, latency: Latency, node: NodeProcess, suffix: str = ""
) -> Iterator[Measurement]:
    """Single operations; with a suffix all processes share one CPU, so that none is woken."""
    runs: list[tuple[str, Callable[[str], Figures]]] = []
    for kind in ECHOES:
        floors.start(kind)
        runs.append((echo_name(kind), partial(floors.round_trips, kind)))
        if kind != "echo":
            runs.append((f"push {kind}", partial(latency.push, kind)))
    runs += [("pop + ack", latency.pop), ("end to end", latency.end_to_end)]
    for name, run in runs:
        full = name + suffix
        yield Measurement(full, partial(_bound, partial(run, full), floors, node, bool(suffix)))


def _bound(run: Callable[[], Figures], floors: Floors, node: NodeProcess, bind: bool) -> Figures:
    cpus = {min(os.sched_getaffinity(0))} if bind else set()
    with pinned([os.getpid(), node.pid, *floors.pids], cpus):
        return run()


def echo_name(kind: str) -> str:
    """What the figures of an echo are called."""
    return kind if kind == "echo" else f"echo {kind}"
