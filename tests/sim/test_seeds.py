"""Whole runs: every promise holds, and the same seed gives the same run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from penstock.errors import InvalidError
from penstock.sim import run, run_many
from penstock.sim.damage import run_damaged
from penstock.sim.parts import PARTS
from penstock.sim.scenario import Scenario

MINUTES = 0.1
FAULTS = ("all", "crash", "disk", "net", "crash,disk")


@pytest.mark.parametrize("seed", range(1, 11))  # `make sim` runs fresh ones
def test_every_promise_holds(seed: int) -> None:
    verdict = run(seed, MINUTES, FAULTS[seed % len(FAULTS)])
    assert verdict.passed, verdict.explain()


def test_the_last_act_waits_for_pushes_that_are_under_way() -> None:
    """A seed in which one is answered four seconds after the work is over: a paused node."""
    verdict = run(1794780555, 0.5)
    assert verdict.passed, verdict.explain()


def test_what_retention_took_does_not_come_back_after_a_crash() -> None:
    """A seed in which a reader was told so before that was on the disk."""
    verdict = run(1794796481, 0.5)
    assert verdict.passed, verdict.explain()


def test_a_dead_letter_that_nobody_saw_may_come_late() -> None:
    """A seed in which both deliveries of a message were lost, and then it was redriven."""
    verdict = run(5020, 0.5)
    assert verdict.passed, verdict.explain()


def test_a_nack_that_was_repeated_may_have_let_a_message_expire() -> None:
    """A seed in which its answer was lost, and the repetition refused."""
    verdict = run(1794810776, 0.5)
    assert verdict.passed, verdict.explain()


@pytest.mark.parametrize("seed", range(1, 6))
def test_flipped_bits_are_never_served_and_nothing_is_lost_in_silence(seed: int) -> None:
    verdict = run_damaged(seed, 0.05)
    assert verdict.passed, verdict.explain()


def test_a_run_without_faults_is_busy() -> None:
    figures = run(1, MINUTES, "none", "all").figures
    idle = {name for name, count in figures.items() if not count}
    assert idle == {"faults", "crashes", "power_losses", "disk_failures"}


def test_seeds_choose_different_parts_and_between_them_all() -> None:
    chosen = [Scenario(seed, MINUTES, "none").parts for seed in range(1, 41)]
    assert len(set(map(tuple, chosen))) > 30
    assert {part for parts in chosen for part in parts} == set(PARTS)


def test_parts_can_be_named() -> None:
    assert run(1, 0.02, "none", "held,claims").parts == ["held", "claims"]
    with pytest.raises(InvalidError, match="nonsense"):
        run(1, 0.02, "none", "held,nonsense")


def test_faults_strike() -> None:
    verdicts = run_many(range(1, 5), 0.2)
    for name in ("crashes", "power_losses", "disk_failures", "cleaned_files"):
        assert sum(verdict.figures[name] for verdict in verdicts) > 0, name


def test_the_same_seed_gives_the_same_run() -> None:
    first, second = run(7, MINUTES), run(7, MINUTES)
    assert first.digest == second.digest
    assert first.figures == second.figures
    assert run(8, MINUTES).digest != first.digest


def test_another_process_sees_the_same_run() -> None:
    """Nothing depends on the order of a set of strings, or on memory addresses."""
    program = f"from penstock.sim import run; print(run(7, {MINUTES}).digest)"
    source = str(Path(penstock.__file__).resolve().parent.parent)
    environment = {**os.environ, "PYTHONPATH": source, "PYTHONHASHSEED": "12345"}
    other = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert other.stdout.strip() == run(7, MINUTES).digest


def test_progress_hears_of_every_seed() -> None:
    heard: list[int] = []
    run_many([3, 4], 0.02, "none", lambda verdict: heard.append(verdict.seed))
    assert heard == [3, 4]
