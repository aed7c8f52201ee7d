"""Outcomes that are committed together: one that cannot be takes none of the others with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.tasks.worker.making import job

from penstock.client.aio import AsyncFabric
from penstock.client.aio_messages import AsyncDelivery
from penstock.errors import ConflictError, LeaseLostError, NotFoundError, TooLargeError
from penstock.tasks.envelope import Status
from penstock.tasks.streams import OpenStreams
from penstock.tasks.worker.completing import Completer, Over
from penstock.tasks.worker.figures import Figures
from penstock.tasks.worker.jobs import Job

TASKS = 9


class OneRow:
    """A delivery of one message."""

    def __init__(self) -> None:
        self.buried = False

    def __len__(self) -> int:
        return 1

    def dead(self, rows: Sequence[int]) -> None:
        assert rows == [0]
        self.buried = True


class Transaction:
    """Refuses to commit what is wrong, and all that comes with it."""

    def __init__(self, wrong: dict[AsyncDelivery, Exception], old: bool = False) -> None:
        """`old`: the cluster has nodes that know of no marks."""
        self._wrong = wrong
        self._old = old
        self._acked: list[AsyncDelivery] = []
        self._marks: list[str] = []

    def ack(self, delivery: AsyncDelivery, rows: Sequence[int] | None) -> None:
        self._acked.append(delivery)

    dead = ack

    def put(self, table: Any, key: bytes, value: bytes, ttl: float, mark: str) -> None:
        self._marks.append(mark)

    async def commit(self) -> None:
        await asyncio.sleep(0)
        if self._old and set(self._marks) != {"ok"}:
            raise ConflictError("not all nodes of the cluster know of marks")
        for delivery in self._acked:
            if delivery in self._wrong:
                raise self._wrong[delivery]


class Settled:
    """What became of tasks that were over together."""

    def __init__(self, wrong: dict[int, Exception], failed: Sequence[int] = ()) -> None:
        """`failed`: those that did not succeed, and are kept; then the cluster is an old one."""
        self._failed = failed
        jobs = [job(keep_ms=1000 if failed else 0) for _ in range(TASKS)]
        rows = [OneRow() for _ in jobs]
        told: list[Job] = []
        self.figures = Figures()
        asyncio.run(self._run(jobs, rows, {rows[at]: each for at, each in wrong.items()}, told))
        assert sorted(each.number for each in told) == [each.number for each in jobs], (
            "a job is told of once, or its lease is extended for ever"
        )
        self.buried = [at for at, each in enumerate(rows) if each.buried]

    async def _run(
        self, jobs: list[Job], rows: list[OneRow], wrong: dict[OneRow, Exception],
        told: list[Job],
    ) -> None:  # fmt: skip
        new: Callable[[], Any] = lambda: Transaction(cast("Any", wrong), bool(self._failed))  # noqa: E731
        fabric = SimpleNamespace(transaction=new, _connection=SimpleNamespace(closed=False))
        streams = cast("OpenStreams", SimpleNamespace(results=None))
        completer = Completer(cast("AsyncFabric", fabric), streams, self.figures, told.extend)
        over = [
            Over(each, cast("AsyncDelivery", row), self._status(at), b"outcome")
            for at, (each, row) in enumerate(zip(jobs, rows, strict=True))
        ]
        completer.add(over)
        await completer.finish()

    def _status(self, at: int) -> Status:
        return Status.FAILED if at in self._failed else Status.DONE


def test_one_that_came_too_late_is_refused_and_the_others_are_committed() -> None:
    settled = Settled({3: LeaseLostError("late")})
    assert (settled.figures.done, settled.figures.refused) == (TASKS - 1, 1)


@pytest.mark.parametrize("bad", [0, 4, TASKS - 1])
def test_one_that_nobody_takes_is_a_dead_letter_and_the_others_are_committed(bad: int) -> None:
    """It would be run again, and refused again, for ever."""
    settled = Settled({bad: TooLargeError("too large")})
    assert settled.figures.done == TASKS - 1
    assert settled.buried == [bad]


def test_both_at_once() -> None:
    settled = Settled({0: TooLargeError("too large"), 5: LeaseLostError("late")})
    assert (settled.figures.done, settled.figures.refused) == (TASKS - 2, 1)
    assert settled.buried == [0]


def test_the_other_half_is_told_of_too() -> None:
    settled = Settled({0: LeaseLostError("late"), 1: NotFoundError("gone"), 2: ValueError("odd")})
    assert (settled.figures.done, settled.figures.refused) == (TASKS - 3, 1)
    assert settled.buried == [2]


def test_what_cannot_be_committed_for_lack_of_a_table_is_left_to_run_again() -> None:
    settled = Settled({at: NotFoundError("no table") for at in range(TASKS)})
    assert settled.figures.done == 0
    assert settled.buried == []


def test_a_cluster_with_older_nodes_gets_outcomes_without_marks() -> None:
    """They know of nobody who depends on a task; to drop its outcome would run it again."""
    settled = Settled({6: LeaseLostError("late")}, failed=[2, 6, 7])
    figures = settled.figures
    assert (figures.done, figures.failed, figures.refused) == (TASKS - 3, 2, 1)
    assert settled.buried == []
