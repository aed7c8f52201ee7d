"""When the leases of deliveries are to be extended: long before they end, whatever executors do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(slots=True)
class _Open:
    rows: set[int]  # not settled
    since_us: int  # when the lease was last asked for


class Leases:
    """Deliveries with rows that are not settled yet."""

    def __init__(self, lease_us: int) -> None:
        self.lease_us = lease_us
        self._open: dict[int, _Open] = {}

    def __len__(self) -> int:
        return len(self._open)

    def add(self, delivery: int, rows: int, since_us: int) -> None:
        """A delivery came; its leases began at this time, or later."""
        self._open[delivery] = _Open(set(range(rows)), since_us)

    def settled(self, delivery: int, rows: Iterable[int]) -> bool:
        """Rows need no lease any more; whether the delivery is over."""
        known = self._open.get(delivery)
        if known is None:
            return False
        known.rows.difference_update(rows)
        if known.rows:
            return False
        del self._open[delivery]
        return True

    def due(self, now_us: int) -> list[tuple[int, list[int]]]:
        """Deliveries, with their open rows, of whose leases a third or less is left. They count as
        extended, unless `failed` says otherwise."""
        found: list[tuple[int, list[int]]] = []
        for delivery, known in self._open.items():
            if now_us - known.since_us >= self.lease_us * 2 // 3:
                known.since_us = now_us
                found.append((delivery, sorted(known.rows)))
        return found

    def failed(self, delivery: int) -> None:
        """Nobody knows whether a lease was extended: it is due again at once."""
        known = self._open.get(delivery)
        if known is not None:
            known.since_us -= self.lease_us
