"""What is taken back, until whoever it concerns can hear it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from penstock.engine.outbox_messages import Secure, SecureStages

MOST_OF_A_SHARD = 1000  # after that the oldest are forgotten

Undo = Secure | SecureStages


class Undos:
    """Of each shard in order, and each for so long at most."""

    def __init__(self) -> None:
        self._kept: dict[int, deque[tuple[int, Undo]]] = {}

    def keep(self, undo: Undo, until_us: int) -> None:
        """It cannot be heard now."""
        kept = self._kept.setdefault(undo.shard, deque(maxlen=MOST_OF_A_SHARD))
        kept.append((until_us, undo))

    def take(self, is_heard: Callable[[int], bool], now_us: int) -> list[Undo]:
        """Those of the shards where they are heard now. Called after every event: it only looks
        at shards of which something was taken back."""
        shards = [shard for shard in self._kept if is_heard(shard)]
        kept = [each for shard in shards for each in self._kept.pop(shard)]
        return [undo for until_us, undo in kept if now_us < until_us]
