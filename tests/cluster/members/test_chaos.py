"""Queues, topics and tables under load, while nodes die, lose power, pause, part, come and go."""

from __future__ import annotations

import pytest
from tests.cluster.members.chaos import Chaos

from penstock.engine.maintenance import Pace

OFTEN = Pace(checkpoint_records=300)


@pytest.mark.parametrize("seed", range(1))
def test_promises_are_kept_in_a_short_life(seed: int):
    assert Chaos(seed, rounds=3).run().check() == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_promises_are_kept(seed: int):
    assert Chaos(seed, pace=OFTEN).run().check() == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(25))
def test_promises_are_kept_while_nodes_come_and_go(seed: int):
    assert Chaos(seed, grow=True, pace=OFTEN).run().check() == []
