"""What decides on shares and claims has no clock, no chance and no I/O of its own."""

from __future__ import annotations

import pytest
from tests.test_structure import PACKAGE, impurities, parse

PARTS = (
    "claim_events", "claims", "explain", "holdings", "intentions", "loads", "looks", "membership",
    "keeping", "moves", "rules", "schedule", "shares",
)  # fmt: skip


@pytest.mark.parametrize("name", PARTS)
def test_it_is_pure(name: str):
    path = PACKAGE / "consumers" / f"{name}.py"
    assert impurities(parse(path), path) == set()
