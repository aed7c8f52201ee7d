"""Batches that were just written: most are read soon, and then need no disk."""

from __future__ import annotations

from collections import deque

from penstock.wire.buffers import Buffer

OVERHEAD_BYTES = 1024  # what a small payload costs beside its bytes, roughly


class RecentPayloads:
    """Payloads by the location of their record; the oldest leave when there is no room."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._payloads: dict[int, Buffer] = {}
        self._order: deque[int] = deque()

    def add(self, location: int, payload: Buffer) -> None:
        """Keeps a payload for a while."""
        self._payloads[location] = payload
        self._order.append(location)
        self._bytes += len(payload) + OVERHEAD_BYTES
        while self._bytes > self._max_bytes:
            self._bytes -= len(self._payloads.pop(self._order.popleft())) + OVERHEAD_BYTES

    def get(self, location: int) -> Buffer | None:
        """The payload, if it is still here."""
        return self._payloads.get(location)
