"""Submissions on their way out: what was submitted meanwhile is sent together. No I/O here."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol

from penstock.errors import PenstockError
from penstock.tasks.blobs.blob import Large
from penstock.tasks.envelope import TaskOutcome
from penstock.wire.buffers import Buffer

MOST_TASKS = 20_000  # unsent, or sent and not confirmed
MOST_BYTES = 32 << 20
SHIPMENT_TASKS = 8_000
SHIPMENT_BYTES = 4 << 20


class Sink(Protocol):
    """Whoever waits for tasks. Each task ends with one call of `settle` or `fail`."""

    @property
    def reads_later(self) -> bool:
        """Whether it reads large values itself, when it needs them."""

    def settle(self, task: bytes, outcome: TaskOutcome, large: Sequence[Buffer] = ()) -> bool:
        """A task has ended; `large` are the values that its result refers to. Whether `settled` is
        to be called, once, when all of a reply is in."""

    def settled(self) -> None:
        """Everything that came together has been taken in."""

    def fail(self, task: bytes, error: PenstockError) -> None:
        """No outcome will come: the task could not be sent, or nobody listens any more."""


class Terms(NamedTuple):
    """How tasks are pushed: only those with the same terms are sent together."""

    priority: int = 0
    delay_s: float = 0.0
    named: bool = False  # pushed under the task's id, which the caller has chosen
    held: bool = False  # until the tasks have ended that it depends on
    members: int = 0  # of a gang; 0: it is none


PLAIN = Terms()


class Dependence(NamedTuple):
    """What a task waits for in the queue, and what becomes of it if that does not succeed."""

    parents: list[bytes]
    on_failure: str
    fallback: TaskOutcome
    """Its outcome if it never runs."""
    reply: int
    keep_ms: int


class Parcel:
    """Tasks that were submitted by one call, ready to be pushed."""

    __slots__ = (
        "bytes", "counted", "dependence", "keep_ms", "large", "sink", "tasks", "terms", "values",
    )  # fmt: skip

    def __init__(
        self,
        tasks: list[bytes],
        values: list[bytes],
        sink: Sink | None,
        terms: Terms = PLAIN,
        dependence: Dependence | None = None,
        keep_ms: int = 0,
    ) -> None:
        self.tasks = tasks
        self.values = values
        self.sink = sink  # None: nobody waits
        self.terms = terms
        self.dependence = dependence
        self.keep_ms = keep_ms  # that outcomes are kept, for tasks that depend on them
        self.large: list[Large] = []  # arguments that are to be stored before
        self.bytes = sum(map(len, values))
        self.counted = False  # by the outbox, as waiting or under way

    def add(self, task: bytes, value: bytes) -> None:
        """One more task, before the parcel is offered."""
        self.tasks.append(task)
        self.values.append(value)
        self.bytes += len(value)

    def add_large(self, large: Large | None) -> None:
        """Large arguments of the last task, if it has some."""
        if large is not None:
            self.large.append(large)
            self.bytes += large[0].size


class Shipment(NamedTuple):
    """Parcels with the same terms that are pushed together."""

    terms: Terms
    parcels: list[Parcel]

    @property
    def values(self) -> list[bytes]:
        """What is pushed."""
        if len(self.parcels) == 1:
            return self.parcels[0].values
        return [value for parcel in self.parcels for value in parcel.values]

    @property
    def tasks(self) -> list[bytes]:
        """The tasks' ids, in the order of `values`."""
        return [task for parcel in self.parcels for task in parcel.tasks]


class Outbox:
    """A bounded buffer between those who submit and whoever sends. Threads may share it.

    The sender takes shipments until there is none, and rests. Whoever adds a parcel to a resting
    outbox is told to wake the sender. The bound is soft by one parcel.
    """

    def __init__(self, most_tasks: int = MOST_TASKS, most_bytes: int = MOST_BYTES) -> None:
        self._most_tasks = most_tasks
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._waiting: deque[Parcel] = deque()
        self._tasks = 0  # waiting or under way
        self._bytes = 0
        self._resting = True
        self._for_room: list[Callable[[], object]] = []
        self._for_empty: list[Callable[[], object]] = []

    @property
    def full(self) -> bool:
        """Whether whoever submits should wait for room."""
        return self._tasks >= self._most_tasks or self._bytes >= self._most_bytes

    @property
    def empty(self) -> bool:
        """Whether everything was sent and confirmed, or has failed."""
        return self._tasks == 0

    def add(self, parcel: Parcel) -> bool:
        """Takes a parcel in; whether the sender rests and must be woken."""
        with self._lock:
            self._waiting.append(parcel)
            self._count(parcel)
            wake, self._resting = self._resting, False
            return wake

    def begin(self, parcel: Parcel) -> None:
        """A parcel is sent past the sender: it counts as under way until it is `finished`."""
        with self._lock:
            self._count(parcel)

    def _count(self, parcel: Parcel) -> None:
        parcel.counted = True
        self._tasks += len(parcel.tasks)
        self._bytes += parcel.bytes

    def take(self) -> Shipment | None:
        """What is to be sent next: the oldest parcel, and those behind it that can go along. With
        None the sender rests."""
        with self._lock:
            if not self._waiting:
                self._resting = True
                return None
            parcels = [self._waiting.popleft()]
            terms = parcels[0].terms
            tasks, size = len(parcels[0].tasks), parcels[0].bytes
            while self._waiting and self._waiting[0].terms == terms:
                tasks += len(self._waiting[0].tasks)
                size += self._waiting[0].bytes
                if tasks > SHIPMENT_TASKS or size > SHIPMENT_BYTES:
                    break
                parcels.append(self._waiting.popleft())
            return Shipment(terms, parcels)

    def finished(self, shipment: Shipment) -> None:
        """A shipment is confirmed, or has failed: its room is free."""
        with self._lock:
            for parcel in shipment.parcels:
                self._release(parcel)
            told = self._told()
        for tell in told:
            tell()

    def withdraw(self, task: bytes) -> Parcel | None:
        """Takes a task back that was submitted alone and has not been sent; None if it has been."""
        with self._lock:
            found = next((each for each in self._waiting if each.tasks == [task]), None)
            if found is None:
                return None
            self._waiting.remove(found)
            self._release(found)
            told = self._told()
        for tell in told:
            tell()
        return found

    def take_dependents(self, lost: Iterable[bytes]) -> list[Parcel]:
        """Takes back what was not sent and cannot succeed any more, as it depends on these tasks,
        or on others that are taken back."""
        gone, taken = set(lost), list[Parcel]()
        with self._lock:
            kept: deque[Parcel] = deque()
            for parcel in self._waiting:  # parents are submitted before their children
                dependence = parcel.dependence
                if dependence and dependence.on_failure != "run" and not gone.isdisjoint(
                    dependence.parents
                ):
                    gone.update(parcel.tasks)
                    taken.append(parcel)
                    self._release(parcel)
                else:
                    kept.append(parcel)
            self._waiting = kept
            told = self._told()
        for tell in told:
            tell()
        return taken

    def when_room(self, tell: Callable[[], object]) -> None:
        """Has `tell` called once, as soon as there is room: maybe at once, maybe from the sender's
        thread."""
        with self._lock:
            if self.full:
                self._for_room.append(tell)
                return
        tell()

    def forget_room(self, tell: Callable[[], object]) -> None:
        """Nobody waits for room with this any more."""
        with self._lock, suppress(ValueError):
            self._for_room.remove(tell)

    def when_empty(self, tell: Callable[[], object]) -> None:
        """As `when_room`, once nothing is waiting or under way."""
        with self._lock:
            if not self.empty:
                self._for_empty.append(tell)
                return
        tell()

    def _release(self, parcel: Parcel) -> None:
        if parcel.counted:
            parcel.counted = False
            self._tasks -= len(parcel.tasks)
            self._bytes -= parcel.bytes

    def _told(self) -> list[Callable[[], object]]:
        told: list[Callable[[], object]] = []
        if not self.full:
            told, self._for_room = self._for_room, []
        if self.empty:
            told += self._for_empty
            self._for_empty = []
        return told
