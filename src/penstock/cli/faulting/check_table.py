"""The history of the table: no count is lost or made twice, no read shows less than what was known
before it began."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from penstock.cli.faulting import ledgers
from penstock.cli.faulting.ledgers import ACCEPTED, READ, REFUSED, UNKNOWN, Rows


@dataclass
class TableVerdict:
    """What came out; `lost_updates` and `stale_reads` have to be zero."""

    counted: int = 0
    conflicts: int = 0
    unknown_writes: int = 0
    lost_updates: int = 0
    stale_reads: int = 0


def check_table(folder: Path) -> TableVerdict:
    """Reads all ledgers of the table: the counters', and what the counters were in the end."""
    paths = ledgers.named(folder, "written")
    parts = [rows for path in paths for rows in ledgers.chunks(path)]
    rows = np.concatenate([*parts, np.zeros(0, ledgers.WRITTEN)])
    found = TableVerdict()
    for key in np.unique(rows["key"]):
        own = rows[rows["key"] == key]
        found.counted += _count(own, ACCEPTED)
        found.conflicts += _count(own, REFUSED)
        found.unknown_writes += _count(own, UNKNOWN)
        found.lost_updates += _lost(own)
        found.stale_reads += _stale(own)
    return found


def _count(rows: Rows, verdict: int) -> int:
    return int(np.count_nonzero(rows["verdict"] == verdict))


def _lost(rows: Rows) -> int:
    """Each count goes from one number to the next, so an accepted number that was written twice has
    swallowed one, and every number up to the last was written by somebody."""
    accepted = rows["value"][rows["verdict"] == ACCEPTED]
    tried = rows["value"][(rows["verdict"] == ACCEPTED) | (rows["verdict"] == UNKNOWN)]
    last = int(rows["value"][rows["verdict"] == READ].max(initial=0))
    twice = len(accepted) - len(np.unique(accepted))
    beyond = int(np.count_nonzero(accepted > last))
    unexplained = len(np.setdiff1d(np.arange(1, last + 1), tried))
    return twice + beyond + unexplained


def _stale(rows: Rows) -> int:
    """Reads that show less than what somebody knew before they began."""
    certain = rows[(rows["verdict"] == ACCEPTED) | (rows["verdict"] == READ)]
    by_end = certain[np.argsort(certain["ended_ns"], kind="stable")]
    highest = np.maximum.accumulate(by_end["value"])
    reads = rows[rows["verdict"] == READ]
    before = np.searchsorted(by_end["ended_ns"], reads["started_ns"], side="left")
    known = np.where(before > 0, highest[np.maximum(before, 1) - 1], 0)
    return int(np.count_nonzero(reads["value"] < known))
