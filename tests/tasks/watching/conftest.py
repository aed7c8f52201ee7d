"""A fabric in memory with a real clock, and workers of this process on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from tests.tasks.conftest import fabric as fabric
from tests.tasks.watching import shop
from tests.tasks.watching.harness import OwnWorker

import penstock
from penstock.tasks.worker import announcing


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers report more often than in life; tasks that wait do so anew in every test."""
    monkeypatch.setattr(announcing, "ANNOUNCE_S", 0.02)
    shop.reset()


@pytest.fixture
def start_worker(fabric: penstock.Fabric) -> Iterator[Callable[..., OwnWorker]]:
    started: list[OwnWorker] = []

    def start(concurrency: int = 2) -> OwnWorker:
        started.append(OwnWorker(fabric, "default", concurrency))
        return started[-1]

    yield start
    shop.go_on.set()
    for each in started:
        each.end()
