"""The benchmarks: that they measure what they say, in tiny sizes, and judge it rightly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.cli.bench import app, parse_groups, run
from penstock.cli.benchmarks import measure
from penstock.cli.benchmarks.figures import COUNT, RATE, Figure, Series, latencies
from penstock.cli.benchmarks.floors import ECHOES, Floors
from penstock.cli.benchmarks.foreign import ForeignCpu, Usage, family
from penstock.cli.benchmarks.goals import GOALS, judge
from penstock.cli.benchmarks.latency import PACE_PER_SECOND, paced
from penstock.cli.benchmarks.measure import Measurement, Results, run_rounds
from penstock.cli.benchmarks.processes import (
    Child,
    NodeProcess,
    anonymous_bytes,
    cpu_seconds,
    pinned,
)
from penstock.cli.benchmarks.report import as_json, console_for
from penstock.cli.benchmarks.settings import Settings
from penstock.cli.benchmarks.space import directory_bytes
from penstock.errors import InvalidError

TINY = Settings(messages=4000, batch=100, repeats=1, quick=True)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def results_of(**values: float) -> Results:
    results = Results()
    results.add({name.replace("_", " "): Figure(value, RATE) for name, value in values.items()})
    return results


# --- figures and goals -----------------------------------------------------------------------


def test_quantiles_are_those_of_the_samples_in_microseconds() -> None:
    figures = latencies("x", [number * 1000 for number in range(1000, 0, -1)])
    assert figures["x/p50"].value == pytest.approx(501)
    assert figures["x/p99.9"].value == pytest.approx(1000)
    assert figures["x/max"].value == pytest.approx(1000)


def test_a_series_has_a_median_and_a_spread() -> None:
    series = Series(RATE, [10.0, 30.0, 20.0])
    assert series.median == 20.0
    assert series.spread == pytest.approx(1.0)


def test_ratios_are_taken_round_by_round() -> None:
    results = Results()
    for push, floor in ((10.0, 20.0), (1.0, 2.0), (30.0, 30.0)):
        results.add({"push": Figure(push, RATE), "pipe in": Figure(floor, RATE)})
    (outcome,) = judge(results)
    assert outcome.ratio == 0.5
    assert outcome.passed


def test_a_goal_without_its_figures_is_left_out() -> None:
    assert judge(results_of(push=1.0)) == []
    (outcome,) = judge(results_of(loop=100_000.0))
    assert outcome.passed is False
    assert outcome.ratio == pytest.approx(2 / 3)


def test_a_quick_run_is_too_small_for_goals_of_the_full_size() -> None:
    results = results_of(memory_batches=5.0)
    assert [outcome.passed for outcome in judge(results)] == [True]
    assert [outcome.passed for outcome in judge(results, quick=True)] == [None]


# --- rounds ----------------------------------------------------------------------------------


def test_rounds_are_interleaved_and_some_run_once() -> None:
    order: list[str] = []

    def measured(name: str, once: bool = False) -> Measurement:
        def work() -> dict[str, Figure]:
            order.append(name)
            return {name: Figure(1.0, COUNT)}

        return Measurement(name, work, once)

    results = Results()
    chosen = [measured("a", once=True), measured("b", once=True)]
    run_rounds(chosen, 2, results, lambda _: None)
    assert order == ["a", "b"]
    assert results.series["a"].values == [1.0]


def test_a_disturbed_run_is_repeated_twice_and_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = iter([0.9, 0.4, 0.6])
    monkeypatch.setattr(ForeignCpu, "cores", lambda self: next(cores))
    values = iter([1.0, 2.0, 3.0])
    results = Results()
    work = Measurement("a", lambda: {"a/x": Figure(next(values), COUNT)})
    run_rounds([work], 1, results, lambda _: None)
    assert results.series["a/x"].values == [2.0]
    assert results.note_of("a/x") == "others used 0.4 cores"


# --- processes -------------------------------------------------------------------------------


def test_a_child_that_fails_is_told_with_its_errors(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"(?s)ended with 2 .*usage"):
        Child("penstock.cli.benchmarks.bare", "nonsense", log=tmp_path / "log")


def test_a_node_is_measured_and_bound(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "node") as node:
        assert cpu_seconds(node.pid) > 0
        assert anonymous_bytes(node.pid) > 1 << 20
        before = os.sched_getaffinity(node.pid)
        with pinned([node.pid], {min(before)}):
            assert os.sched_getaffinity(node.pid) == {min(before)}
        assert os.sched_getaffinity(node.pid) == before
        assert directory_bytes(tmp_path / "node") > 0
    assert not node.running


def test_descendants_belong_to_the_family() -> None:
    parents = {1: 0, 5: 1, 6: 5, 7: 6, 8: 1, 9: 8}
    usage = {pid: Usage(parent, 1) for pid, parent in parents.items()}
    assert family(usage, 5) == {5, 6, 7}


def test_foreign_use_is_a_number_of_processors() -> None:
    assert ForeignCpu().cores() >= 0.0


# --- floors and workloads --------------------------------------------------------------------


def test_floors_give_figures(tmp_path: Path, stack: ExitStack) -> None:
    floors = Floors(TINY, tmp_path, stack)
    for kind in ECHOES:
        assert floors.round_trips(kind, kind)[f"{kind}/p50"].value > 0
    assert floors.pipe_in()["pipe in"].value > 0
    assert floors.pipe_in(encode=True)["pipe in, encoding"].value > 0
    assert floors.pipe_out()["pipe out"].value > 0
    assert floors.pipe_out(decode=True)["pipe out, decoding"].value > 0
    assert len(floors.pids) == 4


def test_paced_messages_carry_their_time() -> None:
    times = [int.from_bytes(value[:8], "little") for value in paced(3, 50)]
    assert times[1] - times[0] == 1_000_000_000 // PACE_PER_SECOND


def test_bulk_and_latency_reach_every_default_goal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "MOST_REPEATS", 0)
    results = run(TINY, console_for(stderr=True))
    outcomes = judge(results, quick=True)
    assert {outcome.goal.label for outcome in outcomes} == {
        goal.label for goal in GOALS
        if not goal.full_size and not goal.figure.startswith("tasks, ")  # a group of its own
    }
    shown = json.loads(json.dumps(as_json(TINY, results, outcomes)))
    assert shown["settings"]["messages"] == 4000
    assert shown["machine"]["cpus"] == os.cpu_count()
    assert shown["figures"]["push"]["unit"] == RATE
    assert shown["figures"]["end to end/p99.9"]["median"] > 0


def test_sessions_are_measured_against_a_plain_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "MOST_REPEATS", 0)
    results = run(replace(TINY, groups=("sessions",)), console_for(stderr=True))
    medians = {name: series.median for name, series in results.series.items()}
    for what in ("plain loop", "assembler", "member"):
        assert medians[f"sessions, {what}"] > 0
    alone, member = (medians[f"sessions, {what}/sessions"] for what in ("assembler", "member"))
    assert 0.9 * alone < member <= alone  # in a partition of its own, the last ones stay open
    labels = {outcome.goal.label for outcome in judge(results, quick=True)}
    assert labels == {"assembler against loop", "member against loop"}


@pytest.mark.slow
def test_a_cluster_is_measured_against_one_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "MOST_REPEATS", 0)
    results = run(replace(TINY, groups=("cluster",)), console_for(stderr=True))
    medians = {name: series.median for name, series in results.series.items()}
    for what in ("push", "pop"):
        rates = medians[f"cluster {what}"], medians[f"one node {what}"]
        ratio = medians[f"cluster against one node/{what}"]
        assert ratio == pytest.approx(rates[0] / rates[1])
        of_nodes = [medians[f"cluster {what}/node {number}, cpu"] for number in (1, 2, 3)]
        assert medians[f"cluster {what}/all nodes, cpu"] == pytest.approx(sum(of_nodes))
        assert f"one node {what}/client, cpu" in medians
    assert sum(medians[f"cluster push/node {n}, syncs per batch"] for n in (1, 2, 3)) > 0
    assert medians["cluster push/sent between nodes per byte of a message"] >= 1
    assert medians["cluster against one node/single push, p50"] > 0
    assert medians["cluster single push/p50"] > 0


# --- the command -----------------------------------------------------------------------------


def test_groups_are_checked() -> None:
    assert parse_groups("push, loop") == ("push", "loop")
    assert parse_groups("") == Settings.groups
    with pytest.raises(InvalidError, match="nonsense"):
        parse_groups("push,nonsense")


def test_a_wrong_group_is_told_in_a_line() -> None:
    result = CliRunner().invoke(app, ["--only", "nonsense"])
    assert result.exit_code == 1
    assert "Traceback" not in result.output


def test_json_is_all_that_goes_to_standard_output() -> None:
    command = [sys.executable, "-m", "penstock.cli.bench", "--quick", "--only", "loop", "--json"]
    done = subprocess.run(
        [*command, "--messages", "4000"], capture_output=True, text=True, check=True, timeout=60
    )
    assert json.loads(done.stdout)["figures"]["loop"]["median"] > 0
    assert done.stderr == "bench 1 of 1: loop\n", "how far it is, where no bar can be drawn"
