"""Lets the tests here import what they share: `tests.faults.leftovers`."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))


@pytest.fixture(autouse=True)
def _interrupts_reach_children() -> Iterator[None]:
    """SIGINT is ignored in what runs in the background, and in all that it starts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
