"""`python -m penstock.cli.graphing.submit URL SETTINGS`: submits the graph by passing futures.

It prints the id of the first task, and, when all tasks have ended, what it cost and what came.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from penstock import TaskApp, TaskFuture, connect
from penstock.cli.benchmarks.processes import anonymous_bytes
from penstock.cli.graphing import functions
from penstock.cli.graphing.graph import DOOMED, FLAKY, REACH, Graph, Node
from penstock.tasks.envelope import Status

TASK_SET = "dag"
OUTSTANDING = 20_000  # tasks that are submitted and have not ended
KEEP_SECONDS = 6 * 3600.0
LOOK_EVERY = 1_000  # tasks

Say = Callable[[bytes], object]


class Settings(msgspec.Struct):
    """As JSON on the command line."""

    tasks: int
    seed: int
    outstanding: int = OUTSTANDING


class Told(msgspec.Struct):
    """What the client has seen, and what it needed."""

    seconds: float
    """Until everything was submitted."""
    first_bytes: int
    """Its memory when it began."""
    most_bytes: int
    """The most that it needed."""
    done: int = 0
    unexpected: int = 0
    """Futures that have ended in another way, or with another value, than a plain loop has."""


class Submitter:
    """Passes futures of tasks to tasks that depend on them; has only the last ones."""

    def __init__(self, app: TaskApp, graph: Graph) -> None:
        self._app, self._graph = app, graph
        self._ended = threading.Semaphore(0)
        first_bytes = anonymous_bytes(os.getpid())
        self._told = Told(0.0, first_bytes, first_bytes)

    def run(self, say: Say) -> Told:
        """Returns when every future is done."""
        started, told = time.monotonic(), self._told
        futures: dict[int, TaskFuture[Any]] = {}
        for node, value in self._graph.values():
            future = self._submit(node, [futures[each] for each in node.parents])
            future.add_done_callback(partial(self._look, node, value))
            futures[node.number] = future
            futures.pop(node.number - REACH, None)
            if not node.number:
                say(future.id)
            if not node.number % LOOK_EVERY:
                told.most_bytes = max(told.most_bytes, anonymous_bytes(os.getpid()))
        self._app.flush()
        told.seconds = time.monotonic() - started
        for _ in range(self._graph.tasks):
            self._ended.acquire()
        return told

    def _submit(self, node: Node, parents: list[TaskFuture[Any]]) -> TaskFuture[Any]:
        terms: dict[str, Any] = {"on_failure": node.on_failure, "keep": KEEP_SECONDS}
        submit, number, work_ms = self._app.submit, node.number, node.work_ms
        if node.function == DOOMED:
            return submit(functions.doomed, number, parents, **terms)
        if node.function == FLAKY:
            return submit(functions.flaky, number, work_ms, parents, node.raises, **terms)
        return submit(functions.combine, number, work_ms, parents, **terms)

    def _look(self, node: Node, value: int, future: Any) -> None:
        expected = node.status.name.lower()
        right = future.state == expected and (
            node.status is not Status.DONE or future.result()[0] == value
        )
        self._told.done += 1
        self._told.unexpected += not right
        self._ended.release()


def main(url: str, settings: str) -> None:
    """Submits the graph, and waits until it is done."""
    plan = msgspec.json.decode(settings, type=Settings)
    with connect(url) as fabric, fabric.tasks(TASK_SET, outstanding=plan.outstanding) as app:
        submitter = Submitter(app, Graph(plan.tasks, plan.seed))
        told = submitter.run(lambda first: print(first.hex(), flush=True))
        print(msgspec.json.encode(told).decode(), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
