"""Whole clusters under faults, from seeds; the checker looks at every step."""

from __future__ import annotations

from collections import Counter

from tests.cluster.consensus.world import run

SEEDS = range(30)


def test_invariants_hold_and_healed_clusters_decide() -> None:
    reached: Counter[str] = Counter()
    for seed in SEEDS:
        try:
            reached.update(run(seed).figures())
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
    # A run in which nothing happens would prove nothing.
    assert reached["decided"] > 3000
    assert reached["terms"] > 150
    assert reached["changes"] > 100
    assert reached["snapshots"] > 50
    assert reached["reads"] > 200
    assert reached["lives"] > 400


def test_a_seed_repeats() -> None:
    first, again = run(7), run(7)
    assert first.checker.decided == again.checker.decided
    assert first.checker.leaders == again.checker.leaders
    assert first.now_us == again.now_us
