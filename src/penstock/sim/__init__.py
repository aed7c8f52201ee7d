"""The simulator: the production engine and client in a world of one thread, one clock, one seed.

`run` breaks the network, the disks, the clients and the nodes from one seed, and then checks what
was promised against what the clients saw. The same seed gives the same run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial

from penstock.sim.cluster.scenario import ClusterScenario
from penstock.sim.report import Verdict
from penstock.sim.scenario import Scenario

__all__ = ["Verdict", "run", "run_many"]


def run(
    seed: int, minutes: float = 1.0, faults: str = "all", parts: str = "", nodes: int = 1
) -> Verdict:
    """One run of so many virtual minutes. `faults`: all, none, or some of disk, net, crash; in a
    cluster (`nodes` above 1) also of pause, clock, members.

    `parts`: all, or some of the workload's parts, with commas; otherwise the seed chooses.
    """
    with _unsaid():
        if nodes > 1:
            return ClusterScenario(seed, minutes, faults, nodes, parts).run()
        return Scenario(seed, minutes, faults, parts).run()


@contextmanager
def _unsaid() -> Iterator[None]:
    """Clients say nothing: what they would warn of is what a run is about."""
    logger = logging.getLogger("penstock.client")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def run_many(
    seeds: Iterable[int],
    minutes: float = 1.0,
    faults: str = "all",
    progress: Callable[[Verdict], None] | None = None,
    nodes: int = 1,
    processes: int = 1,
) -> list[Verdict]:
    """One run for each seed, in so many processes; `progress` hears of each, in order."""
    one = partial(_run, minutes=minutes, faults=faults, nodes=nodes)
    verdicts: list[Verdict] = []
    if processes == 1:
        for seed in seeds:
            verdicts.append(one(seed))
            _tell(progress, verdicts[-1])
        return verdicts
    with ProcessPoolExecutor(processes) as pool:
        for verdict in pool.map(one, seeds):
            verdicts.append(verdict)
            _tell(progress, verdict)
    return verdicts


def _run(seed: int, minutes: float, faults: str, nodes: int) -> Verdict:
    return run(seed, minutes, faults, nodes=nodes)


def _tell(progress: Callable[[Verdict], None] | None, verdict: Verdict) -> None:
    if progress is not None:
        progress(verdict)
