"""Scenarios: the scale of published systems, with our own code that decides.

Nothing is sent: what is measured is where messages and lookups go, and what it costs to know that.
Upper layers add scenarios of their own (`run_scenario`'s `more`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from penstock.errors import InvalidError
from penstock.sim.scenarios import fabriq, zht
from penstock.sim.scenarios.outcome import Outcome

Scenario = Callable[[int], Outcome]
SCENARIOS: dict[str, Scenario] = {"fabriq-64": fabriq.run, "zht-8000": zht.run}


def run_scenario(name: str, seed: int = 1, more: Mapping[str, Scenario] | None = None) -> Outcome:
    """Runs a scenario; InvalidError if there is none of this name."""
    known = {**SCENARIOS, **(more or {})}
    scenario = known.get(name)
    if scenario is None:
        raise InvalidError(f"no scenario {name!r}; there are {', '.join(known)}")
    return scenario(seed)
