"""Which measurements a run consists of."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from penstock.cli.benchmarks.figures import Figures
from penstock.cli.benchmarks.floors import ECHOES, Floors
from penstock.cli.benchmarks.latency import Latency
from penstock.cli.benchmarks.measure import Measurement
from penstock.cli.benchmarks.processes import NodeProcess, pinned
from penstock.cli.benchmarks.settings import Settings
from penstock.cli.benchmarks.workloads import Bulk
from penstock.client.blocking import connect

ONE_CPU = ", one CPU"


class Plan:
    """The measurements of the groups that were asked for, on one node and its floors."""

    def __init__(self, settings: Settings, directory: Path, stack: ExitStack) -> None:
        self._settings = settings
        self.node = stack.enter_context(NodeProcess(directory / "node"))
        fabric = stack.enter_context(connect(self.node.url, name="bench"))
        self._floors = Floors(settings, directory, stack)
        self._bulk = Bulk(settings, self.node, fabric)
        self._latency = Latency(settings, self.node.url, fabric)

    def measurements(self) -> Iterator[Measurement]:
        """In the order of a round: every floor next to what is compared with it."""
        chosen = self._settings.groups
        if "push" in chosen:
            yield Measurement("pipe in", self._floors.pipe_in)
            yield Measurement("pipe in, encoding", partial(self._floors.pipe_in, encode=True))
            yield Measurement("push", self._bulk.push)
        if "pop" in chosen:
            yield Measurement("pipe out", self._floors.pipe_out)
            yield Measurement("pipe out, decoding", partial(self._floors.pipe_out, decode=True))
            yield Measurement("pop", self._bulk.pop)
        if "loop" in chosen:
            yield Measurement("loop", self._bulk.loop)
        if "latency" in chosen:
            yield from self._latencies("")
            if self._settings.pin:
                for kind in ECHOES:
                    self._floors.start(kind)  # only what runs can be bound
                yield from self._latencies(ONE_CPU)

    def _latencies(self, suffix: str) -> Iterator[Measurement]:
        floors, latency = self._floors, self._latency
        for kind in ECHOES:
            name = f"{'echo' if kind == 'echo' else 'echo ' + kind}{suffix}"
            yield self._latency_run(name, partial(floors.round_trips, kind, name), suffix)
            if kind != "echo":
                name = f"push {kind}{suffix}"
                yield self._latency_run(name, partial(latency.push, kind, name), suffix)
        name = f"pop + ack{suffix}"
        yield self._latency_run(name, partial(latency.pop, name), suffix)
        name = f"end to end{suffix}"
        yield self._latency_run(name, partial(latency.end_to_end, name), suffix)

    def _latency_run(self, name: str, run: Callable[[], Figures], suffix: str) -> Measurement:
        def bound() -> Figures:
            cpus = {min(os.sched_getaffinity(0))} if suffix else set()
            with pinned([os.getpid(), self.node.pid, *self._floors.pids], cpus):
                return run()

        return Measurement(name, bound)
