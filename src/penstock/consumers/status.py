"""What a member says of itself: to its own program, and in the table for everybody."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from penstock.consumers.shared import wall_us

if TYPE_CHECKING:
    from penstock.consumers.member import GroupMember
    from penstock.consumers.worker import Worker

MAX_MOVES = 50  # told; the latest


class Rates:
    """Counts per second, over the last few seconds."""

    def __init__(self, span_s: float = 5.0) -> None:
        self._span_s = span_s
        self._before: dict[object, tuple[float, int]] = {}
        self._rates: dict[object, float] = {}

    def rate(self, name: object, count: int) -> float:
        """The rate of a count that grows; it is renewed every few seconds."""
        now_s = time.monotonic()
        since_s, before = self._before.setdefault(name, (now_s, count))
        if count < before:  # of another life of the same partition
            self._before[name] = now_s, count
        elif now_s - since_s >= self._span_s:
            self._rates[name] = (count - before) / (now_s - since_s)
            self._before[name] = now_s, count
        elif name not in self._rates and now_s > since_s:
            return (count - before) / (now_s - since_s)
        return self._rates.get(name, 0.0)


def member_figures(member: GroupMember, workers: Mapping[int, Worker]) -> dict[str, Any]:
    """All figures, as plain data."""
    counts, entry, rates = member.shared.counts, member.entry, member.rates
    partitions: dict[str, dict[str, Any]] = {}
    for number in sorted(workers):
        worker = workers[number]
        rate = rates.rate(number, worker.messages)
        partitions[str(number)] = {**worker.figures(), "rate": round(rate, 1)}
    now_us, clock_us = wall_us(), time.monotonic_ns() // 1000
    return {
        "id": member.id, "host": entry.host, "pid": entry.pid, "at_us": now_us,
        "started_us": member.started_us, "guarantee": member.settings.guarantee,
        "weight": member.settings.weight, "draining": entry.drain is not None,
        "rate": round(rates.rate("all", counts.messages), 1), "messages": counts.messages,
        "read_again": counts.read_again, "results": counts.results, "late": counts.late,
        "dead": counts.dead, "commits": counts.commits, "failures": counts.failures,
        "slow_turns": counts.slow_turns, "lag": _sum(partitions, "lag"),
        "lag_s": max((each["lag_s"] or 0 for each in partitions.values()), default=0),
        "open": _sum(partitions, "open"), "held": _sum(partitions, "held"),
        "state": _sum(partitions, "state"), "handovers": counts.handovers.summary(),
        "resumes": counts.resumes.summary(), "partitions": partitions,
        "moves": [
            {"at_us": now_us - (clock_us - move.at_us), "partition": move.partition,
             "what": move.what, "why": move.why}
            for move in member.claims.moves.last(count=MAX_MOVES)
        ],
    }  # fmt: skip


def _sum(partitions: Mapping[str, Mapping[str, Any]], name: str) -> int:
    return sum(each[name] or 0 for each in partitions.values())
