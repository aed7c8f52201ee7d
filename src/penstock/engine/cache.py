"""Batches that were just written: most are read soon, and then need no disk."""

from __future__ import annotations

from collections import deque

from penstock.wire.buffers import Buffer

OVERHEAD_BYTES = 1024  # what a small payload costs beside its bytes, roughly


class RecentPayloads:
    """Payloads by the location of their record; the oldest leave when there is no room.

    What counts is the memory that they keep: several may be parts of what was received at once.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._payloads: dict[int, Buffer] = {}
        self._order: deque[int] = deque()
        self._sharing: dict[int, int] = {}  # by the id of the memory: payloads in it

    def add(self, location: int, payload: Buffer) -> None:
        """Keeps a payload for a while."""
        self._payloads[location] = payload
        self._order.append(location)
        memory, size = _memory(payload)
        self._bytes += OVERHEAD_BYTES
        sharing = self._sharing.get(memory, 0)
        if not sharing:
            self._bytes += size
        self._sharing[memory] = sharing + 1
        while self._bytes > self._max_bytes:
            self._drop(self._payloads.pop(self._order.popleft()))

    def _drop(self, payload: Buffer) -> None:
        memory, size = _memory(payload)
        self._bytes -= OVERHEAD_BYTES
        sharing = self._sharing.pop(memory) - 1
        if sharing:
            self._sharing[memory] = sharing
        else:
            self._bytes -= size

    def get(self, location: int) -> Buffer | None:
        """The payload, if it is still here."""
        return self._payloads.get(location)


def _memory(payload: Buffer) -> tuple[int, int]:
    """The memory that a payload keeps: its id, and its size."""
    owner = payload.obj if isinstance(payload, memoryview) else payload
    return id(owner), memoryview(owner).nbytes
