"""Whole clusters: every promise holds, and the same seed gives the same run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from penstock.errors import InvalidError
from penstock.sim import run, run_many
from penstock.sim.cluster.faults import Faults
from penstock.sim.cluster.parts import PARTS
from penstock.sim.cluster.scenario import PROMOTIONS, ClusterScenario

MINUTES = 0.25


@pytest.mark.parametrize("seed", [1, 2])
def test_every_promise_holds(seed: int) -> None:
    verdict = run(seed, MINUTES, nodes=3 + seed % 2)
    assert verdict.passed, verdict.explain()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 110))
def test_every_promise_holds_for_long(seed: int) -> None:
    verdict = run(seed, 10, nodes=3 + seed % 3)
    assert verdict.passed, verdict.explain()
    assert verdict.figures["promotions"] >= PROMOTIONS


# Runs that once broke a promise. What was wrong has small tests of its own; these cost minutes.
ONCE_BROKEN = [
    (4108, 4, "members,crash,net", 3),
    (3005, 10, "all", 5),
    (1794777818, 10, "all", 5),
    (1794777819, 10, "all", 5),
    *((seed, 10, "all", 3) for seed in (
        1794748576, 1794748601, 1794748621, 1794748625, 1794748627, 1794748640, 1794753302,
        1794767090,
    )),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "minutes", "faults", "nodes"), ONCE_BROKEN)
def test_what_was_once_broken_holds(seed: int, minutes: float, faults: str, nodes: int) -> None:
    verdict = run(seed, minutes, faults, nodes=nodes)
    assert verdict.passed, verdict.explain()


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["disk", "net", "crash", "pause", "clock", "members"])
def test_each_kind_of_fault_alone(fault: str) -> None:
    verdict = run(1, 2, fault, nodes=3)
    assert verdict.passed, verdict.explain()
    assert verdict.figures["faults"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
def test_each_part_of_the_workload_alone(part: str) -> None:
    verdict = run(5, 2, "all", part, nodes=3)
    assert verdict.passed, verdict.explain()
    assert verdict.parts == [part]


def test_a_run_without_faults_is_busy() -> None:
    figures = run(1, MINUTES, "none", ",".join(PARTS), nodes=3).figures
    idle = {name for name, count in figures.items() if not count}
    assert idle == {
        "faults", "promotions", "partitions", "crashes", "power_losses", "clock_jumps",
        "disk_failures", "flipped_bits", "drains", "restarts",
    }  # fmt: skip


def test_the_same_seed_gives_the_same_run_in_another_process() -> None:
    """Nothing depends on the order of a set of strings, on memory addresses, or on the clock."""
    program = f"from penstock.sim import run; print(run(7, {MINUTES}, nodes=3).digest)"
    source = str(Path(penstock.__file__).resolve().parent.parent)
    environment = {**os.environ, "PYTHONPATH": source, "PYTHONHASHSEED": "12345"}
    other = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert other.stdout.strip() == run(7, MINUTES, nodes=3).digest


def test_seeds_can_be_run_in_several_processes() -> None:
    verdicts = run_many([3, 4], 0.05, "none", nodes=2, processes=2)
    assert [verdict.seed for verdict in verdicts] == [3, 4]
    assert all(verdict.passed for verdict in verdicts)


def test_clients_are_on_all_sides() -> None:
    scenario = ClusterScenario(1, MINUTES, "net", 3, "plain")
    assert {client.place for client in scenario.clients} == {1, 2, 3}


def test_faults_can_be_named() -> None:
    assert Faults.named("clock,net") == Faults(net=True, clock=True)
    assert Faults.named("none") == Faults()
    with pytest.raises(InvalidError, match="nonsense"):
        Faults.named("disk,nonsense")
    with pytest.raises(InvalidError, match="nonsense"):
        run(1, 0.02, "none", "nonsense", nodes=2)
