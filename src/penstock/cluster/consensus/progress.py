"""How far one peer is, as its leader knows, and what is under way to it."""

from __future__ import annotations

import enum
from collections import deque

from penstock.cluster.consensus.messages import Snapshot


class Pace(enum.Enum):
    """How entries go to a peer."""

    PROBE = "probe"  # one Append at a time, until the logs are known to meet
    STREAM = "stream"  # one after the other, without waiting
    SNAPSHOT = "snapshot"  # it needs what the log does not have any more


class Progress:
    """One peer. `match`: its log is stored and the leader's through here; `next`: what to send."""

    def __init__(self, next_index: int, now_us: int) -> None:
        self.pace = Pace.PROBE
        self.match = 0
        self.next = next_index
        self.waiting = False  # a probe or a chunk is under way
        self.ask = False  # send an Append even if it is empty: something may have been lost
        self.in_flight: deque[int] = deque()  # last index of each Append under way
        self.told_commit = 0
        self.round = 0  # of heartbeats, the last that it answered
        self.heard_us = now_us
        self.moved_us = now_us  # when something was last sent or acknowledged
        self.snapshot: Snapshot | None = None  # under way
        self.offset = 0  # of the snapshot's bytes, how many arrived

    def probe(self) -> None:
        """Find out where the logs meet, from what is known for sure."""
        self.pace, self.next = Pace.PROBE, self.match + 1
        self._calm()

    def stream(self) -> None:
        """The logs meet at `match`: send what follows."""
        self.pace, self.next = Pace.STREAM, self.match + 1
        self._calm()

    def send_snapshot(self, snapshot: Snapshot) -> None:
        """Nothing but a snapshot helps."""
        self.pace = Pace.SNAPSHOT
        self._calm()
        self.snapshot = snapshot

    def _calm(self) -> None:
        self.waiting = self.ask = False
        self.in_flight.clear()
        self.snapshot, self.offset = None, 0

    def sent(self, last_index: int, now_us: int) -> None:
        """An Append went out, that ends with this entry."""
        if not self.in_flight:
            self.moved_us = now_us
        if self.pace is Pace.PROBE:
            self.waiting = True
        elif last_index >= self.next:
            self.in_flight.append(last_index)
            self.next = last_index + 1

    def acknowledged(self, index: int, now_us: int) -> None:
        """Its log is stored, and the same, through `index`."""
        while self.in_flight and self.in_flight[0] <= index:
            self.in_flight.popleft()
        if index > self.match:
            self.match, self.moved_us = index, now_us
            self.next = max(self.next, index + 1)
        arrived = self.snapshot is not None and self.match >= self.snapshot.index
        if arrived or (self.pace is Pace.PROBE and index == self.match):
            self.stream()

    def rejects(self, index: int) -> bool:
        """Whether a rejection of an Append after `index` says something new."""
        if self.pace is Pace.STREAM:
            return self.match < index < self.next
        return self.pace is Pace.PROBE and index == self.next - 1

    def back_off(self, index: int, meeting: int) -> None:
        """The logs differ at `index`; they may meet at `meeting`."""
        self.probe()
        self.next = max(self.match + 1, min(index, meeting + 1))

    def stalled(self, now_us: int, patience_us: int) -> bool:
        """Something is under way for too long."""
        under_way = self.waiting or bool(self.in_flight)
        return under_way and now_us - self.moved_us >= patience_us

    def retry(self, now_us: int) -> None:
        """The peer is there, but what was sent seems lost."""
        self.moved_us = now_us
        self.waiting = False
        self.ask = True
