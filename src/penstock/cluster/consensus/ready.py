"""What consensus asks its shell to do, and what of it is not known to be on disk."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from penstock.cluster.consensus.messages import Entry, HardState, Message, Snapshot
from penstock.errors import InvalidError


@dataclass(frozen=True, slots=True)
class ReadAnswer:
    """A read may be answered from the state machine as it is now. Index None: leadership was lost
    before it was sure; ask again, at the leader."""

    token: int
    index: int | None


@dataclass(slots=True)
class Ready:
    """One round of work for the shell; Readys are carried out in order, and may overlap.

    Store, in this order: `hard_state`; `snapshot` (it replaces all stored entries, and the state
    machine's state); then the end of the log: drop stored entries from `truncate_from` on, append
    `entries`. `messages` may go at once. When all of this Ready and of those before is synced, send
    `messages_after_persist` and call `persisted(number)`. Apply `committed` in order, after the
    snapshot; call `applied`. A shell that crashed in between, even between these steps, restores
    from what it finds.
    """

    number: int
    hard_state: HardState | None = None
    snapshot: Snapshot | None = None
    truncate_from: int | None = None
    entries: list[Entry] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    messages_after_persist: list[Message] = field(default_factory=list)
    committed: list[Entry] = field(default_factory=list)
    reads: list[ReadAnswer] = field(default_factory=list)

    @property
    def must_persist(self) -> bool:
        """There is something to store."""
        return bool(self.hard_state or self.snapshot or self.entries)

    @property
    def empty(self) -> bool:
        """There is nothing to do."""
        return not (
            self.must_persist
            or self.messages
            or self.messages_after_persist
            or self.committed
            or self.reads
        )


@dataclass(slots=True)
class _Write:
    number: int
    last_index: int  # the log through here is on disk when this write is; lowered by a cut


class Writes:
    """Readys with something to store, from the oldest that is not known to be synced."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.number = 0  # of the last Ready
        self._under_way: deque[_Write] = deque()

    @property
    def any(self) -> bool:
        """Something is under way."""
        return bool(self._under_way)

    @property
    def full(self) -> bool:
        """The disk is too far behind: nothing more is given to it."""
        return len(self._under_way) >= self.limit

    def begin(self, number: int, last_index: int) -> None:
        """This Ready has something to store; with it, the log through `last_index` is."""
        self._under_way.append(_Write(number, last_index))

    def cut(self, first: int) -> None:
        """Entries from `first` on were replaced: older writes say nothing about those."""
        for write in self._under_way:
            write.last_index = min(write.last_index, first - 1)

    def end(self, number: int) -> int:
        """All through Ready `number` is synced: the log through which index? 0: nothing new."""
        if number > self.number:
            raise InvalidError(f"there was no Ready {number}; the last is {self.number}")
        stable = 0
        while self._under_way and self._under_way[0].number <= number:
            stable = self._under_way.popleft().last_index
        return stable
