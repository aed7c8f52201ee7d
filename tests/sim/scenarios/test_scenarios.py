"""Scenarios: that they measure what they say, and judge it rightly."""

from __future__ import annotations

from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from random import Random

import pytest

from penstock.client.producer import shard_of
from penstock.errors import InvalidError, StorageError
from penstock.sim.scenarios import SCENARIOS, fabriq, run_scenario, zht
from penstock.sim.scenarios.clusters import new_cluster
from penstock.sim.scenarios.outcome import Chart, Check
from penstock.sim.scenarios.plot import check_plot, plot

CHART = Chart("title", "x", "y", [1, 10], {"a": [1, 2], "b": [2, 3]}, logarithmic=True)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_fabriq_reaches_its_goals_whatever_the_producers(seed: int) -> None:
    outcome = run_scenario("fabriq-64", seed)
    assert outcome.passed, [check.explain() for check in outcome.checks]
    assert outcome.figures["servers_within_5_percent"] == 100
    assert outcome.figures["hashed_worst_percent"] > outcome.figures["worst_percent"]
    assert outcome.as_dict() == run_scenario("fabriq-64", seed).as_dict()


@pytest.mark.parametrize("producers", [1, 7, 128])
def test_all_messages_are_pushed(producers: int) -> None:
    loads = fabriq.push(new_cluster(fabriq.SERVERS, 256), producers, Random(1))
    assert loads.total() == fabriq.MESSAGES
    assert len(loads) == fabriq.SERVERS


def test_hops_are_those_of_the_messages_and_of_what_was_in_vain() -> None:
    cluster = new_cluster(8, 64)
    local, remote = 1, 8
    owner_at = cluster.owner_of(shard_of(fabriq.QUEUE, 64))
    assert owner_at != local
    # To the owner to learn that all is empty; the local node costs nothing.
    assert fabriq.pop_hops(cluster, Counter({local: 10})) == 1 / 10
    # To the owner for a list, ten pops and one in vain, to the owner again.
    assert fabriq.pop_hops(cluster, Counter({remote: 10})) == 13 / 10


def test_shares_of_servers_are_counted() -> None:
    loads = Counter(dict.fromkeys(range(1, 65), 1000))
    assert (fabriq.furthest(loads), fabriq.within(loads)) == (0, 1)
    loads[1], loads[2] = 940, 1050
    assert (fabriq.furthest(loads), fabriq.within(loads)) == (0.06, 63 / 64)


def test_lookups_are_measured_for_every_size() -> None:
    outcome = zht.run(sizes=(2, 16))
    assert [row[:2] for row in outcome.rows] == [(2, 16), (16, 128)]
    assert outcome.figures["shards_16"] == 128
    assert all(value > 0 for value in outcome.figures.values())
    assert outcome.chart.x == [2, 16]


def test_an_address_is_that_of_the_owner() -> None:
    cluster = new_cluster(5, 40)
    owner = cluster.owner_of(shard_of(b"key", 40))
    assert zht.address_of(cluster, b"key") == (f"node-{owner}.example", 7411)


def test_a_goal_is_reached_or_missed() -> None:
    assert Check("hops", 1.0, 1.0).explain() == "reached: hops 1, goal at most 1"
    assert Check("load", 6.0, 5.0, "%").explain() == "MISSED: load 6 %, goal at most 5 %"


def test_a_scenario_must_exist() -> None:
    with pytest.raises(InvalidError, match=", ".join(SCENARIOS)):
        run_scenario("nonsense")


@pytest.mark.skipif(find_spec("matplotlib") is None, reason="needs matplotlib")
def test_plots_are_written_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "plot.png"
    check_plot(path)
    plot(CHART, path)
    assert path.read_bytes().startswith(b"\x89PNG")
    for wrong in (tmp_path / "plot.pdf", tmp_path / "missing" / "plot.png"):
        with pytest.raises(InvalidError):
            check_plot(wrong)
    with pytest.raises(StorageError):
        plot(CHART, tmp_path)


@pytest.mark.skipif(find_spec("matplotlib") is not None, reason="matplotlib is there")
def test_without_matplotlib_a_plot_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match="matplotlib") as refused:
        check_plot(tmp_path / "plot.png")
    assert "penstock[plot]" in refused.value.hint
