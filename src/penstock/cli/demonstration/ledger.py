"""The books of the demo: how often every message was stored, delivered and acked."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.cli.demonstration.clients import Consumed, Pushed


class _Again(NamedTuple):
    producer: int
    number: int
    deliveries: int
    sent_ns: int
    received_ns: int


class Ledger:
    """Exact books over `producers` x `count` messages."""

    def __init__(self, producers: int, count: int, lease: float) -> None:
        shape = (producers, count)
        self._stored = np.zeros(shape, np.bool_)
        self._acks = np.zeros(shape, np.uint8)
        self._first_ns = np.zeros(shape, np.int64)  # when it was delivered for the first time
        self._again: list[_Again] = []
        self._repeated_firsts = 0  # delivered twice as if for the first time
        self._push_seconds: list[float] = []
        self._waited_ns: list[NDArray[np.int64]] = []
        # A lease begins when it is granted, which is before the consumer sees the message.
        self._shortest_lease_ns = int(lease * 1e9) // 2
        self.stored = 0
        self.accepted = 0
        self.killed_ns: int | None = None

    def pushed(self, report: Pushed) -> None:
        """A producer got a receipt."""
        rows = slice(report.first, report.first + report.count)
        self._stored[report.producer, rows] = True
        self.stored += report.count
        self._push_seconds.append(report.seconds)

    def consumed(self, report: Consumed) -> None:
        """A consumer has settled a delivery."""
        at = report.producers, report.numbers
        np.add.at(self._acks, tuple(column[report.accepted] for column in at), 1)
        self.accepted += int(report.accepted.sum())
        self._waited_ns.append(report.waited_ns)
        first = report.deliveries == 1
        firsts = tuple(column[first] for column in at)
        self._repeated_firsts += int(np.count_nonzero(self._first_ns[firsts]))
        self._first_ns[firsts] = report.received_ns
        for row in np.flatnonzero(~first).tolist():
            producer, number = int(report.producers[row]), int(report.numbers[row])
            count, at_ns = int(report.deliveries[row]), report.received_ns
            sent_ns = at_ns - int(report.waited_ns[row])
            self._again.append(_Again(producer, number, count, sent_ns, at_ns))

    @property
    def lost(self) -> int:
        """Acknowledged to the producer, and nobody's ack of it was accepted."""
        return int(np.count_nonzero(self._stored & (self._acks == 0)))

    @property
    def acked_twice(self) -> int:
        """More than one accepted ack."""
        return int(np.count_nonzero(self._acks > 1))

    @property
    def delivered_again(self) -> int:
        """Deliveries that were not the first of their message."""
        return len(self._again) + self._repeated_firsts

    @property
    def without_cause(self) -> int:
        """Deliveries again that neither a lease that ran out nor the kill explains."""
        seen: dict[tuple[int, int], dict[int, int]] = {}
        wrong = self._repeated_firsts
        for each in sorted(self._again, key=lambda again: again.deliveries):
            at = each.producer, each.number
            first_ns = int(self._first_ns[at])
            times = seen.setdefault(at, {1: first_ns} if first_ns else {})
            if each.deliveries in times or not self._has_cause(each, times):
                wrong += 1
            times[each.deliveries] = each.received_ns
        return wrong

    def _has_cause(self, again: _Again, times: dict[int, int]) -> bool:
        killed_ns = self.killed_ns
        before_ns = times.get(again.deliveries - 1)
        if before_ns is None:  # no consumer has seen it: it was on its way when the node was killed
            return killed_ns is not None and killed_ns < again.received_ns
        if killed_ns is not None and before_ns < killed_ns < again.received_ns:
            return True
        leased_ns = before_ns
        if killed_ns is not None and again.sent_ns < killed_ns < before_ns:
            # It may have come before the kill, to a consumer that has waited for the node since:
            # then its lease ran on while the node was down.
            leased_ns = killed_ns
        return again.received_ns - leased_ns >= self._shortest_lease_ns

    def push_quantile(self, part: float) -> float:
        """Seconds that a batch took to be acknowledged."""
        return float(np.quantile(self._push_seconds, part)) if self._push_seconds else 0.0

    def wait_quantile(self, part: float) -> float:
        """Seconds from the sending of a message to its delivery."""
        if not self._waited_ns:
            return 0.0
        return float(np.quantile(np.concatenate(self._waited_ns), part)) / 1e9
