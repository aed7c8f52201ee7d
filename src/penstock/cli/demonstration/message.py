"""What a message of the demo carries: who sent it, its number, and when."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

LAYOUT = np.dtype(
    [("producer", "<u4"), ("number", "<u4"), ("sent_ns", "<i8"), ("filler", "V84")]
)  # 100 bytes
Rows = NDArray[np.void]


def make(producer: int, first: int, count: int) -> list[bytes]:
    """Messages with the numbers from `first` on, sent now by the clock that all processes share."""
    rows = np.zeros(count, LAYOUT)
    rows["producer"] = producer
    rows["number"] = np.arange(first, first + count)
    rows["sent_ns"] = time.monotonic_ns()
    data = rows.tobytes()
    size = LAYOUT.itemsize
    return [data[at : at + size] for at in range(0, len(data), size)]


def read(values: Sequence[bytes]) -> NDArray[Any]:
    """The same messages as columns."""
    return np.frombuffer(b"".join(values), LAYOUT)
