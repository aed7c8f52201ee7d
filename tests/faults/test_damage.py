"""Bytes of data files change while the node is down."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.cli.soaking.damaging import Damager

ROUNDS = 4


@pytest.mark.parametrize("seed", [1, 2])
def test_damage_is_named_and_never_served(tmp_path: Path, seed: int) -> None:
    told: list[str] = []
    damager = Damager(tmp_path, seed, told.append)
    for _ in range(ROUNDS):
        damager.round()
    assert damager.found.broken == 0, (damager.found, told)
    assert damager.found.lost > 0  # something was hit
