"""The tasks of `make dag`: each notes what it saw, and makes a value of those of its parents."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import NoReturn

from penstock.cli.graphing.graph import INSTEAD, value_of
from penstock.cli.graphing.ledger import ENDED, FOLDER, RAISED, Ledger
from penstock.tasks.declare import task
from penstock.tasks.envelope import Status
from penstock.tasks.errors import TaskError, TaskSkippedError

RETRIES = 30  # every kill of its worker is an attempt, too
BACKOFF_S = 0.05
MARK = "run "  # in the text of an error, before the name of the run

Result = list[int]  # value, and the run that it is from

_lock = threading.Lock()
_ledgers: list[Ledger] = []


class MeantToFailError(Exception):
    """Says which run it was."""

    def __init__(self, run: int) -> None:
        super().__init__(f"{MARK}{run}")


@task(retries=RETRIES, backoff=BACKOFF_S)
def combine(number: int, work_ms: float, parents: list[Result | TaskError]) -> Result:
    """Succeeds."""
    run = _begin(number, parents)
    return _end(number, run, work_ms, parents)


@task(retries=RETRIES, backoff=BACKOFF_S)
def flaky(number: int, work_ms: float, parents: list[Result | TaskError], raises: int) -> Result:
    """Fails so often, whoever runs it, and then succeeds."""
    run = _begin(number, parents)
    for time_number in range(raises):
        if _is_first(f"{number}-{time_number}"):
            _raise(number, run)
    return _end(number, run, work_ms, parents)


@task(retries=1, backoff=BACKOFF_S)
def doomed(number: int, parents: list[Result | TaskError]) -> Result:
    """Fails."""
    _raise(number, _begin(number, parents))


def _ledger() -> Ledger:
    with _lock:
        if not _ledgers:
            _ledgers.append(Ledger.from_environment())
        return _ledgers[0]


def _begin(number: int, parents: list[Result | TaskError]) -> int:
    return _ledger().begin(number, [each[1] if isinstance(each, list) else 0 for each in parents])


def _end(number: int, run: int, work_ms: float, parents: list[Result | TaskError]) -> Result:
    time.sleep(work_ms / 1000)
    value = value_of(number, [_value(each) for each in parents])
    _ledger().note(ENDED, run, number)
    return [value, run]


def _value(parent: Result | TaskError) -> int:
    if isinstance(parent, list):
        return parent[0]
    return INSTEAD[Status.SKIPPED if isinstance(parent, TaskSkippedError) else Status.FAILED]


def _is_first(name: str) -> bool:
    """Whether nobody, in any process, has asked for this name before."""
    path = Path(os.environ[FOLDER]) / f"{name}.raised"
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def _raise(number: int, run: int) -> NoReturn:
    _ledger().note(RAISED, run, number)
    raise MeantToFailError(run)
