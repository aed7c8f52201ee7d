"""The log: a snapshot, the entries around and after it, and how far each purpose has come."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from penstock.cluster.consensus.membership import Membership, unpack_membership
from penstock.cluster.consensus.messages import Entry, EntryKind, Snapshot
from penstock.cluster.consensus.settings import Settings
from penstock.errors import ProtocolError


class Log:
    """Entries after `start_index`. Always: applied ≤ given ≤ committed ≤ last_index, and
    given ≤ stable ≤ written ≤ last_index, once a snapshot from the leader is stored."""

    def __init__(self, snapshot: Snapshot, entries: Sequence[Entry] = ()) -> None:
        """`entries` follow the snapshot, and both are on disk."""
        self.snapshot = snapshot
        self._entries = list(entries)
        self.start_index, self.start_term = snapshot.index, snapshot.term
        self.cost_bytes = sum(entry.cost_bytes for entry in entries)
        self.committed = self.given = self.applied = snapshot.index
        self.stable = self.written = self.last_index
        self.cut_from: int | None = None  # stored entries from here on are void
        self._memberships = [(snapshot.index, snapshot.membership)]
        self._note_memberships(entries)

    # --- reading ---------------------------------------------------------------------------

    @property
    def last_index(self) -> int:
        """Index of the last entry, stored or not."""
        return self.start_index + len(self._entries)

    @property
    def last_term(self) -> int:
        """Term of the last entry."""
        return self._entries[-1].term if self._entries else self.start_term

    @property
    def membership(self) -> Membership:
        """The latest, committed or not."""
        return self._memberships[-1][1]

    @property
    def membership_index(self) -> int:
        """Where the latest membership came from."""
        return self._memberships[-1][0]

    def term_at(self, index: int) -> int | None:
        """Term of an entry; None if it is compacted away or does not exist."""
        if index == self.start_index:
            return self.start_term
        if self.start_index < index <= self.last_index:
            return self._entries[index - self.start_index - 1].term
        return None

    def between(self, first: int, last: int) -> list[Entry]:
        """Entries from `first` to `last`, both included."""
        end = max(last - self.start_index, 0)
        return self._entries[first - self.start_index - 1 : end]

    def batch(self, first: int, last: int, max_entries: int, max_bytes: int) -> list[Entry]:
        """Entries from `first`, at most to `last`: at least one if there is one."""
        entries = self.between(first, min(last, first + max_entries - 1))
        cost_bytes = 0
        for count, entry in enumerate(entries):
            cost_bytes += entry.cost_bytes
            if cost_bytes > max_bytes and count:
                return entries[:count]
        return entries

    def last_not_after(self, index: int, term: int) -> tuple[int, int]:
        """The last place at or before `index` whose term is at most `term`: (index, term). Two logs
        that ask each other so find where they part in one step per term, not per entry."""
        of_terms = self.start_index + bisect_right(self._entries, term, key=_term_of)
        index = max(min(index, of_terms), self.start_index)
        return index, self.term_at(index) or 0

    # --- giving ----------------------------------------------------------------------------

    def take_unwritten(self) -> tuple[list[Entry], int | None]:
        """Entries that were not given to be stored yet, and from where they replace others."""
        entries = self.between(self.written + 1, self.last_index)
        if not entries:
            return entries, None
        cut, self.cut_from = self.cut_from, None
        self.written = self.last_index
        return entries, cut

    def take_committed(self, settings: Settings) -> list[Entry]:
        """Decided entries to apply next. Only what is on the own disk, too: a state machine that
        is ahead of its log could not be restored with it."""
        if self.given - self.applied >= settings.max_unapplied:
            return []
        entries = self.batch(
            self.given + 1, min(self.committed, self.stable),
            settings.max_batch_entries, settings.max_batch_bytes,
        )  # fmt: skip
        self.given += len(entries)
        return entries

    # --- writing ---------------------------------------------------------------------------

    def add(self, entry: Entry) -> None:
        """A leader adds to its own log."""
        self._entries.append(entry)
        self.cost_bytes += entry.cost_bytes
        self._note_memberships((entry,))

    def merge(self, entries: Sequence[Entry]) -> int | None:
        """Entries of the leader, that follow a place both logs have. What differs goes; returns
        from where. ProtocolError, and no change, if that would touch a committed entry."""
        new = 0
        while new < len(entries) and self.term_at(entries[new].index) == entries[new].term:
            new += 1
        if new == len(entries):
            return None
        first = entries[new].index
        if first <= self.committed:
            raise ProtocolError(f"a leader sent another entry {first} than is committed")
        cut = first if first <= self.last_index else None
        if cut is not None:
            self._cut(first)
        for entry in entries[new:]:
            self.add(entry)
        return cut

    def _cut(self, first: int) -> None:
        at = first - self.start_index - 1
        self.cost_bytes -= sum(entry.cost_bytes for entry in self._entries[at:])
        del self._entries[at:]
        if first <= self.written:
            self.cut_from = first
            self.written = first - 1
        self.stable = min(self.stable, first - 1)
        while self._memberships[-1][0] >= first:
            self._memberships.pop()

    def commit(self, index: int) -> None:
        """Everything through `index` is decided."""
        self.committed = max(self.committed, min(index, self.last_index))

    def compact(self, snapshot: Snapshot, keep_entries: int, keep_bytes: int) -> None:
        """The shell has this snapshot of its own state; some entries behind it stay."""
        self.snapshot = snapshot
        start, kept_bytes = snapshot.index, 0
        while start > max(self.start_index, snapshot.index - keep_entries):
            kept_bytes += self.between(start, start)[0].cost_bytes
            if kept_bytes > keep_bytes:
                break
            start -= 1
        term = self.term_at(start) or 0
        dropped = start - self.start_index
        self.cost_bytes -= sum(entry.cost_bytes for entry in self._entries[:dropped])
        del self._entries[:dropped]
        self.start_index, self.start_term = start, term
        self._memberships = [
            (snapshot.index, snapshot.membership),
            *(each for each in self._memberships if each[0] > snapshot.index),
        ]

    def install(self, snapshot: Snapshot) -> None:
        """The leader's snapshot replaces the whole log; it is not on disk yet."""
        self.snapshot = snapshot
        self.start_index, self.start_term = snapshot.index, snapshot.term
        self._entries, self.cost_bytes = [], 0
        self.committed = self.given = snapshot.index
        self.stable, self.written = 0, snapshot.index
        self.cut_from = None
        self._memberships = [(snapshot.index, snapshot.membership)]

    def membership_at(self, index: int) -> Membership:
        """The membership that held at a place at or after the snapshot."""
        return next(each for at, each in reversed(self._memberships) if at <= index)

    def _note_memberships(self, entries: Sequence[Entry]) -> None:
        self._memberships += [
            (entry.index, unpack_membership(entry.data))
            for entry in entries
            if entry.kind is EntryKind.MEMBERSHIP
        ]


def _term_of(entry: Entry) -> int:
    return entry.term
