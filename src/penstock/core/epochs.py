"""Which epoch each part of a shard's log is from: whether two logs are one and the same."""

from __future__ import annotations

MAX_EPOCHS = 64


class Epochs:
    """Where epochs begin in a log, oldest first. Older ones than it remembers agree with none."""

    def __init__(self, begins: list[tuple[int, int]] | None = None) -> None:
        self._begins = list(begins or [])  # (epoch, number of its first record)
        self.latest = self._begins[-1][0] if self._begins else 0
        """The epoch of the newest record; 0 if there is none."""

    def began(self, epoch: int, number: int) -> None:
        """The record with this number is the first of an epoch."""
        if not self._begins or epoch > self._begins[-1][0]:
            self._begins.append((epoch, number))
            self.latest = epoch
            del self._begins[:-MAX_EPOCHS]

    def at(self, number: int) -> int:
        """The epoch of a record; 0 if that is not known. An epoch may have begun without one."""
        found = [epoch for epoch, first in self._begins if first <= number]
        return found[-1] if found else 0

    def agrees(self, last: int, last_epoch: int) -> bool:
        """Whether a log that ends with this number and epoch is a beginning of this one."""
        if not last:
            return True
        for at, (epoch, first) in enumerate(self._begins):
            if epoch == last_epoch:
                ends = self._begins[at + 1][1] - 1 if at + 1 < len(self._begins) else None
                return last >= first and (ends is None or last <= ends)
        return False

    def snapshot(self) -> list[tuple[int, int]]:
        """Plain data for the constructor."""
        return list(self._begins)
