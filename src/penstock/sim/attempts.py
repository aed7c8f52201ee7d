"""What committers and readers of reservations note, in both simulators: one key for each stream."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from penstock.client.messages import LeasedMessage
from penstock.sim.history import Delivery, History, Push, Settlement, message, name_of
from penstock.sim.world import World
from penstock.wire.messages import Publication

KEY = "job"
FOREVER_US = 1 << 60


@dataclass(slots=True)
class Attempt:
    """Messages that are published together, or not at all, under a number."""

    stream: str
    number: int
    pushes: list[list[Push]] = field(default_factory=list)  # stage by stage
    told: Publication | None = None

    @property
    def values(self) -> list[bytes]:
        """Which messages these are."""
        return [push.value for pushes in self.pushes for push in pushes]


class Commits:
    """One committer's side of the history. With `keys`, its messages have so many: then each is a
    line of its own, because a topic that grows may have one of an attempt before another."""

    def __init__(
        self, history: History, world: World, stream: str, who: str, keys: int = 0
    ) -> None:
        self._history = history
        self._world = world
        self._stream = stream
        self._who = who
        self._keys = keys
        self._count = 0

    def begin(self, stages: int) -> Attempt:
        """An attempt at the next number, as far as anybody knows, or at one that was used."""
        told = [each.told.number for each in self._mine() if each.told is not None]
        number = max(told, default=-1) + 1
        if self._world.chance(0.15):
            number = max(number - self._world.between(1, 3), 0)
        attempt = Attempt(self._stream, number)
        for _ in range(stages):
            self._count += 1
            line = f"{self._stream}:{self._who}:{self._count}"
            count = self._world.between(1, 6)
            attempt.pushes.append([self._push(f"{line}:{row}", line, row) for row in range(count)])
        self._history.attempts.append(attempt)
        return attempt

    def _mine(self) -> Iterable[Attempt]:
        return (each for each in self._history.attempts if each.stream == self._stream)

    def _push(self, name: str, line: str, row: int) -> Push:
        key = None
        if self._keys:
            key = b"key-%d" % self._world.between(0, self._keys - 1)
            line, row = name, 0
        push = Push(self._stream, name.encode(), key, line, row, self._world.now_us)
        return self._history.push(push)

    def bytes_of(self, pushes: Sequence[Push]) -> list[bytes]:
        """What is staged for these."""
        return [message(push.value.decode(), self._world.between(20, 300)) for push in pushes]

    def told(self, attempt: Attempt, publication: Publication) -> None:
        """How it ended. With a higher number than its own nobody knows: it may have been
        published before that one, and the answer lost."""
        attempt.told = publication
        outcome: bool | None = publication.outcome == "published"
        if publication.number != attempt.number:
            outcome = None
        for push in (push for pushes in attempt.pushes for push in pushes):
            push.stored, push.done_us = outcome, self._world.now_us


@dataclass(slots=True)
class Hold:
    """A reservation, as all who read it saw it: its messages by shard and position."""

    queue: str
    number: int
    asked_us: int
    messages: dict[tuple[int, int], Delivery] = field(default_factory=dict)
    complete: bool = False  # somebody has read all of it
    changed: list[str] = field(default_factory=list)
    released: bool = False  # somebody has asked for that


class Holds:
    """The history of the reservations of one queue."""

    def __init__(self, history: History, world: World, queue: str, level: str) -> None:
        self._history = history
        self._world = world
        self._queue = queue
        self._level = level

    @property
    def next(self) -> int:
        """The next number, as far as anybody knows."""
        sealed = [n for (queue, n), hold in self._history.holds.items() if queue == self._queue
                  and (hold.complete or hold.messages)]  # fmt: skip
        return max(sealed, default=0) + 1

    def asked(self, number: int) -> Hold:
        """Somebody asks for a reservation."""
        hold = Hold(self._queue, number, self._world.now_us)
        return self._history.holds.setdefault((self._queue, number), hold)

    def found_nothing(self, hold: Hold) -> None:
        """There was no reservation with this number; by now another may have read it."""
        at = hold.queue, hold.number
        if not hold.complete and self._history.holds.get(at) is hold:
            del self._history.holds[at]

    def read(self, hold: Hold, found: Sequence[LeasedMessage]) -> None:
        """Somebody has read the whole reservation."""
        places = {(each.shard, each.position): each for each in found}
        for place, each in places.items():
            known = hold.messages.get(place)
            if known is None and not hold.complete:
                hold.messages[place] = known = self._delivery(hold, each)
                self._history.deliveries.append(known)
            if known is None or known.value != name_of(each.value):
                hold.changed.append(f"{name_of(each.value)!r} is new at {place}")
        missing = [d.value for place, d in hold.messages.items() if place not in places]
        hold.changed += [f"{value!r} is missing" for value in missing]
        hold.complete = True

    def _delivery(self, hold: Hold, each: LeasedMessage) -> Delivery:
        return Delivery(
            self._queue, name_of(each.value), each.shard, each.position, each._granted.grant,
            each.deliveries, self._level, f"reservation {hold.number}", hold.asked_us,
            self._world.now_us, FOREVER_US,
        )  # fmt: skip

    def ending(self, numbers: Iterable[int], op: str) -> list[tuple[Hold, Settlement]]:
        """Somebody ends reservations."""
        noted: list[tuple[Hold, Settlement]] = []
        for number in numbers:
            hold = self._history.holds.get((self._queue, number))
            if hold is None:
                continue
            hold.released = hold.released or op == "nack"
            for delivery in hold.messages.values():
                settlement = Settlement(op, self._world.now_us)
                delivery.settlements.append(settlement)
                noted.append((hold, settlement))
        return noted

    def ended(self, noted: Iterable[tuple[Hold, Settlement]]) -> None:
        """It was answered. Whether a reservation was acknowledged that somebody gave back, the
        answer does not say."""
        for hold, settlement in noted:
            settlement.done_us = self._world.now_us
            if settlement.op == "nack" or not hold.released:
                settlement.accepted = True

    def through(self, number: int) -> list[int]:
        """All numbers up to one."""
        return [n for queue, n in self._history.holds if queue == self._queue and n <= number]
