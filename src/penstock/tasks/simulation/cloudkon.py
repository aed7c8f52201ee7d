"""CloudKon's evaluation: up to 1,024 instances that pull tasks from one queue.

Published: 238 null tasks a second on one instance, 119,000 on 1,024; about 95 ms for a task on one;
efficiency of 4 % on tasks of 1 ms, 40 % of 16 ms, 88 % of 128 ms, 77 to 87 % on a trace of 1 ms to
1 s. An instance had one client and two worker threads.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import NamedTuple

import numpy as np

from penstock.sim.scenarios.outcome import Chart, Check, Outcome
from penstock.tasks.simulation.graphs import mixed_lengths
from penstock.tasks.simulation.ledger import Ledger
from penstock.tasks.simulation.run import Deaths, Run, Setting

INSTANCES = 1024
PER_NODE = 16  # instances that share a node
SCALES = (1, 16, 64, 256, INSTANCES)
PUBLISHED_RATES = {1: 238.0, INSTANCES: 119_000.0}
PUBLISHED_LATENCY_MS = 95.0
NULL_PER_INSTANCE = 2_000
SINGLE_PER_INSTANCE = 5
LEASE_US = 3_000_000  # short, so that what dies is missed within the run


class Length(NamedTuple):
    """Tasks of one length: how many for each executor, and what was published."""

    name: str
    us: int  # 0: 1 ms to 1 s
    each: int
    published: str
    lost_percent: float  # of the executors' time there: no more is to be lost here


LENGTHS = (
    Length("1 ms tasks", 1_000, 400, "about 4 %", 96.0),
    Length("16 ms tasks", 16_000, 60, "40 %", 60.0),
    Length("128 ms tasks", 128_000, 20, "88 %", 12.0),
    Length("1 ms to 1 s tasks", 0, 140, "77 to 87 %", 13.0),
)


class _Found:
    """All runs of a scenario, and what they found."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.tasks = 0
        self.problems: list[str] = []
        self.figures: dict[str, float] = {}
        self.rows: list[tuple[object, ...]] = []

    def run(self, name: str, setting: Setting, ledger: Ledger) -> Run:
        run = Run(setting, ledger, self.seed)
        run.run()
        self.tasks += ledger.count
        self.problems += [f"{name}: {problem}" for problem in ledger.problems()]
        return run


def run(seed: int = 1, instances: int = INSTANCES, part: float = 1.0) -> Outcome:
    """`part` of all tasks, on up to so many instances."""
    found = _Found(seed)
    scales = [scale for scale in SCALES if scale < instances] + [instances]
    rates = [_null(found, scale, part) for scale in scales]
    setting = Setting(-(-instances // PER_NODE), instances)
    _single(found, setting, part)
    lost = {length: _efficiency(found, setting, length, part) for length in LENGTHS}
    _deaths(found, setting, part)
    published = [PUBLISHED_RATES.get(scale, float("nan")) for scale in scales]
    checks = [
        Check("promises broken", len(found.problems), 0),
        Check("a single task, p50", found.figures["single_p50_ms"], PUBLISHED_LATENCY_MS, "ms"),
        *(
            Check(f"executors' time lost, {length.name}", percent, length.lost_percent, "%")
            for length, percent in lost.items()
        ),
    ]
    if instances == INSTANCES:
        part_of_ours = PUBLISHED_RATES[INSTANCES] / rates[-1]
        checks.append(Check("CloudKon's throughput, as part of this", part_of_ours, 1.0))
    chart = Chart(
        "Null tasks a second", "instances", "tasks/s", scales,
        {"Penstock, simulated": rates, "CloudKon, published": published},
        logarithmic=True, logarithmic_y=True,
    )  # fmt: skip
    columns = ("", "Penstock, simulated", "CloudKon, published")
    notes = [*found.problems, f"{found.tasks:,} tasks; costs of all steps are assumptions."]
    return Outcome("cloudkon-1024", columns, found.rows, found.figures, checks, chart, notes)


def _null(found: _Found, instances: int, part: float) -> float:
    ledger = Ledger([0] * max(int(instances * NULL_PER_INSTANCE * part), instances))
    setting = Setting(-(-instances // PER_NODE), instances)
    found.run(f"null tasks on {instances:,}", setting, ledger)
    rate = ledger.rate()
    found.figures[f"null_tasks_per_second_{instances}"] = rate
    published = PUBLISHED_RATES.get(instances)
    told = "" if published is None else f"{published:,.0f}"
    found.rows.append((f"null tasks a second, instances: {instances:,}", f"{rate:,.0f}", told))
    return rate


def _single(found: _Found, setting: Setting, part: float) -> None:
    count = max(int(setting.workers * SINGLE_PER_INSTANCE * part), setting.workers)
    ledger = Ledger([0] * count)
    found.run("single tasks", replace(setting, single=True), ledger)
    middle, slow = np.percentile(ledger.latencies_us(), [50, 99]) / 1e3
    found.figures |= {"single_p50_ms": float(middle), "single_p99_ms": float(slow)}
    told = f"about {PUBLISHED_LATENCY_MS:.0f} ms on one"
    found.rows.append(("a task, there and back, p50 / p99", f"{middle:.1f} / {slow:.1f} ms", told))


def _efficiency(found: _Found, setting: Setting, length: Length, part: float) -> float:
    """What is lost of the executors' time, in percent."""
    executors = setting.workers * setting.executors
    count = executors * max(int(length.each * part), 1)
    lengths = [length.us] * count if length.us else mixed_lengths(count, Random(found.seed))
    ran = found.run(length.name, setting, Ledger(lengths))
    percent = 100 * ran.efficiency()
    which = f"{length.us // 1000}ms" if length.us else "mix"
    found.figures[f"efficiency_percent_{which}"] = percent
    found.rows.append((f"efficiency, {length.name}", f"{percent:.1f} %", length.published))
    return 100 - percent


def _deaths(found: _Found, setting: Setting, part: float) -> None:
    """Workers and executors die, and pullers stand still for longer than a lease, all the time."""
    count = setting.workers * setting.executors * max(int(100 * part), 1)
    every_us = 20_000_000 // setting.workers  # so that each worker dies every 20 s
    deaths = Deaths(every_us, every_us, every_us, 2 * LEASE_US)
    ledger = Ledger([16_000] * count)
    ran = found.run("deaths", replace(setting, lease_us=LEASE_US, deaths=deaths), ledger)
    found.figures |= {
        "deaths": ran.deaths, "repeated": ledger.repeated, "refused": ledger.refused,
    }  # fmt: skip
    what = f"of {count:,} tasks with {ran.deaths:,} deaths: begun again"
    found.rows.append((what, f"{ledger.repeated:,}", ""))
    found.rows.append(("late twins that were refused", f"{ledger.refused:,}", ""))
