"""What wrong usage is told: which of the arguments, which of the tasks, and what to do instead."""

from __future__ import annotations

import asyncio
from collections import Counter
from concurrent.futures import Future
from typing import Any

import pandas as pd
import pytest
from tests.tasks import functions
from tests.tasks.tiny_worker import TinyWorker

import penstock
from penstock.client.dialer import Dialer
from penstock.client.transport import Transport
from penstock.client.welcome import new_hello
from penstock.errors import DeadlineError, InvalidError, UnavailableError
from penstock.tasks.codec import Codec
from penstock.tasks.errors import SerialisationError, TaskFailedError, TaskSkippedError
from penstock.tasks.futures import AsyncTaskFuture
from penstock.tasks.names import shown

WAIT_S = 60.0


class Pair(tuple[int, int]):
    """No named tuple, but more than a tuple."""


class Framed(pd.DataFrame):  # type: ignore[misc]  # pandas tells no types
    """As some libraries have them."""


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (Framed({"a": [1]}), r"a Framed .*pandas\.DataFrame\("),
        (pd.DataFrame({"a": [1, "b"]}), "a DataFrame that Arrow cannot hold: .*one type"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "a DataFrame that Arrow .*name of its own"),
        (pd.Series([1]), r"a Series .*to_numpy"),
        (pd.Timestamp(0), r"a Timestamp .*to_pydatetime"),
        (Counter("aab"), r"a Counter .*dict\("),
        (Pair([1, 2]), r"a Pair .*dataclass"),
        ((each for each in "ab"), r"a generator .*list\("),
        (Future(), r"a Future .*its result"),
        (object(), "an object .*pickle_key"),
    ],
)
def test_what_cannot_be_sent_is_told_with_what_can(value: Any, told: str) -> None:
    with pytest.raises(SerialisationError, match=told):
        Codec(bool).pack(value)


def test_a_task_that_was_not_run_names_the_one_that_failed(
    fabric: penstock.Fabric, app: penstock.TaskApp
) -> None:
    with TinyWorker(fabric):
        failed = app.submit(functions.fail, "first")
        child = app.submit(functions.square, failed)
        with pytest.raises(TaskFailedError, match=f"was not run: .*{shown(failed.id)}") as caught:
            child.result(WAIT_S)
        assert caught.value.hint == TaskSkippedError.advice
        many = [failed, *(app.submit(functions.square, each) for each in range(4))]
        with pytest.raises(TaskFailedError, match=r"one of the tasks .* and 2 more"):
            app.submit(functions.total, many).result(WAIT_S)


def test_a_policy_is_checked_without_parents_too(app: penstock.TaskApp) -> None:
    with pytest.raises(InvalidError, match="on_failure"):
        app.submit(functions.square, 1, on_failure="panic")


def test_a_future_that_is_late_says_of_what(app: penstock.TaskApp) -> None:
    future = app.submit(functions.square, 1)
    for wait in (future.result, future.exception):
        with pytest.raises(TimeoutError, match=r"functions:square .* 0\.01 s .*worker"):
            wait(0.01)

    async def late() -> None:
        never: AsyncTaskFuture[int] = AsyncTaskFuture(bytes(16), Codec(bool), None, "m:f")  # type: ignore[arg-type]
        await never.result(0.01)

    with pytest.raises(TimeoutError, match="m:f"):
        asyncio.run(late())


def test_lists_that_are_one_string_are_refused(
    fabric: penstock.Fabric, app: penstock.TaskApp
) -> None:
    with pytest.raises(InvalidError, match="allow is a list"):
        fabric.tasks("default", allow="tests")
    for wrong in ("ab", 1):
        with pytest.raises(InvalidError, match=r"are a list, not .*\[value\]"):
            app.schedules.add("nightly", functions.square, wrong, every=60)  # type: ignore[arg-type]
    assert app.schedules.all() == {}


def test_who_finds_no_node_is_told_to_look_for_one() -> None:
    def refused(seconds: float) -> Transport:
        raise UnavailableError("refused")

    with pytest.raises(DeadlineError, match=r"no connection: refused .*penstock serve"):
        Dialer(refused, new_hello("")).connect(0.0)


def test_a_future_of_another_task_set_is_refused(fabric: penstock.Fabric) -> None:
    """The queue of one would wait for a table that the other never writes."""
    here, there = fabric.tasks("here"), fabric.tasks("there")
    twin = fabric.tasks("here")
    future, posted = there.submit(functions.square, 1), there.post(functions.square, 1)
    for parent in (future, posted):
        with pytest.raises(SerialisationError, match=r"arguments\[0\]\[1\].*/there'.*/here'"):
            here.submit(functions.total, [1, parent])
        with pytest.raises(InvalidError, match="is of the task set 'default/there'"):
            here.future(parent)  # type: ignore[arg-type]
    assert twin.submit(functions.square, here.post(functions.square, 1)).state == "submitted"
