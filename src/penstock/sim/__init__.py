"""The simulator: the production engine and client in a world of one thread, one clock, one seed.

`run` breaks the network, the disk, the clients and the node from one seed, and then checks what
was promised against what the clients saw. The same seed gives the same run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from penstock.sim.report import Verdict
from penstock.sim.scenario import Scenario

__all__ = ["Verdict", "run", "run_many"]


def run(seed: int, minutes: float = 1.0, faults: str = "all", parts: str = "") -> Verdict:
    """One run of so many virtual minutes. `faults`: all, none, or some of disk, net, crash.

    `parts`: all, or some of `penstock.sim.parts.PARTS`, with commas; otherwise the seed chooses.
    """
    return Scenario(seed, minutes, faults, parts).run()


def run_many(
    seeds: Iterable[int],
    minutes: float = 1.0,
    faults: str = "all",
    progress: Callable[[Verdict], None] | None = None,
) -> list[Verdict]:
    """One run for each seed; `progress` hears of each."""
    verdicts: list[Verdict] = []
    for seed in seeds:
        verdicts.append(run(seed, minutes, faults))
        if progress is not None:
            progress(verdicts[-1])
    return verdicts
