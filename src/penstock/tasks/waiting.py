"""Who waits for which task, and what an outcome means to them. No I/O here."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from penstock.errors import LimitError, PenstockError, ProtocolError
from penstock.tasks.envelope import NOT_RUN, Status, TaskOutcome, read_failure, read_outcome
from penstock.tasks.errors import (
    TaskCancelledError,
    TaskFailedError,
    TaskOutcomeError,
    TaskSkippedError,
    TaskTimeoutError,
)
from penstock.tasks.names import client_of, shown
from penstock.tasks.outbox import Sink
from penstock.wire.buffers import Buffer

MOST_WAITING = 100_000  # tasks that a client waits for, unless it is told otherwise
Fetch = Callable[[bytes, TaskOutcome], None]
_DONE = int(Status.DONE)
_TIMEOUT = f"{TaskTimeoutError.__module__}.{TaskTimeoutError.__qualname__}"


class Counts(NamedTuple):
    """How many tasks an app has submitted and waits or waited for."""

    submitted: int
    ended: int
    failed: int  # of those that have ended: without a result


class _Several:
    """All who wait for one task."""

    def __init__(self, sinks: list[Sink]) -> None:
        self.sinks = sinks

    reads_later = False

    def settle(self, task: bytes, outcome: TaskOutcome, large: Sequence[Buffer] = ()) -> bool:
        for sink in self.sinks:
            if sink.settle(task, outcome, large):
                sink.settled()
        return False

    def settled(self) -> None: ...

    def fail(self, task: bytes, error: PenstockError) -> None:
        for sink in self.sinks:
            sink.fail(task, error)


class Waiting:
    """The tasks of one client that have no outcome yet.

    Outcomes come in on one thread; tasks are added on any. A task ends once: whatever else comes
    for it is nobody's. The bound is soft by what is submitted at once.
    """

    def __init__(
        self, client: bytes, fetch: Fetch | None = None, most: int = MOST_WAITING
    ) -> None:
        """`fetch` is called with outcomes that refer to large values; once those are at hand,
        `settle` has to be. `most`: tasks that may be waited for."""
        self._client = client
        self._fetch = fetch
        self._most = most
        self._sinks: dict[bytes, Sink] = {}
        self._joining = threading.Lock()  # a task of several takes a look and a change
        self._fetched: set[bytes] = set()  # tasks whose large values are being read
        self._for_room: list[Callable[[], object]] = []
        self._ended = 0
        self._failed = 0
        self._apart = [0, 0]  # ended and failed, of those that came in on another thread

    def __len__(self) -> int:
        return len(self._sinks)

    @property
    def full(self) -> bool:
        """Whether whoever submits should wait until something has ended."""
        return len(self._sinks) >= self._most

    def when_room(self, tell: Callable[[], object]) -> None:
        """Has `tell` called as soon as there is room: maybe at once, maybe more than once, from any
        thread."""
        self._for_room.append(tell)
        if not self.full:  # looked at after it was added, as others look after they made room
            self._tell_room()

    def forget_room(self, tell: Callable[[], object]) -> None:
        """Nobody waits for room with this any more."""
        with suppress(ValueError):
            self._for_room.remove(tell)

    @property
    def counts(self) -> Counts:
        """Figures since the start."""
        apart, apart_failed = self._apart
        ended = self._ended + apart  # read first: what ends meanwhile is then counted as waiting
        return Counts(ended + len(self._sinks), ended, self._failed + apart_failed)

    def tasks(self) -> list[bytes]:
        """The ids of all tasks that somebody waits for."""
        return list(self._sinks)

    def add(self, tasks: Iterable[bytes], sink: Sink) -> None:
        """Has `sink` told of these tasks. Before they are sent: an outcome may come at once."""
        self._sinks.update(dict.fromkeys(tasks, sink))

    def join(self, task: bytes, sink: Sink) -> None:
        """As `add`, for a task that others may wait for already."""
        with self._joining:
            others = self._sinks.get(task)
            if others is None:
                self._sinks[task] = sink
            elif isinstance(others, _Several):
                self._sinks[task] = _Several([*others.sinks, sink])
            else:
                self._sinks[task] = _Several([others, sink])

    def leave(self, task: bytes, sink: Sink) -> None:
        """This one is not told of the task any more; others who wait for it are."""
        with self._joining:
            found = self._sinks.get(task)
            if found is sink:
                self._sinks.pop(task, None)
            elif isinstance(found, _Several):
                self._sinks[task] = _Several([each for each in found.sinks if each is not sink])
        self._tell_room()

    def take_in(self, keys: Sequence[bytes | None], values: Sequence[bytes]) -> int:
        """A batch of outcomes came; for how many of them somebody waited. A batch has outcomes for
        one client only: that of another is left unread."""
        first = keys[0] if keys else None
        if first is None or not (client_of(first) == self._client or first in self._sinks):
            return 0
        told: set[Sink] = set()
        count = 0
        for task, value in zip(keys, values, strict=True):
            sink = None if task is None else self._sinks.pop(task, None)
            if task is None or sink is None:
                continue
            count += 1
            if self._take(sink, task, value):
                told.add(sink)
        for sink in told:
            sink.settled()
        if self._for_room:
            self._tell_room()
        return count

    def take_apart(self, task: bytes, outcome: TaskOutcome) -> None:
        """As `take_in`, for one outcome that refers to nothing; on one other thread at a time."""
        sink = self._sinks.pop(task, None)
        if sink is not None:
            try:
                told = sink.settle(task, outcome)
            except BaseException:  # of a signal: whoever is told next finds it waiting
                self._sinks.setdefault(task, sink)
                raise
            self._apart = [self._apart[0] + 1, self._apart[1] + (outcome.status != _DONE)]
            if told:
                sink.settled()
            self._tell_room()

    def settle(self, task: bytes, outcome: TaskOutcome, large: Sequence[Buffer] = ()) -> None:
        """A task has ended, and what its result refers to is at hand."""
        self._fetched.discard(task)
        sink = self._sinks.pop(task, None)
        if sink is not None and self._settle(sink, task, outcome, large):
            sink.settled()
        self._tell_room()

    def fail(self, tasks: Iterable[bytes], error: PenstockError) -> None:
        """No outcome of these tasks will come."""
        for task in tasks:
            sink = self._sinks.pop(task, None)
            if sink is not None:
                self._ended += 1
                self._failed += 1
                self._fetched.discard(task)
                sink.fail(task, error)
        self._tell_room()

    def fail_all(self, error: PenstockError) -> None:
        """No outcome will come at all."""
        self.fail(self.tasks(), error)

    def _take(self, sink: Sink, task: bytes, value: bytes) -> bool:
        try:
            outcome = read_outcome(value)
        except PenstockError as error:
            self._ended += 1
            self._failed += 1
            sink.fail(task, error)
            return False
        if outcome.blobs and self._fetch is not None and not sink.reads_later:
            self.join(task, sink)  # it waits on, for the values
            if task not in self._fetched:
                self._fetched.add(task)
                self._fetch(task, outcome)
            return False
        return self._settle(sink, task, outcome)

    def _settle(
        self, sink: Sink, task: bytes, outcome: TaskOutcome, large: Sequence[Buffer] = ()
    ) -> bool:
        self._ended += 1
        self._failed += outcome.status != _DONE
        return sink.settle(task, outcome, large)

    def _tell_room(self) -> None:
        if self._for_room and not self.full:
            told, self._for_room = self._for_room, []
            for tell in told:
                tell()


def limit_error(patience_s: float) -> LimitError:
    """Why a task was not submitted."""
    return LimitError(
        f"too many tasks are unsent or without an outcome, and none ended within {patience_s:g} s; "
        "nothing was submitted",
        advice="Start workers, wait for results, use post or map, or raise `outstanding`.",
    )


def cancelled_error(task: bytes) -> TaskCancelledError:
    """What there is instead of the result of a task that was cancelled."""
    return TaskCancelledError(f"task {shown(task)} was cancelled")


def error_of(task: bytes, outcome: TaskOutcome) -> TaskOutcomeError | None:
    """What there is instead of a result; None if there is one. ProtocolError: unreadable."""
    if outcome.status == Status.DONE:
        return None
    what = f"task {shown(task)}" + (f" ({outcome.function})" if outcome.function else "")
    if outcome.status == Status.CANCELLED:
        return cancelled_error(task)
    if outcome.status == Status.SKIPPED:
        return TaskSkippedError(f"{what} was skipped: a task that it depends on did not succeed")
    if outcome.status != Status.FAILED:
        raise ProtocolError(f"{what} has ended with the unknown status {outcome.status}")
    failure = read_failure(outcome.result)
    if failure.kind == NOT_RUN and not outcome.attempt:
        return TaskFailedError(
            f"{what} was not run: {failure.text}", advice=TaskSkippedError.advice,
            remote_type=failure.kind, remote_text=failure.text,
        )  # fmt: skip
    kind = TaskTimeoutError if failure.kind == _TIMEOUT else TaskFailedError
    attempts = "" if outcome.attempt < 2 else f" {outcome.attempt} times, the last time"
    where = f"{attempts} on {outcome.worker or 'a worker'}"
    return kind(
        f"{what} failed{where}: {failure.kind}: {failure.text}",
        remote_type=failure.kind,
        remote_text=failure.text,
        remote_traceback=failure.traceback,
    )
