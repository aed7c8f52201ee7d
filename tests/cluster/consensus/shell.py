"""A shell for one consensus node: its disk, which syncs when it is told to, and a state machine."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec
from tests.cluster.consensus.checker import Checker

from penstock.cluster.consensus.membership import Membership
from penstock.cluster.consensus.messages import Entry, EntryKind, HardState, Message, Snapshot
from penstock.cluster.consensus.raft import Raft
from penstock.cluster.consensus.ready import ReadAnswer, Ready
from penstock.cluster.consensus.settings import Settings

_unpack = msgspec.msgpack.Decoder(list[bytes]).decode


class Disk:
    """What a crash leaves."""

    def __init__(self) -> None:
        self.hard_state = HardState()
        self.snapshot: Snapshot | None = None
        self.entries: list[Entry] = []

    def store(self, ready: Ready) -> None:
        if ready.hard_state is not None:
            self.hard_state = ready.hard_state
        if ready.snapshot is not None:
            self.snapshot, self.entries = ready.snapshot, []
        if ready.truncate_from is not None:
            first = ready.truncate_from
            self.entries = [entry for entry in self.entries if entry.index < first]
        if ready.entries and self.entries:
            assert ready.entries[0].index == self.entries[-1].index + 1
        self.entries += ready.entries

    def compact(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.entries = [entry for entry in self.entries if entry.index > snapshot.index]

    def has(self, index: int, term: int) -> bool:
        """Whether an entry would be there after a crash, itself or in a snapshot."""
        if self.snapshot is not None and index <= self.snapshot.index:
            return True
        at = index - self.entries[0].index if self.entries else -1
        return 0 <= at < len(self.entries) and self.entries[at].term == term


class Shell:
    """One node. `send` gets messages; Readys wait in `writing` until `sync`."""

    def __init__(
        self, node: int, first: Membership, seed: int, settings: Settings, checker: Checker,
        send: Callable[[Message], None],
    ) -> None:  # fmt: skip
        self.node, self.first, self.seed, self.settings = node, first, seed, settings
        self.checker, self.send = checker, send
        self.disk = Disk()
        self.writing: deque[Ready] = deque()
        self.up = False
        self.life = 0  # counts restarts
        self.values: list[bytes] = []
        self.applied = 0
        self.new_values: list[bytes] = []  # applied, and not yet looked at
        self.reads: list[ReadAnswer] = []
        self.installed = 0  # snapshots that came from a leader
        self.answered = 0  # reads
        checker.shells[node] = self
        self.start(0)

    def start(self, now_us: int) -> None:
        disk = self.disk
        self.raft = Raft.restore(
            self.node, self.first, hard_state=disk.hard_state, snapshot=disk.snapshot,
            entries=disk.entries, seed=self.seed, now_us=now_us, settings=self.settings,
        )  # fmt: skip
        self.up, self.life = True, self.life + 1
        self.values, self.applied = [], 0
        if disk.snapshot is not None:
            self._restore(disk.snapshot)

    def crash(self, keep: int = 0, torn: bool = False) -> None:
        """Of what was not synced, the first `keep` Readys happen to be on disk; `torn`: of the next
        one, all but what concerns entries."""
        for _ in range(min(keep, len(self.writing))):
            self.disk.store(self.writing.popleft())
        if torn and self.writing:
            self.disk.hard_state = self.writing[0].hard_state or self.disk.hard_state
            self.disk.snapshot = self.writing[0].snapshot or self.disk.snapshot
        self.writing.clear()
        self.up = False

    def settle(self) -> None:
        """Carries out all Readys, but for what waits for a sync."""
        while (ready := self.raft.take_ready()) is not None:
            self.checker.given(self, ready)
            self._send(ready.messages)
            if ready.snapshot is not None:
                self._restore(ready.snapshot)
                self.installed += 1
            for entry in ready.committed:
                self._apply(entry)
            self.raft.applied(self.applied)
            self.reads += ready.reads
            self.answered += sum(read.index is not None for read in ready.reads)
            if ready.must_persist or ready.messages_after_persist:
                self.writing.append(ready)
        self.checker.check(self)

    def sync(self, now_us: int, count: int | None = None) -> None:
        """The oldest Readys are synced, all if no number is given."""
        number, due = 0, len(self.writing) if count is None else min(count, len(self.writing))
        promises: list[Message] = []
        for _ in range(due):
            ready = self.writing.popleft()
            self.disk.store(ready)
            number = ready.number
            promises += ready.messages_after_persist
        self._send(promises)
        self.raft.persisted(number, now_us)
        self.settle()

    def _send(self, messages: list[Message]) -> None:
        for message in messages:
            self.checker.said(message)
            self.send(message)

    def compact(self) -> None:
        """A snapshot of the state now."""
        snapshot = self.raft.compact(self.applied, msgspec.msgpack.encode(self.values))
        # Stored at once: the simulated crash of a write in place is that of a Ready's snapshot.
        if not self.writing:
            self.disk.compact(snapshot)

    def _apply(self, entry: Entry) -> None:
        self.checker.applies(self, entry)
        self.applied = entry.index
        if entry.kind is EntryKind.DATA:
            self.values.append(entry.data)
            self.new_values.append(entry.data)

    def _restore(self, snapshot: Snapshot) -> None:
        self.values = _unpack(snapshot.data) if snapshot.data else []
        self.applied = snapshot.index
        self.checker.restores(self, snapshot)
