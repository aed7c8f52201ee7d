"""Albatross's evaluation: null tasks on 64 nodes; and random graphs, of which workers die.

Published, for 64 nodes: 10,666 null tasks a second (Spark 1,235); latency of a task 5 ms in the
median, 12 ms for 90 %, 60 ms for the slowest (Spark: 50 ms, and over 2 s for the slowest).
"""

from __future__ import annotations

from random import Random

import numpy as np

from penstock.sim.scenarios.outcome import Chart, Check, Outcome
from penstock.tasks.simulation.graphs import depth, random_graph
from penstock.tasks.simulation.ledger import Ledger
from penstock.tasks.simulation.run import Deaths, Run, Setting

NODES = 64
NULL_PER_NODE = 10_000
SINGLE_PER_NODE = 100
PUBLISHED_RATE, SPARK_RATE = 10_666.0, 1_235.0
PUBLISHED_MS = {50: 5.0, 90: 12.0, 100: 60.0}
SPARK_MS = {50: 50.0, 100: 2_000.0}
PERCENTILES = (1, 10, 25, 50, 75, 90, 95, 99, 100)
WORKERS_PER_NODE = 16  # of graphs
TASKS_OF_GRAPH = 1_000_000
PARENTS = 3  # at most, of a task
LONGEST_US = 20_000  # of a task in a graph
LEASE_US = 3_000_000
DEATH_US = 20_000_000  # each worker dies so often


def run(
    seed: int = 1, nodes: int = NODES, tasks: int = TASKS_OF_GRAPH, part: float = 1.0
) -> Outcome:
    """Null tasks (`part` of them), single ones, and a graph of so many tasks."""
    null = Ledger([0] * int(nodes * NULL_PER_NODE * part))
    single = Ledger([0] * int(nodes * SINGLE_PER_NODE * part))
    Run(Setting(nodes, nodes, local=True), null, seed).run()
    Run(Setting(nodes, nodes, local=True, single=True), single, seed).run()
    graph = _run_graph(seed, nodes, tasks)
    taken_ms = np.percentile(single.latencies_us(), PERCENTILES) / 1e3
    latency = dict(zip(PERCENTILES, map(float, taken_ms), strict=True))
    problems = [*null.problems(), *single.problems(), *graph.ledger.problems()]
    figures = {
        "null_tasks_per_second": null.rate(),
        **{f"latency_p{at}_ms": value for at, value in latency.items()},
        "graph_tasks_per_second": graph.ledger.rate(),
        "graph_efficiency_percent": 100 * graph.efficiency(),
        "deaths": graph.deaths,
        "repeated": graph.ledger.repeated,
        "refused": graph.ledger.refused,
    }
    checks = [Check("promises broken", len(problems), 0)]
    if nodes == NODES:
        part_of_ours = PUBLISHED_RATE / null.rate()
        checks += [
            Check("Albatross's throughput, as part of this", part_of_ours, 1.0),
            *(
                Check(f"latency, percentile {at}", latency[at], goal, "ms")
                for at, goal in PUBLISHED_MS.items()
            ),
        ]
    chart = Chart(
        f"A null task, there and back, {nodes} nodes", "percentile", "ms", PERCENTILES,
        {
            "Penstock, simulated": [latency[at] for at in PERCENTILES],
            "Albatross, published": [PUBLISHED_MS.get(at, float("nan")) for at in PERCENTILES],
            "Spark, published": [SPARK_MS.get(at, float("nan")) for at in PERCENTILES],
        },
        logarithmic_y=True,
    )  # fmt: skip
    notes = [*problems, "Costs of all steps are assumptions."]
    columns = ("", "Penstock, simulated", "Albatross, published", "Spark, published")
    rows = [*_published(figures, latency), *_graph_rows(graph)]
    return Outcome("albatross-64", columns, rows, figures, checks, chart, notes)


def _run_graph(seed: int, nodes: int, tasks: int) -> Run:
    """Every task takes up to 20 ms; workers die, executors die, pullers stand still."""
    chance = Random(seed)
    workers = nodes * WORKERS_PER_NODE
    parents = random_graph(tasks, max(tasks // 20, 10), PARENTS, chance)
    ledger = Ledger([chance.randint(0, LONGEST_US) for _ in range(tasks)], parents)
    every_us = DEATH_US // workers
    setting = Setting(
        nodes, workers, clients=nodes, local=True, lease_us=LEASE_US,
        deaths=Deaths(every_us, every_us, every_us, 2 * LEASE_US),
    )  # fmt: skip
    ran = Run(setting, ledger, seed)
    ran.run()
    return ran


def _published(figures: dict[str, float], latency: dict[int, float]) -> list[tuple[str, ...]]:
    rate = figures["null_tasks_per_second"]
    rows: list[tuple[str, ...]] = [
        ("null tasks a second", f"{rate:,.0f}", f"{PUBLISHED_RATE:,.0f}", f"{SPARK_RATE:,.0f}")
    ]
    for at, theirs in PUBLISHED_MS.items():
        what = "slowest task" if at == 100 else f"a task there and back, percentile {at}"
        spark = f"{SPARK_MS[at]:g} ms" if at in SPARK_MS else ""
        rows.append((what, f"{latency[at]:.1f} ms", f"{theirs:g} ms", spark))
    return rows


def _graph_rows(ran: Run) -> list[tuple[str, ...]]:
    ledger = ran.ledger
    assert ledger.parents is not None
    edges = sum(map(len, ledger.parents))
    told = {
        "graph: workers": f"{ran.setting.workers:,}",
        "graph: tasks": f"{ledger.count:,}",
        "graph: edges": f"{edges:,}",
        "graph: tasks on the longest way": f"{depth(ledger.parents):,}",
        "graph: tasks a second": f"{ledger.rate():,.0f}",
        "graph: part of the executors' time": f"{100 * ran.efficiency():.1f} %",
        "graph: deaths of workers and executors, pauses": f"{ran.deaths:,}",
        "graph: tasks begun again": f"{ledger.repeated:,}",
        "graph: late twins that were refused": f"{ledger.refused:,}",
    }
    return [(what, value, "", "") for what, value in told.items()]
