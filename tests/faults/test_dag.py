"""A short `make dag`: workers are killed while they run a graph of tasks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.faults.leftovers import check_interrupt, processes_in

COMMAND = [sys.executable, "-m", "penstock.cli.dag", "--json", "--seed", "20"]
SECONDS = 240  # many processes are started: a busy machine takes its time

pytestmark = pytest.mark.timeout(2 * SECONDS)


def run(folder: Path, *options: str) -> dict[str, Any]:
    """One run that has to be right; what it found."""
    kept = folder / "kept"
    command = [*COMMAND, "--keep", str(kept), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["trouble"] == []
    assert (done.returncode, found["correct"]) == (0, True), found["verdict"]
    assert set(found["promises"].values()) == {0}
    assert found["kills"] > 0
    assert found["verdict"]["raised"] > 0
    assert found["told"]["done"] == found["plan"]["tasks"]
    assert processes_in(kept) == []
    return found


def test_workers_that_are_killed_break_no_promise(tmp_path: Path) -> None:
    few = ("--tasks", "300", "--workers", "2", "--concurrency", "1", "--kills", "2")
    found = run(tmp_path, *few, "--every", "0.3")
    assert found["kills"] <= 2


@pytest.mark.slow
def test_nor_do_they_in_a_cluster(tmp_path: Path) -> None:
    run(tmp_path, "--tasks", "2000", "--nodes", "3", "--kills", "10")


@pytest.mark.slow
def test_an_interrupt_leaves_nothing_behind(tmp_path: Path) -> None:
    check_interrupt([*COMMAND, "--workers", "2"], tmp_path / "kept", "runs/*.runs", SECONDS)
