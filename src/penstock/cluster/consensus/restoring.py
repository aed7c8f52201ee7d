"""The log that a restarted node finds, whatever moment its shell was stopped at."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.cluster.consensus.log import Log
from penstock.cluster.consensus.messages import Entry, HardState, Snapshot
from penstock.errors import DamagedError, ProtocolError


def restored_log(hard: HardState, snapshot: Snapshot, entries: Sequence[Entry]) -> Log:
    """DamagedError if these cannot have been stored in the order that `Ready` asks for.

    A snapshot from a leader replaces a log that did not have its last entry. If the shell stopped
    before it dropped that log, it is ignored here and dropped with the next entries to store.
    """
    void = not _continues(snapshot, entries)
    tail = [] if void else [entry for entry in entries if entry.index > snapshot.index]
    index, term = snapshot.index, snapshot.term
    for entry in tail:
        index += 1
        if entry.index != index or entry.term < term:
            raise DamagedError(f"the stored log is broken at entry {index}")
        term = entry.term
    if term > hard.term:
        raise DamagedError(f"the stored log is of term {term}, and the node only of {hard.term}")
    try:
        log = Log(snapshot, tail)
    except ProtocolError as error:
        raise DamagedError(f"the stored log is broken: {error.message}") from error
    log.cut_from = entries[0].index if void else None
    return log


def _continues(snapshot: Snapshot, entries: Sequence[Entry]) -> bool:
    """Whether the entries follow the snapshot, or have its last entry among them."""
    if not entries or entries[0].index > snapshot.index:
        return True
    before = snapshot.index - entries[0].index
    return before < len(entries) and entries[before].term == snapshot.term
