"""The provisioner with real processes: workers come with tasks, and leave by themselves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.node.conftest import NodeProcess
from tests.node.conftest import node as node
from tests.tasks.worker.harness import FUNCTIONS, Caller

LONG_S = 90.0

pytestmark = pytest.mark.timeout(240)


class Provisioning:
    """`penstock provision`, and what it says."""

    def __init__(self, url: str, *options: str) -> None:
        command = [sys.executable, "-m", "penstock.cli.app", "provision", *options, "--json"]
        self._process = subprocess.Popen(
            [*command, "--url", url], stdout=subprocess.PIPE, text=True
        )
        self.seen: list[dict[str, Any]] = []

    def until(self, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Reads on to a line of which this holds."""
        assert self._process.stdout is not None
        ends_s = time.monotonic() + LONG_S
        for line in self._process.stdout:
            self.seen.append(json.loads(line))
            if holds(self.seen[-1]):
                return self.seen[-1]
            assert time.monotonic() < ends_s, self.seen[-3:]
        raise AssertionError(f"it has ended: {self.seen[-3:]}")

    def end(self) -> None:
        """As Ctrl-C does."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(LONG_S)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def stop(self) -> dict[str, Any]:
        self._process.send_signal(signal.SIGTERM)
        told = self.until(lambda told: told["event"] == "ended all")
        costs: dict[str, Any] = told["costs"]
        return costs


@pytest.fixture
def provision(node: NodeProcess) -> Iterator[Callable[..., Provisioning]]:
    started: list[Provisioning] = []

    def start(*options: str) -> Provisioning:
        started.append(Provisioning(node.url, *options))
        return started[-1]

    yield start
    for each in started:
        each.end()


def test_workers_come_with_tasks_and_leave_by_themselves(node: NodeProcess, provision) -> None:
    with node.connect() as fabric:
        caller = Caller(fabric)
        provisioning = provision(
            str(FUNCTIONS), "--max", "2", "--growth", "5", "--period", "6s", "--idle", "3s",
            "--price", "0.5", "--every", "200ms",
        )  # fmt: skip
        provisioning.until(lambda told: told["event"] == "look")
        tasks = caller.submit_all("double", [(n,) for n in range(40)])
        found = caller.collect(tasks, LONG_S)
        assert [caller.value(each) for each in found] == [2 * n for n in range(40)]
        provisioning.until(lambda told: told["event"] == "ended")
        provisioning.until(lambda told: told["event"] == "look" and not told["workers"])
        costs = provisioning.stop()
    events = [told["event"] for told in provisioning.seen]
    assert events.count("started") == events.count("ended") >= 1
    assert costs["workers"] == events.count("started")
    assert costs["cost"] == 0.5 * costs["periods"]
    assert costs["most_at_once"] <= 2


def test_a_worker_that_dies_is_replaced_and_all_end_in_the_end(
    node: NodeProcess, provision
) -> None:
    provisioning = provision(str(FUNCTIONS), "--min", "1", "--max", "1", "--every", "100ms")
    first = provisioning.until(lambda told: told["event"] == "started")["worker"]
    os.kill(int(first.partition(":")[2]), signal.SIGKILL)
    assert provisioning.until(lambda told: told["event"] == "ended")["worker"] == first
    second = provisioning.until(lambda told: told["event"] == "started")["worker"]
    assert second != first
    assert provisioning.stop()["workers"] == 2


@pytest.mark.slow
def test_a_module_that_cannot_be_loaded_ends_it_with_the_reason(
    node: NodeProcess, tmp_path
) -> None:
    command = [sys.executable, "-m", "penstock.cli.app", "provision", "no_such_module_here"]
    done = subprocess.run(
        [*command, "--min", "1", "--every", "100ms", "--url", node.url],
        capture_output=True, text=True, timeout=2 * LONG_S,
    )  # fmt: skip
    assert done.returncode == 1
    assert "before they were ready" in done.stderr
