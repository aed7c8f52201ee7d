"""What became of the acks of a delivery, message by message."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from penstock import Delivery, Refusal
from penstock.errors import ConflictError

ACCEPTED, REFUSED, UNKNOWN = range(3)


def verdicts(delivery: Delivery, refusals: Sequence[Refusal], others: int) -> NDArray[np.uint8]:
    """For each message of a delivery: REFUSED, UNKNOWN if nobody knows, or `others` if no refusal
    names it."""
    spans = [
        (refusal.shard, range(refusal.position, refusal.position + refusal.count),
         REFUSED if isinstance(refusal.error, ConflictError) else UNKNOWN)
        for refusal in refusals
    ]  # fmt: skip

    def verdict(shard: int, position: int) -> int:
        found = (each for at, span, each in spans if at == shard and position in span)
        return next(found, others)

    return np.array([verdict(leased.shard, leased.position) for leased in delivery], np.uint8)
