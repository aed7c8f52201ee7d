"""Messages that wait out of line: returned, delayed, dead, held, or behind another of their key."""

from __future__ import annotations

from bisect import bisect
from collections import deque
from heapq import heappop, heappush

import xxhash

from penstock.core.runs import Run, run_of, window

# Places in a heap whose runs have left: so many are not worth a look. Whoever serves the queue
# comes across them one by one; whoever only folds its log never looks at what is first.
SPARE_PLACES = 1000


class Returned:
    """Runs that are ready out of turn, lowest position (highest priority, oldest) first."""

    __slots__ = ("_heap", "messages", "runs")

    def __init__(self) -> None:
        self.runs: dict[int, Run] = {}
        self._heap: list[int] = []
        self.messages = 0

    def add(self, run: Run) -> None:
        """The run is ready. It must not overlap another."""
        self.runs[run.position] = run
        self.messages += run.messages
        heappush(self._heap, run.position)
        if len(self._heap) > 2 * len(self.runs) + SPARE_PLACES:
            self._heap = sorted(self.runs)

    def head(self) -> int | None:
        """The position of the first run."""
        while self._heap:
            if self._heap[0] in self.runs:
                return self._heap[0]
            heappop(self._heap)
        return None

    def remove(self, position: int) -> Run | None:
        """Takes out the run that starts at the position."""
        run = self.runs.pop(position, None)
        if run is not None:
            self.messages -= run.messages
        return run

    def drop(self, start: int, span: int) -> list[Run]:
        """Takes out all messages in a range of positions."""
        dropped: list[Run] = []
        for run in _touching(self.runs, start, span):
            self.remove(run.position)
            inside, outside = _split(run, start, span)
            dropped += inside
            for rest in outside:
                self.add(rest)
        return dropped


class Delayed:
    """Runs that become ready at a time."""

    __slots__ = ("_due", "_heap", "messages", "runs")

    def __init__(self) -> None:
        self.runs: dict[int, Run] = {}
        self._due: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []
        self.messages = 0

    def add(self, run: Run, due_us: int) -> None:
        """The run waits until `due_us`."""
        self.runs[run.position] = run
        self._due[run.position] = due_us
        self.messages += run.messages
        heappush(self._heap, (due_us, run.position))
        if len(self._heap) > 2 * len(self.runs) + SPARE_PLACES:
            self._heap = sorted((due, position) for position, due in self._due.items())

    def due(self, now_us: int) -> list[Run]:
        """Takes out the runs whose time has come."""
        ready: list[Run] = []
        while self._heap and self._heap[0][0] <= now_us:
            due_us, position = heappop(self._heap)
            if self._due.get(position) == due_us:
                run = self.remove(position)
                assert run is not None
                ready.append(run)
        return ready

    def next_due(self) -> int | None:
        """When the next run becomes ready."""
        return self._heap[0][0] if self._heap else None

    def remove(self, position: int) -> Run | None:
        """Takes out the run that starts at the position."""
        run = self.runs.pop(position, None)
        if run is not None:
            del self._due[position]
            self.messages -= run.messages
        return run

    def drop(self, start: int, span: int) -> list[Run]:
        """Takes out all messages in a range of positions."""
        dropped: list[Run] = []
        for run in _touching(self.runs, start, span):
            due_us = self._due[run.position]
            self.remove(run.position)
            inside, outside = _split(run, start, span)
            dropped += inside
            for rest in outside:
                self.add(rest, due_us)
        return dropped

    def times(self) -> list[tuple[int, Run]]:
        """Every waiting run with its time, for a snapshot."""
        return [(self._due[position], run) for position, run in self.runs.items()]


def _touching(runs: dict[int, Run], start: int, span: int) -> list[Run]:
    return [run for run in runs.values() if run.position < start + span and run.end > start]


def _split(run: Run, start: int, span: int) -> tuple[list[Run], list[Run]]:
    inside = run.mask & window(start, span, run.position)
    parts = (inside, run.mask & ~inside)
    found = [run_of(run.position, part, run.deliveries) for part in parts]
    return [r for r in found[:1] if r is not None], [r for r in found[1:] if r is not None]


class KeyQueues:
    """`ordered="key"`: of every key one message is out at a time, the others wait behind it."""

    __slots__ = ("_buried", "_key", "_waiting")

    def __init__(self) -> None:
        self._key: dict[int, int] = {}  # position: hash of its key
        self._buried: dict[int, int] = {}  # the same for dead letters, which nothing waits for
        self._waiting: dict[int, deque[int]] = {}  # hash: positions, the first is out or ready

    def __len__(self) -> int:
        return len(self._key)

    def add(self, position: int, key: bytes | None) -> bool:
        """A message arrived; whether it is the first of its key, and so ready."""
        return self.add_hashed(position, xxhash.xxh3_64_intdigest(key or b""))

    def add_hashed(self, position: int, hashed: int) -> bool:
        """The same, for a key whose hash is known."""
        self._key[position] = hashed
        line = self._waiting.setdefault(hashed, deque())
        line.append(position)
        return len(line) == 1

    def finish(self, position: int) -> int | None:
        """A message is finished; the position of the next of its key, if that is ready now."""
        if self._buried.pop(position, None) is not None:
            return None
        hashed = self._key.pop(position)
        line = self._waiting[hashed]
        was_first = line[0] == position
        line.remove(position)
        if not line:
            del self._waiting[hashed]
            return None
        return line[0] if was_first else None

    def bury(self, position: int) -> int | None:
        """A message became a dead letter; as for `finish`."""
        hashed = self._key[position]
        following = self.finish(position)
        self._buried[position] = hashed
        return following

    def first_of(self, buried: int) -> int | None:
        """The first message of the key of a dead letter, if there is any."""
        line = self._waiting.get(self._buried[buried])
        return None if line is None else line[0]

    def redrive(self, position: int, passes_first: bool) -> None:
        """A dead letter comes back, to where it was among what waits of its key; or before all, if
        it passes the first, which then waits with the others, in order.

        What counts is its position, not when it came back: a push that is accepted and not yet
        visible would come before it in the log, and after it in the life of the node.
        """
        hashed = self._key[position] = self._buried.pop(position)
        line = self._waiting.setdefault(hashed, deque())
        if passes_first:
            self._waiting[hashed] = deque([position, *sorted(line)])
        else:
            line.insert(bisect(line, position, 1), position)

    def behind(self) -> list[int]:
        """Messages that wait for another of their key."""
        return [position for line in self._waiting.values() for position in list(line)[1:]]

    def snapshot(self) -> list[list[tuple[int, int]]]:
        """Every message with the hash of its key, in order, and the same of dead letters."""
        waiting = [(place, key) for key, line in self._waiting.items() for place in line]
        return [waiting, list(self._buried.items())]

    @classmethod
    def restore(cls, data: list[list[tuple[int, int]]]) -> KeyQueues:
        """The state that made this snapshot."""
        keys = cls()
        for position, hashed in data[0]:
            keys.add_hashed(position, hashed)
        keys._buried = dict(data[1])
        return keys
