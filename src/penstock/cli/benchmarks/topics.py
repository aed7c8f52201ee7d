"""Publishing over few and over many topics."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import ClassVar

from penstock import Topic, connect
from penstock.cli.benchmarks.figures import COUNT, RATE, Figure, Figures
from penstock.cli.benchmarks.processes import NodeProcess
from penstock.cli.benchmarks.settings import Settings

_CALLS = 10_000
_BATCH = 100
_QUICK_TOPICS = 1000
_THREADS = 4


class Topics:
    """A node with some topics, and one client with several threads."""

    SIZES: ClassVar[dict[str, int]] = {"publish, few topics": 10, "publish, many topics": 10_000}

    def __init__(
        self, settings: Settings, directory: Path, stack: ExitStack, name: str, topics: int
    ) -> None:
        self._name = name
        self._calls = settings.scaled(_CALLS, _CALLS // 10)
        self._values = settings.values(_BATCH)
        node = stack.enter_context(NodeProcess(directory / f"topics-{topics}"))
        fabric = stack.enter_context(connect(node.url))
        self._pool = stack.enter_context(ThreadPoolExecutor(_THREADS))
        present = settings.scaled(topics, min(topics, _QUICK_TOPICS))
        names = [f"bench-{number}" for number in range(present)]
        self._topics: list[Topic] = list(
            self._pool.map(lambda name: fabric.topic(name, partitions=1), names)
        )

    def publish(self) -> Figures:
        """Batches of 100 messages, each to the next topic."""
        started = time.perf_counter()
        stored = sum(self._pool.map(self._publish, range(self._calls)))
        rate = stored / (time.perf_counter() - started)
        return {
            self._name: Figure(rate, RATE),
            f"{self._name}/topics": Figure(len(self._topics), COUNT),
        }

    def _publish(self, call: int) -> int:
        topic = self._topics[call % len(self._topics)]
        count: int = topic.publish_many(self._values).count
        return count
