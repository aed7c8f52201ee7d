"""Tasks whose arguments or results are too large for a message."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.tasks.declare import task


@task
def noise(megabytes: int, seed: int = 1) -> Any:
    """An array of so many bytes."""
    return np.random.default_rng(seed).integers(0, 256, megabytes * 1_000_000, dtype=np.uint8)


@task
def total(array: Any) -> int:
    """A small result of a large argument."""
    return int(array.sum(dtype=np.int64))


@task
async def doubled(array: Any) -> Any:
    """A large result of a large argument."""
    return array * np.uint8(2)
