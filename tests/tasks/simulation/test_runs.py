"""Small fabrics on the simulator: every task once, nothing before what it comes after."""

from __future__ import annotations

from random import Random

import pytest

from penstock.core.holds import Watcher
from penstock.sim.world import START_US
from penstock.tasks.simulation.graphs import depth, mixed_lengths, random_graph
from penstock.tasks.simulation.ledger import Ledger
from penstock.tasks.simulation.node import TaskNode
from penstock.tasks.simulation.run import Deaths, Run, Setting
from penstock.wire.frames import SettleItem

LEASE_US = 1_000_000
DEATHS = Deaths(400_000, 300_000, 400_000, 2 * LEASE_US)
SMALL = Setting(nodes=2, workers=6, lease_us=LEASE_US)
DEADLY = Setting(nodes=2, workers=6, lease_us=LEASE_US, deaths=DEATHS)


def done(setting: Setting, ledger: Ledger, seed: int = 1) -> Run:
    ran = Run(setting, ledger, seed)
    ran.run()
    return ran


def graph_ledger(count: int, seed: int) -> Ledger:
    chance = Random(seed)
    lengths = [chance.randint(0, 40_000) for _ in range(count)]
    return Ledger(lengths, random_graph(count, 200, 3, chance))


def test_null_tasks_travel_in_bundles() -> None:
    ledger = Ledger([0] * 6_000)
    ran = done(SMALL, ledger)
    assert ledger.problems() == []
    assert ran.world.events < ledger.count, "several events for each task"
    assert ledger.rate() > 20_000


def test_a_single_task_waits_for_nobody() -> None:
    ledger = Ledger([0] * 60)
    done(Setting(nodes=2, workers=6, single=True), ledger)
    assert ledger.problems() == []
    assert max(ledger.latencies_us()) < 20_000


@pytest.mark.parametrize(
    ("length_us", "each", "least"), [(1_000, 400, 0.7), (16_000, 100, 0.93), (128_000, 20, 0.98)]
)
def test_executors_are_kept_busy(length_us: int, each: int, least: float) -> None:
    ran = done(SMALL, Ledger([length_us] * 12 * each))
    assert ran.ledger.problems() == []
    assert ran.efficiency() > least


def test_long_tasks_are_not_stuck_behind_each_other() -> None:
    ran = done(SMALL, Ledger(mixed_lengths(1_000, Random(1))))
    assert ran.ledger.problems() == []
    assert ran.efficiency() > 0.9


@pytest.mark.parametrize("seed", range(4))
def test_deaths_cost_time_and_no_task(seed: int) -> None:
    ledger = Ledger([8_000] * 2_500)
    ran = done(DEADLY, ledger, seed)
    assert ledger.problems() == []
    assert ran.deaths > 3
    assert ledger.repeated > 0


@pytest.mark.parametrize("seed", range(4))
def test_graphs_are_run_in_their_order_whoever_dies(seed: int) -> None:
    ledger = graph_ledger(2_000, seed)
    ran = done(DEADLY, ledger, seed)
    assert ledger.problems() == []
    assert ran.deaths > 3


def test_the_same_seed_is_the_same_run() -> None:
    first, second = (done(DEADLY, graph_ledger(500, 7), seed=7) for _ in range(2))
    assert first.world.events == second.world.events
    assert first.ledger.done_us == second.ledger.done_us


def test_a_commit_under_a_lease_that_is_over_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that takes the word of a worker whose lease is over has tasks done twice."""
    settle = TaskNode.settle

    def trusting(node: TaskNode, items: list[SettleItem]) -> bool:
        settle(node, items)
        return True

    monkeypatch.setattr(TaskNode, "settle", trusting)
    ran = done(DEADLY, Ledger([8_000] * 4_000))
    assert any("again" in problem for problem in ran.ledger.problems())


def test_an_edge_that_is_forgotten_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that says of results that they are there has tasks begun too early."""

    def hasty(node: TaskNode, key: bytes, watcher: Watcher) -> bool:
        return True

    monkeypatch.setattr(TaskNode, "watch", hasty)
    ran = done(SMALL, graph_ledger(500, 1))
    assert any("began before" in problem for problem in ran.ledger.problems())


def test_a_lost_edge_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TaskNode, "write", lambda node, key: [])
    monkeypatch.setattr("penstock.tasks.simulation.run.LIMIT_US", 10_000_000)
    ran = done(SMALL, graph_ledger(500, 1))
    assert any("had no effect" in problem for problem in ran.ledger.problems())
    assert ran.world.now_us == START_US + 10_000_000


def test_graphs_have_no_cycles_and_a_depth() -> None:
    graph = random_graph(300, 20, 3, Random(1))
    assert all(parent < task for task, parents in enumerate(graph) for parent in parents)
    assert depth([(), (0,), (0, 1), ()]) == 3
    assert min(mixed_lengths(1_000, Random(1))) >= 1_000
