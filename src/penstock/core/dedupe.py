"""What makes a resend harmless: windows of producers' sequences and of callers' ids."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import FencedError, ForgottenError, InvalidError, LimitError
from penstock.wire.batch import Header

RECENT_BATCHES = 16  # of every producer and shard: more may not be in flight
IDLE_US = 15 * 60 * 1_000_000  # an unnamed producer may be forgotten after this
NAMED_IDLE_US = 7 * 86_400 * 1_000_000
MAX_PRODUCERS = 8192  # of one shard
MAX_IDS = 200_000  # of one queue in one shard


@dataclass(slots=True)
class Window:
    """One producer in one shard: what it sends next, and what it sent last."""

    instance: int
    next_sequence: int
    seen_us: int
    named: bool = False
    recent: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=RECENT_BATCHES))

    def expects(self, header: Header) -> bool:
        """Whether a batch is what comes next, of this instance."""
        return header.sequence == self.next_sequence and header.instance == self.instance


class Producers:
    """The producers of one shard. Sequences are contiguous; each counts messages."""

    __slots__ = ("windows",)

    def __init__(self) -> None:
        self.windows: dict[int, Window] = {}

    def check(self, producer: int, instance: int, sequence: int) -> int | None:
        """None: new, store it. Otherwise a duplicate: its first offset, or -1 if that is forgotten.

        Raises FencedError, ForgottenError, or InvalidError for a gap; nothing changes here.
        """
        window = self.windows.get(producer)
        if window is None:
            if sequence:
                raise ForgottenError(
                    "this producer is not known here any more: it was idle for too long, or is new "
                    f"and starts at sequence {sequence} instead of 0"
                )
            return None
        if instance < window.instance:
            raise FencedError(
                f"instance {instance} of this producer was replaced by {window.instance}"
            )
        if sequence == window.next_sequence:
            return None
        if sequence > window.next_sequence:
            raise InvalidError(
                f"sequence {sequence} leaves a gap: {window.next_sequence} is next; was a batch "
                "refused before it?"
            )
        return next((base for first, base in window.recent if first == sequence), -1)

    def accept(
        self, producer: int, instance: int, sequence: int, count: int, base: int, now_us: int
    ) -> None:
        """The producer's next `count` messages are in the log, at `base`."""
        window = self.windows.get(producer)
        if window is None:
            self._make_room(now_us)
            window = self.windows[producer] = Window(instance, 0, now_us)
        else:
            del self.windows[producer]  # last seen, last in line to be forgotten
            self.windows[producer] = window
        if instance > window.instance:
            window.instance = instance
        window.next_sequence = sequence + count
        window.seen_us = now_us
        window.recent.append((sequence, base))

    def register(self, producer: int, instance: int, now_us: int) -> int:
        """A named producer's new instance; older ones are fenced. Messages it stored so far."""
        window = self.windows.get(producer)
        if window is None:
            self._make_room(now_us)
            window = self.windows[producer] = Window(instance, 0, now_us)
        window.named = True
        window.instance = instance
        window.seen_us = now_us
        return window.next_sequence

    def has_room(self, now_us: int) -> None:
        """LimitError if a new producer could not be taken in now."""
        if len(self.windows) >= MAX_PRODUCERS and self._forgettable(now_us) is None:
            raise LimitError(f"{MAX_PRODUCERS:,} producers are active in one shard")

    def _forgettable(self, now_us: int) -> int | None:
        for producer, window in self.windows.items():
            idle_us = NAMED_IDLE_US if window.named else IDLE_US
            if now_us - window.seen_us >= idle_us:
                return producer
            if not window.named:  # those behind it were seen later; named ones hold up nobody
                return None
        return None

    def _make_room(self, now_us: int) -> None:
        for _ in range(2):  # two out for one in: the idle ones drain while new ones come
            if (idle := self._forgettable(now_us)) is not None:
                del self.windows[idle]

    def snapshot(self) -> list[Any]:
        """Plain data for `restore`."""
        return [
            (producer, w.instance, w.next_sequence, w.seen_us, w.named, list(w.recent))
            for producer, w in self.windows.items()
        ]

    @classmethod
    def restore(cls, rows: list[Any]) -> Producers:
        """The producers that made this snapshot."""
        producers = cls()
        for producer, instance, next_sequence, seen_us, named, recent in rows:
            window = Window(instance, next_sequence, seen_us, named)
            window.recent.extend(map(tuple, recent))
            producers.windows[producer] = window
        return producers


class IdWindow:
    """Callers' ids of one queue in one shard, kept for a time."""

    __slots__ = ("_ids",)

    def __init__(self) -> None:
        self._ids: dict[bytes, tuple[int, int]] = {}

    def __len__(self) -> int:
        return len(self._ids)

    def find(self, key: bytes) -> int | None:
        """The position of the message with this id, if it is remembered."""
        found = self._ids.get(key)
        return None if found is None else found[0]

    def add(self, key: bytes, position: int, now_us: int) -> None:
        """Remembers an id."""
        self._ids[key] = (position, now_us)

    def expire(self, before_us: int) -> None:
        """Forgets what is older."""
        while self._ids:
            key, (_, added_us) = next(iter(self._ids.items()))
            if added_us > before_us:
                return
            del self._ids[key]

    def has_room(self) -> None:
        """LimitError if the window is full."""
        if len(self._ids) >= MAX_IDS:
            raise LimitError(f"{MAX_IDS:,} ids are remembered here; shorten the queue's id window")

    def snapshot(self) -> list[tuple[bytes, int, int]]:
        """Plain data for `restore`."""
        return [(key, position, added_us) for key, (position, added_us) in self._ids.items()]

    @classmethod
    def restore(cls, rows: list[Any]) -> IdWindow:
        """The window that made this snapshot."""
        window = cls()
        for key, position, added_us in rows:
            window.add(key, position, added_us)
        return window
