"""What may be committed of a partition: the safe offset, the list beside it, and snapshots."""

from __future__ import annotations

from typing import Generic, TypeVar

from penstock.consumers.folding import Folding
from penstock.consumers.held import Held
from penstock.consumers.progress import IgnoreList, Progress, SnapshotRef, name_of
from penstock.consumers.snapshot import Snapshot, entries_of
from penstock.consumers.steps import Limits
from penstock.errors import LimitError

S = TypeVar("S")

_IGNORED_AT_MOST = 64  # times the limit at which a snapshot is asked for


class Ledger(Generic[S]):
    """Knows what a new owner would have to read again, and what it would have to ignore.

    `next_offset` and `high_us` in its calls: what is read next, and the highest time before it.
    """

    def __init__(
        self, folding: Folding[S], held: Held, limits: Limits, progress: Progress
    ) -> None:
        self._folding = folding
        self.held = held
        self._limits = limits
        self._advances = list(progress.advances)
        self.snapshot_ref = progress.snapshot
        folding.ignore = IgnoreList(progress.ignore)

    @property
    def advances(self) -> list[tuple[int, int]]:
        """Where the clock moved time on; not to be changed."""
        return self._advances

    def restore(self, advances: list[tuple[int, int]], snapshot: SnapshotRef | None) -> None:
        """Takes over what another owner's ledger had; the list is in the folding already."""
        self._advances, self.snapshot_ref = list(advances), snapshot

    def advanced(self, next_offset: int, to_us: int) -> None:
        """The clock has moved the highest time on before this offset is read."""
        if self._advances and self._advances[-1][0] == next_offset:
            self._advances.pop()
        self._advances.append((next_offset, to_us))

    def progress(self, next_offset: int, high_us: int) -> Progress:
        """What may be committed now."""
        safe, safe_high_us = self._safe(next_offset, high_us)
        self._prune(safe)
        return Progress(
            safe,
            next_offset,
            safe_high_us,
            self._folding.ignore.entries(),
            tuple(self._advances),
            self.snapshot_ref,
            tuple(sorted(map(name_of, self._folding.objects.ended))),
        )

    def snapshot(self, reference: bytes, full: bool, next_offset: int, high_us: int) -> Snapshot:
        """The open objects of now; what may be committed builds on them from here on."""
        folding = self._folding
        full = full or self.snapshot_ref is None
        entries = entries_of(folding.stateful, folding.objects, full)
        self.snapshot_ref = SnapshotRef(reference, next_offset, high_us, folding.watermark_us)
        folding.objects.all_saved()
        folding.ignore.clear()
        self._advances.clear()
        return Snapshot(self.snapshot_ref, entries, full)

    def wants_snapshot(self, next_offset: int) -> bool:
        """Whether what a new owner would have to ignore is over its limit."""
        if self._listed() <= self._limits.ignored:
            return False
        self._prune(self._safe(next_offset, 0)[0])
        return self._listed() > self._limits.ignored

    def check(self, next_offset: int) -> None:
        """LimitError if snapshots were asked for again and again, and none was made."""
        most = self._limits.ignored * _IGNORED_AT_MOST
        if self._listed() > most and self.wants_snapshot(next_offset) and self._listed() > most:
            raise LimitError(
                f"a new owner would have to ignore {self._listed():,} objects that are over",
                advice="Make a snapshot when a step asks for one.",
            )

    def _safe(self, next_offset: int, high_us: int) -> tuple[int, int]:
        """The offset from which a new owner must read, and the highest time read before it."""
        places = [self._folding.objects.oldest_unsaved(), self.held.oldest()]
        safe, safe_high_us = min(
            [place for place in places if place is not None], default=(next_offset, high_us)
        )
        if self.snapshot_ref is not None and safe < self.snapshot_ref.offset:
            safe_high_us = self.snapshot_ref.high_us
        return safe, safe_high_us

    def _prune(self, safe: int) -> None:
        self._folding.ignore.prune(safe)
        self._advances = [each for each in self._advances if each[0] > safe]

    def _listed(self) -> int:
        return len(self._folding.ignore) + len(self._folding.objects.ended) + len(self._advances)
