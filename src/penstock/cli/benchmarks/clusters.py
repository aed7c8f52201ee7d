"""Three nodes with `replicated` against one node with `synced`, and where the time goes."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from penstock import Fabric, Queue, connect
from penstock.cli.benchmarks.figures import COUNT, CPU, RATE, Figure, Figures
from penstock.cli.benchmarks.latency import Latency
from penstock.cli.benchmarks.processes import NodeProcess, cpu_seconds
from penstock.cli.benchmarks.settings import Settings
from penstock.cli.benchmarks.workloads import consume_batches
from penstock.cli.cluster import ask_status
from penstock.cli.local_cluster import LocalCluster

NODES = 3
ALONE, TOGETHER = "one node", "cluster"


@dataclass
class Side:
    """One of the two that are compared: its nodes, and a client of it."""

    name: str
    durability: str
    fabric: Fabric
    urls: list[str]
    pids: dict[str, int]

    def used(self) -> dict[str, float]:
        """Processor time of every process, this one's included."""
        return {who: cpu_seconds(pid) for who, pid in {**self.pids, "client": os.getpid()}.items()}

    def syncs(self) -> dict[str, int]:
        """Of every node, since it was started."""
        told = self.fabric.stats()
        each = sorted(told.get("nodes", [told]), key=lambda figures: str(figures["node"]))
        return dict(zip(self.pids, (int(figures["syncs"]) for figures in each), strict=True))

    def sent_bytes(self) -> int:
        """Of all nodes to each other, since they were started; a node alone sends nothing."""
        return sum(ask_status(url)["sent_bytes"] for url in self.urls if self.name == TOGETHER)


class OneAgainstThree:
    """Both in the same run: every measurement is taken on one, then on the other."""

    def __init__(self, settings: Settings, directory: Path, stack: ExitStack) -> None:
        self._settings = settings
        self._values = settings.values(settings.messages)
        self._sides = [_alone(directory, stack), _together(directory, stack)]

    def push(self) -> Figures:
        """One producer, until everything is acknowledged."""
        return self._both("push", self._push)

    def pop(self) -> Figures:
        """One consumer: every value is touched and acknowledged."""
        return self._both("pop", self._pop)

    def single(self) -> Figures:
        """One push after the other, each with its receipt."""
        figures: Figures = {}
        for side in self._sides:
            latency = Latency(self._settings, side.urls[0], side.fabric)
            figures |= latency.push(side.durability, f"{side.name} single push")
        ratio = _ratio(figures, "single push/p50")
        return {**figures, "cluster against one node/single push, p50": ratio}

    def _both(self, what: str, run: Callable[[Side, Queue], Figures]) -> Figures:
        figures: Figures = {}
        for side in self._sides:
            queue = side.fabric.queue(f"bench-{what}", durability=side.durability)
            try:
                figures |= run(side, queue)
            finally:
                queue.delete()
        return {**figures, f"cluster against one node/{what}": _ratio(figures, what)}

    def _push(self, side: Side, queue: Queue) -> Figures:
        batch = self._settings.batch
        queue.push_many(self._values[:batch])
        return self._timed(
            side, f"{side.name} push", partial(queue.push_many, self._values, batch=batch)
        )

    def _pop(self, side: Side, queue: Queue) -> Figures:
        count, size = len(self._values), self._settings.size
        queue.push_many(self._values, batch=self._settings.batch)
        work = partial(consume_batches, queue, count, size)
        return self._timed(side, f"{side.name} pop", work)

    def _timed(self, side: Side, name: str, work: Callable[[], object]) -> Figures:
        """The rate, and what it cost: time of processors, traffic between nodes, syncs."""
        gc.collect()
        sent, syncs, used = side.sent_bytes(), side.syncs(), side.used()
        started = time.perf_counter()
        work()
        seconds = time.perf_counter() - started
        used = {who: after - used[who] for who, after in side.used().items()}
        syncs = {node: after - syncs[node] for node, after in side.syncs().items()}
        sent = side.sent_bytes() - sent
        messages = len(self._values)
        used["all nodes"] = sum(used[node] for node in side.pids)
        figures = {name: Figure(messages / seconds, RATE)}
        for who, spent in used.items():
            figures[f"{name}/{who}, cpu"] = Figure(spent * 1e6 / messages, CPU)
        batches = messages / self._settings.batch
        for node, count in syncs.items():
            figures[f"{name}/{node}, syncs per batch"] = Figure(count / batches, COUNT)
        if side.name == TOGETHER:
            per_byte = sent / (messages * self._settings.size)
            figures[f"{name}/sent between nodes per byte of a message"] = Figure(per_byte, COUNT)
        return figures


def _ratio(figures: Figures, what: str) -> Figure:
    return Figure(figures[f"{TOGETHER} {what}"].value / figures[f"{ALONE} {what}"].value, COUNT)


def _alone(directory: Path, stack: ExitStack) -> Side:
    node = stack.enter_context(NodeProcess(directory / "alone"))
    fabric = stack.enter_context(connect(node.url, name="bench"))
    return Side(ALONE, "synced", fabric, [node.url], {"node 1": node.pid})


def _together(directory: Path, stack: ExitStack) -> Side:
    cluster = LocalCluster(directory / "cluster")
    stack.callback(cluster.stop)
    cluster.start(NODES)
    found = cluster.wait_until_whole()
    if found["rows"]:
        raise RuntimeError(f"the cluster is not whole: {found['rows'][0]}")
    fabric = stack.enter_context(connect(cluster.url, name="bench"))
    urls = [note["address"] for note in cluster.notes.values()]
    pids = {f"node {number}": each.pid for number, each in cluster.processes.items()}
    return Side(TOGETHER, "replicated", fabric, urls, pids)
