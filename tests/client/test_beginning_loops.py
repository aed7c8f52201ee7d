"""Blocking loops that end before they have begun: nothing of them stays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.client.connection import Connection
from penstock.client.ops_table import WatchState
from penstock.errors import DeadlineError

Begin = Callable[[penstock.Fabric], object]


@pytest.fixture
def fabric(tmp_path: Path) -> Iterator[penstock.Fabric]:
    with penstock.open(str(tmp_path / "data")) as opened:
        yield opened


def standing(fabric: penstock.Fabric) -> int:
    """Subscriptions that the connection would make anew."""
    connection: Any = fabric._connection
    return len(connection._protocol._subscriptions)


def fail(*_: object) -> Any:
    raise DeadlineError("no answer in time")


@pytest.mark.parametrize(
    "begin",
    [
        lambda fabric: next(fabric.queue("q").consume()),
        lambda fabric: next(fabric.queue("q").consume_batches()),
        lambda fabric: fabric.table("t").watch(),
    ],
    ids=["messages", "batches", "changes"],
)
def test_a_loop_whose_beginning_is_not_answered(
    fabric: penstock.Fabric, monkeypatch: pytest.MonkeyPatch, begin: Begin
) -> None:
    fabric.queue("q")
    fabric.table("t")
    finish = Connection.finish

    def unanswered(connection: Connection, pending: Any) -> bytearray:
        return finish(connection, pending) if standing(fabric) == 0 else fail()

    monkeypatch.setattr(Connection, "finish", unanswered)
    with pytest.raises(DeadlineError):
        begin(fabric)
    assert standing(fabric) == 0


def test_a_watch_that_cannot_tell_what_there_is(
    fabric: penstock.Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WatchState, "baseline", fail)
    with pytest.raises(DeadlineError):
        fabric.table("t").watch()
    assert standing(fabric) == 0
