"""The scenario of a large group, small; and as it is."""

from __future__ import annotations

import pytest

from penstock.consumers.simulation import scenario


@pytest.mark.parametrize("seed", [1, 2])
def test_a_small_group_reaches_the_goals(seed: int):
    outcome = scenario.run(seed, members=20, partitions=130)
    assert outcome.passed, [check.explain() for check in outcome.checks]
    assert outcome.figures["broken_promises"] == 0
    assert len(outcome.rows) == 11
    assert outcome.chart.x[-1] == 100


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_large_group_reaches_the_goals():
    outcome = scenario.run(2)
    assert outcome.passed, [check.explain() for check in outcome.checks]
