"""What assembles objects, or makes fragments, has no clock, no chance and no I/O of its own."""

from __future__ import annotations

import pytest
from tests.test_structure import PACKAGE, impurities, parse

PARTS = (
    "assembler", "calls", "folding", "fragments", "generator", "held", "ledger", "objects",
    "progress", "replay", "runs", "session_bench", "sessions", "snapshot", "stateful", "steps",
)  # fmt: skip


@pytest.mark.parametrize("name", PARTS)
def test_it_is_pure(name: str):
    path = PACKAGE / "consumers" / f"{name}.py"
    assert impurities(parse(path), path) == set()
