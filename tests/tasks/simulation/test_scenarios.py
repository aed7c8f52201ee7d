"""The scenarios at a size that takes seconds."""

from __future__ import annotations

from penstock.tasks.simulation import albatross, cloudkon


def test_cloudkon_in_small() -> None:
    outcome = cloudkon.run(seed=2, instances=8, part=0.05)
    checks = {check.what: check for check in outcome.checks}
    assert checks["promises broken"].passed, outcome.notes
    assert checks["a single task, p50"].passed
    assert outcome.figures["deaths"] >= 0
    assert len(outcome.chart.x) == len(outcome.chart.series["CloudKon, published"])


def test_albatross_in_small() -> None:
    outcome = albatross.run(seed=2, nodes=2, tasks=2_000, part=0.02)
    assert outcome.passed, outcome.notes
    assert outcome.figures["graph_tasks_per_second"] > 0
    assert any("edges" in str(row[0]) for row in outcome.rows)
