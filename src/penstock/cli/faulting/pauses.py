"""How long clients had to wait: the time between successive successes, around every fault."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from penstock.cli.faulting import ledgers
from penstock.cli.faulting.breaking import Fault
from penstock.cli.faulting.ledgers import REFUSED, UNKNOWN

AIM_SECONDS = 3.0
GROUPS = {"pushed": "producer", "published": "producer", "consumed": "consumer",
          "seen": "consumer", "written": "table"}  # fmt: skip
"""Which kind of client writes which ledger."""

Times = NDArray[np.int64]


@dataclass
class Client:
    """When a client succeeded, in order; and at which place it is (0: nowhere that is cut off)."""

    group: str
    place: int
    times_ns: Times


@dataclass
class Pauses:
    """The longest pauses around one fault, in seconds; of clients at the place that was cut off,
    only how long they took to go on when it was over."""

    producer: float = 0.0
    consumer: float = 0.0
    table: float = 0.0
    rejoined: float | None = None

    @property
    def longest(self) -> float:
        """Of all clients that were not cut off."""
        return max(self.producer, self.consumer, self.table)


def clients_of(folder: Path, places: dict[str, int], until_ns: int) -> list[Client]:
    """All clients of a run that had something to do until `until_ns`."""
    found: list[Client] = []
    for kind, group in GROUPS.items():
        for path in ledgers.named(folder, kind):
            if path.stem in places:
                times = _successes(path)
                times = np.append(times[times < until_ns], until_ns)
                found.append(Client(group, places[path.stem], times))
    return found


def _successes(path: Path) -> Times:
    """When something of a ledger's client worked."""
    parts = [np.zeros(0, np.int64)]
    for rows in ledgers.chunks(path):
        worked = rows
        if "verdict" in (rows.dtype.names or ()):
            worked = rows[(rows["verdict"] != UNKNOWN) & (rows["verdict"] != REFUSED)]
        parts.append(np.unique(worked["ended_ns"]))
    return np.unique(np.concatenate(parts))


def pauses_around(faults: Sequence[Fault], clients: Sequence[Client]) -> list[Pauses]:
    """For each fault the longest pauses of which most lies between it and the next one."""
    ends = [*(fault.started_ns for fault in faults[1:]), np.iinfo(np.int64).max]
    return [_around(fault, int(end), clients) for fault, end in zip(faults, ends, strict=True)]


def _around(fault: Fault, end_ns: int, clients: Iterable[Client]) -> Pauses:
    found = Pauses()
    for client in clients:
        times = client.times_ns
        if fault.cut and client.place == fault.cut:
            later = times[times > fault.repaired_ns]
            waited = (int(later[0]) - fault.repaired_ns) / 1e9 if len(later) else float("inf")
            found.rejoined = max(found.rejoined or 0.0, waited)
            continue
        starts, stops = times[:-1], times[1:]
        middles = starts + (stops - starts) // 2
        own = (middles >= fault.started_ns) & (middles < end_ns)
        longest = float((stops - starts)[own].max(initial=0)) / 1e9
        setattr(found, client.group, max(getattr(found, client.group), longest))
    return found
