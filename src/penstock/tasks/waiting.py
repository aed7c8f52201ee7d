"""Who waits for which task, and what an outcome means to them. No I/O here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from penstock.errors import PenstockError, ProtocolError
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

    def settle(self, task: bytes, outcome: TaskOutcome) -> bool:
        for sink in self.sinks:
            if sink.settle(task, outcome):
                sink.settled()
        return False

    def settled(self) -> None: ...

    def fail(self, task: bytes, error: PenstockError) -> None:
        for sink in self.sinks:
            sink.fail(task, error)


class Waiting:
    """The tasks of one client that have no outcome yet.

    Outcomes come in on one thread; tasks are added on any. A task ends once: whatever else comes
    for it is nobody's.
    """

    def __init__(self, client: bytes) -> None:
        self._client = client
        self._sinks: dict[bytes, Sink] = {}
        self._ended = 0
        self._failed = 0

    def __len__(self) -> int:
        return len(self._sinks)

    @property
    def counts(self) -> Counts:
        """Figures since the start."""
        ended = self._ended  # read first: what ends meanwhile is then counted as waiting
        return Counts(ended + len(self._sinks), ended, self._failed)

    def tasks(self) -> list[bytes]:
        """The ids of all tasks that somebody waits for."""
        return list(self._sinks)

    def add(self, tasks: Iterable[bytes], sink: Sink) -> None:
        """Has `sink` told of these tasks. Before they are sent: an outcome may come at once."""
        self._sinks.update(dict.fromkeys(tasks, sink))

    def join(self, task: bytes, sink: Sink) -> None:
        """As `add`, for a task that others may wait for already."""
        others = self._sinks.get(task)
        if others is None:
            self._sinks[task] = sink
        elif isinstance(others, _Several):
            self._sinks[task] = _Several([*others.sinks, sink])
        else:
            self._sinks[task] = _Several([others, sink])

    def leave(self, task: bytes, sink: Sink) -> None:
        """This one is not told of the task any more; others who wait for it are."""
        found = self._sinks.get(task)
        if found is sink:
            del self._sinks[task]
        elif isinstance(found, _Several):
            self._sinks[task] = _Several([each for each in found.sinks if each is not sink])

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
            if self._settle(sink, task, value):
                told.add(sink)
        self._ended += count
        for sink in told:
            sink.settled()
        return count

    def fail(self, tasks: Iterable[bytes], error: PenstockError) -> None:
        """No outcome of these tasks will come."""
        for task in tasks:
            sink = self._sinks.pop(task, None)
            if sink is not None:
                self._ended += 1
                self._failed += 1
                sink.fail(task, error)

    def fail_all(self, error: PenstockError) -> None:
        """No outcome will come at all."""
        self.fail(self.tasks(), error)

    def _settle(self, sink: Sink, task: bytes, value: bytes) -> bool:
        try:
            outcome = read_outcome(value)
        except PenstockError as error:
            self._failed += 1
            sink.fail(task, error)
            return False
        self._failed += outcome.status != _DONE
        return sink.settle(task, outcome)


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
