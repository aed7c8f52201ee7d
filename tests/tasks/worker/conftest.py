"""A node, a caller, and workers that are gone after the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from tests.node.conftest import NodeProcess
from tests.node.conftest import node as node
from tests.tasks.worker.harness import Caller, WorkerProcess


@pytest.fixture
def caller(node: NodeProcess) -> Iterator[Caller]:
    with node.connect() as fabric:
        yield Caller(fabric)


@pytest.fixture
def start_worker(node: NodeProcess) -> Iterator[Callable[..., WorkerProcess]]:
    started: list[WorkerProcess] = []

    def start(*options: str) -> WorkerProcess:
        started.append(WorkerProcess(node.url, *options))
        return started[-1]

    yield start
    for each in started:
        each.end()
