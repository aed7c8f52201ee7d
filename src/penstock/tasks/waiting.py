"""Who waits for which task, and what an outcome means to them. No I/O here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.errors import PenstockError, ProtocolError
from penstock.tasks.envelope import Status, TaskOutcome, read_failure, read_outcome
from penstock.tasks.errors import (
    TaskCancelledError,
    TaskFailedError,
    TaskOutcomeError,
    TaskSkippedError,
    TaskTimeoutError,
)
from penstock.tasks.names import client_of, shown
from penstock.tasks.outbox import Sink

_TIMEOUT = f"{TaskTimeoutError.__module__}.{TaskTimeoutError.__qualname__}"


class Waiting:
    """The tasks of one client that have no outcome yet.

    Outcomes come in on one thread; tasks are added on any. A task ends once: whatever else comes
    for it is nobody's.
    """

    def __init__(self, client: bytes) -> None:
        self._client = client
        self._sinks: dict[bytes, Sink] = {}

    def __len__(self) -> int:
        return len(self._sinks)

    def add(self, tasks: Iterable[bytes], sink: Sink) -> None:
        """Has `sink` told of these tasks. Before they are sent: an outcome may come at once."""
        self._sinks.update(dict.fromkeys(tasks, sink))

    def remove(self, task: bytes) -> Sink | None:
        """Nobody is told of this task any more; who would have been."""
        return self._sinks.pop(task, None)

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
            if _settle(sink, task, value):
                told.add(sink)
        for sink in told:
            sink.settled()
        return count

    def fail(self, tasks: Iterable[bytes], error: PenstockError) -> None:
        """No outcome of these tasks will come."""
        for task in tasks:
            sink = self._sinks.pop(task, None)
            if sink is not None:
                sink.fail(task, error)

    def fail_all(self, error: PenstockError) -> None:
        """No outcome will come at all."""
        self.fail(list(self._sinks), error)


def _settle(sink: Sink, task: bytes, value: bytes) -> bool:
    try:
        outcome = read_outcome(value)
    except PenstockError as error:
        sink.fail(task, error)
        return False
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
    kind = TaskTimeoutError if failure.kind == _TIMEOUT else TaskFailedError
    attempts = "" if outcome.attempt < 2 else f" {outcome.attempt} times, the last time"
    where = f"{attempts} on {outcome.worker or 'a worker'}"
    return kind(
        f"{what} failed{where}: {failure.kind}: {failure.text}",
        remote_type=failure.kind,
        remote_text=failure.text,
        remote_traceback=failure.traceback,
    )
