"""What the consensus of a cluster has stored on this node: a fold of its Readys."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from penstock.cluster.consensus.messages import Entry as LogEntry
from penstock.cluster.consensus.messages import HardState, Snapshot
from penstock.cluster.consensus.ready import Ready
from penstock.core.records import Kind
from penstock.core.shard import PLANE
from penstock.wire.durability import Durability
from penstock.wire.entry import Entry


class _Stored(msgspec.Struct, frozen=True, array_like=True):
    """One step, as a record of the journal."""

    hard_state: HardState | None
    snapshot: Snapshot | None
    keep: bool  # entries after the snapshot: it is of the own log, not one that replaces it
    truncate_from: int | None
    entries: list[LogEntry]


class _Whole(msgspec.Struct, frozen=True, array_like=True):
    number: int
    hard_state: HardState
    snapshot: Snapshot | None
    entries: list[LogEntry]


_pack = msgspec.msgpack.Encoder().encode
_read = msgspec.msgpack.Decoder(_Stored).decode
_read_whole = msgspec.msgpack.Decoder(_Whole).decode


class ConsensusLog:
    """Hard state, snapshot and entries, as of the last record that was given to the journal."""

    def __init__(self) -> None:
        self.number = 0  # of the last record; 0: this node was never part of a cluster
        self.hard_state = HardState()
        self.base: Snapshot | None = None
        self.entries: list[LogEntry] = []

    def store(self, ready: Ready, done: Callable[[Entry], None]) -> Entry:
        """The record that stores a Ready; `done` is called when it is synced."""
        stored = _Stored(
            ready.hard_state, ready.snapshot, False, ready.truncate_from, list(ready.entries)
        )
        return self._record(stored, done)

    def compact(self, snapshot: Snapshot) -> Entry:
        """The record that puts a snapshot in the place of the entries before it."""
        return self._record(_Stored(None, snapshot, True, None, []), None)

    def _record(self, stored: _Stored, done: Callable[[Entry], None] | None) -> Entry:
        self.number += 1
        self._fold(stored)
        return Entry(
            PLANE, Kind.CONSENSUS, 0, self.number, _pack(stored), None, Durability.SYNCED, done,
            local=True,
        )  # fmt: skip

    def replay(self, number: int, meta: bytes) -> None:
        """Folds a record of the journal, unless a checkpoint has it."""
        if number > self.number:
            self.number = number
            self._fold(_read(meta))

    def _fold(self, stored: _Stored) -> None:
        if stored.hard_state is not None:
            self.hard_state = stored.hard_state
        if stored.snapshot is not None:
            self.base = stored.snapshot
            after = stored.snapshot.index
            self.entries = [e for e in self.entries if stored.keep and e.index > after]
        if stored.truncate_from is not None:
            first = stored.truncate_from
            self.entries = [entry for entry in self.entries if entry.index < first]
        self.entries += stored.entries

    def dump(self) -> bytes:
        """Plain bytes for `load`: a section of the checkpoint."""
        return _pack(_Whole(self.number, self.hard_state, self.base, self.entries))

    def load(self, data: bytes) -> None:
        """Becomes what made this snapshot."""
        whole = _read_whole(data)
        self.number, self.hard_state = whole.number, whole.hard_state
        self.base, self.entries = whole.snapshot, list(whole.entries)
