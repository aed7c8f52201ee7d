"""What a worker says of attempts that failed, for those who read its log."""

from __future__ import annotations

import logging
from collections.abc import Callable

from penstock.errors import ProtocolError
from penstock.tasks.envelope import Status, read_failure, read_outcome
from penstock.tasks.names import shown
from penstock.tasks.worker.jobs import Cause, Finish, Retry

MOST_TOLD = 20  # within PERIOD_US; the others are counted
PERIOD_US = 10_000_000
MAX_LINE = 300  # characters of an error

_log = logging.getLogger("penstock.worker")
_CAUSES = {
    Cause.TIMEOUT: "it took too long, and was ended",
    Cause.LOST: "its executor died, or was killed",
    Cause.LEASE: "its lease was lost, and it was ended",
}


class FailureLog:
    """A line for every attempt that failed, as far as they are few; then how many more did."""

    def __init__(self, now_us: Callable[[], int]) -> None:
        self._now_us = now_us
        self._since_us = 0
        self._told = 0
        self._untold = 0

    def add(self, effect: Finish | Retry) -> None:
        """An attempt is over; nothing is said if it did not fail."""
        if isinstance(effect, Finish) and effect.status is not Status.FAILED:
            return
        if effect.outcome is None and effect.cause is None:
            return  # its worker ends, or its executor had to for another's sake
        if not self._may_tell():
            self._untold += 1
            return
        job, again = effect.job, isinstance(effect, Retry)
        _log.warning(
            "task %s (%s) failed, attempt %d%s: %s",
            shown(job.call.task), job.call.function, job.attempt,
            ", to be tried again" if again else "", _line_of(effect),
        )  # fmt: skip

    def close(self) -> None:
        """Says what is left to say."""
        if self._untold:
            _log.warning("%d more attempts failed", self._untold)
            self._untold = 0

    def _may_tell(self) -> bool:
        now_us = self._now_us()
        if now_us - self._since_us >= PERIOD_US:
            self.close()
            self._since_us, self._told = now_us, 0
        self._told += 1
        return self._told <= MOST_TOLD


def _line_of(effect: Finish | Retry) -> str:
    if effect.outcome is None:
        assert effect.cause is not None
        return _CAUSES[effect.cause]
    try:
        failure = read_failure(read_outcome(effect.outcome).result)
    except ProtocolError:
        return "(what it says cannot be read)"
    first = failure.text.partition("\n")[0]
    line = f"{failure.kind}: {first}" if first else failure.kind
    return line if len(line) <= MAX_LINE else f"{line[:MAX_LINE]}…"
