"""Calls that are answered later; and workers that wait so for a gang, or did not long ago."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from penstock.core.kernel import Timer
from penstock.wire.frames import Verb

MAX_PARKED_WORKERS = 10_000  # of one queue
MAX_SEEN = 2 * MAX_PARKED_WORKERS
SEEN_US = 300_000_000  # who has not parked for so long counts as gone


class Asker:
    """A parked call, such as where messages of a queue are. Whoever keeps it is told when it is
    over, be it that it is answered, cancelled, or that its connection is gone."""

    __slots__ = ("_left", "_over", "connection", "request", "timer")

    verb = int(Verb.CALL)

    def __init__(self, connection: int, request: int, left: Callable[[], None]) -> None:
        self.connection = connection
        self.request = request
        self.timer: Timer | None = None
        self._over = False
        self._left = left

    @property
    def over(self) -> bool:
        """Whether nobody waits for an answer any more."""
        return self._over

    @over.setter
    def over(self, over: bool) -> None:
        left = over and not self._over
        self._over = over
        if left:
            self._left()


class ParkedWorker(Asker):
    """A worker that waits for a gang. Not logged: it is over with its connection."""

    __slots__ = ("address", "worker")

    def __init__(
        self, connection: int, request: int, worker: str, address: str,
        left: Callable[[], None],
    ) -> None:  # fmt: skip
        super().__init__(connection, request, left)
        self.worker = worker
        self.address = address


class Parking:
    """The parked workers of one queue, the longest waiting first. A worker is there once."""

    __slots__ = ("_seen", "waiting")

    def __init__(self) -> None:
        self.waiting: dict[str, ParkedWorker] = {}
        self._seen: dict[str, int] = {}  # worker: when it last parked; the longest ago first

    def enter(
        self, connection: int, request: int, worker: str, address: str, now_us: int
    ) -> ParkedWorker:
        """A worker parks, behind all others. It must not be there."""

        def left() -> None:
            del self.waiting[worker]

        parked = ParkedWorker(connection, request, worker, address, left)
        self.waiting[worker] = parked
        self._seen.pop(worker, None)
        self._seen[worker] = now_us
        if len(self._seen) > MAX_SEEN:
            del self._seen[next(iter(self._seen))]
        return parked

    def take(self, count: int) -> list[ParkedWorker]:
        """The first workers leave."""
        taken = list(islice(self.waiting.values(), count))
        for parked in taken:
            parked.over = True
        return taken

    def seen(self, now_us: int) -> int:
        """How many workers have parked here lately."""
        while self._seen and self._seen[oldest := next(iter(self._seen))] <= now_us - SEEN_US:
            del self._seen[oldest]
        return len(self._seen)
