"""Scenarios: the scales of published systems, run with the routing code of the cluster layer.

Nothing is sent; what is measured is where messages and lookups go, and what it costs to know that.
"""

from __future__ import annotations

from penstock.errors import InvalidError
from penstock.sim.scenarios import fabriq, zht
from penstock.sim.scenarios.outcome import Outcome

SCENARIOS = {"fabriq-64": fabriq.run, "zht-8000": zht.run}


def run_scenario(name: str, seed: int = 1) -> Outcome:
    """Runs a scenario; InvalidError if there is none of this name."""
    scenario = SCENARIOS.get(name)
    if scenario is None:
        raise InvalidError(f"no scenario {name!r}; there are {', '.join(SCENARIOS)}")
    return scenario(seed)
