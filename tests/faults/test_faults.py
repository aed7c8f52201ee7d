"""A short `make faults`: a node is killed and, where that can be done, the leader is cut off."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.faults.leftovers import check_interrupt, processes_in

COMMAND = [sys.executable, "-m", "penstock.cli.faults", "--minutes", "0.15"]
SECONDS = 110


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(["--loopback"], id="kill"),
        pytest.param([], id="kill and cut", marks=pytest.mark.slow),
    ],
)
def test_faults_break_no_promise(tmp_path: Path, options: list[str]) -> None:
    kept = tmp_path / "kept"
    command = [*COMMAND, "--json", "--keep", str(kept), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    found = json.loads(done.stdout)
    assert found["trouble"] == []
    assert (done.returncode, found["correct"]) == (0, True)
    queue, topic, table = found["queue"], found["topic"], found["table"]
    assert (queue["lost"], queue["acked_twice"], queue["without_cause"]) == (0, 0, 0)
    assert (topic["lost"], topic["doubled"], topic["out_of_order"]) == (0, 0, 0)
    assert (table["lost_updates"], table["stale_reads"]) == (0, 0)
    assert queue["acknowledged"] > 1000
    assert topic["acknowledged"] > 100
    assert table["counted"] > 10
    assert len(found["faults"]) == 1 + (not found["left_out"])
    assert processes_in(kept) == []


def test_an_interrupt_leaves_nothing_behind(tmp_path: Path) -> None:
    check_interrupt(COMMAND, tmp_path / "kept", "history/*.consumed", SECONDS)
