"""A fabric in memory with a real clock, and an app on it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import penstock
from penstock.node.clock import Clock
from penstock.testing import memory_fabric


@pytest.fixture
def fabric() -> Iterator[penstock.Fabric]:
    with memory_fabric(Clock(), timeout=60.0) as made:
        yield made


@pytest.fixture
def app(fabric: penstock.Fabric) -> penstock.TaskApp:
    """It ends with the fabric."""
    return fabric.tasks("default")
