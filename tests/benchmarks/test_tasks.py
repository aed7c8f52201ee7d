"""Loads of task systems against a client that runs them at once; the harness as a whole."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from benchmarks import install as installing
from benchmarks.command import available
from benchmarks.tasks import loads
from benchmarks.tasks.rounds import LAYOUT, choose_workloads
from benchmarks.tasks.system import TaskClient
from benchmarks.tasks.systems import BASE, SYSTEMS, choose, system_of
from benchmarks.tasks.workloads import WORKLOADS

ROOT = Path(__file__).parents[2]


class AtOnce(TaskClient):
    """Returns results without running anything; the first `missing` of them are lost."""

    def __init__(self, missing: int = 0) -> None:
        super().__init__("", 4, "")
        self.missing = missing
        self.counts: list[int] = []

    def open(self) -> None: ...

    def close(self) -> None: ...

    def nulls(self, numbers: Sequence[int]) -> list[int]:
        self.counts.append(len(numbers))
        return list(numbers)[self.missing :]

    def naps(self, seconds: Sequence[float]) -> list[float]:
        self.counts.append(len(seconds))
        return list(seconds)

    def one(self, number: int) -> int:
        return number + self.missing


def test_runs_grow_up_to_the_largest() -> None:
    client = AtOnce()
    found = loads.nulls(client, {"first": 10, "most": 100, "seconds": 60.0})
    assert client.counts == [10, 40, 100]
    assert found["n"] == 100


def test_a_run_that_is_long_enough_counts() -> None:
    client = AtOnce()
    assert loads.nulls(client, {"first": 10, "most": 100, "seconds": 0.0})["n"] == 10


def test_missing_and_wrong_results_are_failures() -> None:
    with pytest.raises(RuntimeError, match="9 results of 10 tasks"):
        loads.nulls(AtOnce(missing=1), {"first": 10, "most": 10, "seconds": 1.0})
    with pytest.raises(RuntimeError, match="wrong"):
        loads.single(AtOnce(missing=1), {"n": 1, "seconds": 1.0})


def test_naps_fill_all_workers_to_the_end() -> None:
    client = AtOnce()
    found = loads.naps(client, {"first": 10, "most": 10, "seconds": 1.0, "length": 0.5})
    assert found["n"] == 12
    assert found["work"] == 6.0


def test_a_mix_is_always_the_same_and_has_the_work_that_was_asked_for() -> None:
    lengths = loads.mixed_lengths(100.0)
    assert lengths == loads.mixed_lengths(100.0)
    assert 100.0 <= sum(lengths) < 101.0
    assert 0.001 <= min(lengths) < 0.002
    assert 0.9 < max(lengths) <= 1.0


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_system_says_what_it_is(name: str) -> None:
    system = system_of(name)
    assert system.name == name
    assert system.durable
    assert system.settings
    assert system.module == SYSTEMS[name].module


def test_systems_and_workloads_are_chosen_by_name() -> None:
    assert choose("ray, celery") == ["ray", "celery"]
    assert choose("") == list(SYSTEMS)
    assert BASE in SYSTEMS
    assert choose_workloads("") == list(WORKLOADS)
    with pytest.raises(ValueError, match="parsley"):
        choose("parsley")


def test_what_is_not_installed_is_skipped_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(installing, "INSTALLED", tmp_path)
    found, skipped = available(["process-pool", "celery"], system_of, may_install=False)
    assert [system.name for system in found] == ["process-pool"]
    assert skipped == {"celery": "not installed: Debian's packages"}


def test_a_quick_run_of_what_needs_no_install_makes_a_report(tmp_path: Path) -> None:
    results = tmp_path / "results"
    argv = [sys.executable, "-m", "benchmarks.tasks", "--quick", "--no-install"]
    argv += ["--systems", "penstock-written,process-pool", "--workloads", "null,bundled,single,1ms"]
    argv += ["--results", str(results), "--data", str(tmp_path / "data")]
    run = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=110)
    assert run.returncode == 0, run.stderr
    found = json.loads((results / f"{LAYOUT.stem}.json").read_text())
    for system in found["systems"].values():
        assert system["failures"] == []
        figures = system["figures"]
        assert figures["null tasks"]["median"] > 0
        assert figures["null tasks, bundled"]["median"] > 0
        assert figures["round trip/p50"]["median"] > 0
        assert 0 < figures["1 ms tasks"]["median"] <= 100
    assert list((tmp_path / "data").iterdir()) == []
