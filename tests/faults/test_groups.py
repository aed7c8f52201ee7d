"""A short `make groups`: members come, go, stop and are killed while they assemble sessions."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.faults.leftovers import check_interrupt, processes_in

COMMAND = [sys.executable, "-m", "penstock.cli.groups", "--json"]
LEASE_SECONDS = 2
SECONDS = 110
# What is done first follows from the seed.
KILLED_PAUSED_LEFT = 163
NODE_KILLED_LEFT = 75


def run(folder: Path, seed: int, *options: str, minutes: float = 0.15) -> dict[str, Any]:
    """One run that has to be right; what it found."""
    kept = folder / "kept"
    command = [
        *COMMAND, "--minutes", str(minutes), "--lease", str(LEASE_SECONDS), "--seed", str(seed),
        "--rate", "800", "--partitions", "32", "--keep", str(kept), *options,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)[0]
    assert found["trouble"] == []
    assert (done.returncode, found["correct"]) == (0, True), (found["sessions"], found["late"])
    assert found["work"]["read_again_in_order"] == 0
    assert found["sessions"]["expected"] > 500
    assert processes_in(kept) == []
    return found


def kinds(found: dict[str, Any]) -> list[str]:
    return [change["kind"] for change in found["changes"]]


def check_exactly_once(found: dict[str, Any]) -> None:
    for verdict in (found["sessions"], found["late"]):
        assert verdict["delivered"] == verdict["expected"] > 0
        assert (verdict["missing"], verdict["doubled"], verdict["wrong"]) == (0, 0, 0)


@pytest.mark.slow
def test_members_of_one_node_break_no_promise(tmp_path: Path) -> None:
    found = run(tmp_path, KILLED_PAUSED_LEFT, "--guarantee", "exactly-once")
    check_exactly_once(found)
    assert kinds(found)[:2] == ["added", "killed"]
    assert found["changes"][1]["read_again"] > 0  # it was killed at work
    assert found["handovers"]["count"] + found["resumes"]["count"] > 0
    # Who died held its claims for most of a lease; nobody could take over before.
    assert found["resumes"]["p50_ms"] > LEASE_SECONDS * 1000 / 2


def test_members_of_three_nodes_break_no_promise(tmp_path: Path) -> None:
    found = run(tmp_path, NODE_KILLED_LEFT, "--guarantee", "exactly-once", "--nodes", "3")
    check_exactly_once(found)
    assert kinds(found)[:2] == ["added", "node killed"]


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [1, 3])
@pytest.mark.parametrize("guarantee", ["at-least-once", "at-most-once"])
def test_the_other_guarantees_hold_too(tmp_path: Path, guarantee: str, nodes: int) -> None:
    seed = KILLED_PAUSED_LEFT if nodes == 1 else NODE_KILLED_LEFT
    run(tmp_path, seed, "--guarantee", guarantee, "--nodes", str(nodes), minutes=0.4)


@pytest.mark.slow
@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once", "at-most-once"])
def test_nothing_is_lost_or_read_twice_if_all_leave_in_order(
    tmp_path: Path, guarantee: str
) -> None:
    found = run(tmp_path, 1, "--gentle", "--guarantee", guarantee, minutes=0.3)
    check_exactly_once(found)
    assert found["work"]["read"] == found["work"]["fragments"]
    assert found["resumes"]["count"] == 0


def test_an_interrupt_leaves_nothing_behind(tmp_path: Path) -> None:
    command = [*COMMAND, "--guarantee", "exactly-once"]
    check_interrupt(command, tmp_path / "kept", "*/member-2.log", SECONDS)
