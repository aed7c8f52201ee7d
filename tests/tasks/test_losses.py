"""Tasks that could not be sent: those who depend on them end as if they had failed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest
from tests.tasks import functions
from tests.tasks.tiny_worker import TinyWorker

import penstock
from penstock.errors import InvalidError, LimitError, PenstockError, UnavailableError
from penstock.tasks import losses
from penstock.tasks.app import TaskApp
from penstock.tasks.envelope import read_outcome
from penstock.tasks.errors import TaskCancelledError, TaskFailedError, TaskSkippedError
from penstock.tasks.link import TaskLink
from penstock.tasks.names import streams_of
from penstock.tasks.outbox import Shipment

WAIT_S = 60.0


class Refusing:
    """A link that refuses to send some shipments, once it is told to go on."""

    def __init__(self, link: TaskLink, refuses: Callable[[Shipment], PenstockError | None]) -> None:
        self._push = link._push
        self._refuses = refuses
        self.begun = threading.Semaphore(0)
        self.go_on = threading.Event()
        link._push = self.push  # type: ignore[method-assign]

    async def push(self, shipment: Shipment) -> None:
        self.begun.release()
        await asyncio.to_thread(self.go_on.wait, WAIT_S)
        error = self._refuses(shipment)
        if error is not None:
            raise error
        await self._push(shipment)


def refuse_roots(shipment: Shipment) -> PenstockError | None:
    return None if shipment.terms.held else LimitError("the queue is full")


def submit_family(app: TaskApp) -> dict[str, penstock.TaskFuture[object]]:
    parent = app.submit(functions.square, 3)
    child = app.submit(functions.square, parent)
    skipped = app.submit(functions.square, parent, on_failure="skip")
    grandchild = app.submit(functions.square, child)
    survivor = app.submit(functions.echo, grandchild, on_failure="run")
    return {
        "parent": parent, "child": child, "skipped": skipped, "grandchild": grandchild,
        "survivor": survivor,
    }  # fmt: skip


def check_family(family: dict[str, penstock.TaskFuture[object]]) -> None:
    with pytest.raises(LimitError, match="the queue is full"):
        family["parent"].result(WAIT_S)
    for name in ("child", "grandchild"):
        with pytest.raises(TaskFailedError, match="depends on failed"):
            family[name].result(WAIT_S)
    with pytest.raises(TaskSkippedError):
        family["skipped"].result(WAIT_S)


def test_children_that_the_queue_holds(fabric: penstock.Fabric) -> None:
    """They are on their way, or there, when their parent is refused."""
    app = fabric.tasks()
    link = Refusing(app._link, refuse_roots)
    parent = app.submit(functions.square, 3)
    child = app.submit(functions.square, parent)
    grandchild = app.submit(functions.square, child)
    for _ in range(2):
        assert link.begun.acquire(timeout=WAIT_S), "parent and child are on their way"
    link.go_on.set()
    with pytest.raises(LimitError):
        parent.result(WAIT_S)
    for each in (child, grandchild):
        with pytest.raises(TaskFailedError, match="depends on failed"):
            each.result(WAIT_S)
    late = app.submit(functions.square, parent)
    with pytest.raises(TaskFailedError, match="depends on failed"):
        late.result(WAIT_S)
    assert fabric.queue(streams_of("default").queue, create=False).stats()["messages"] == 0


def test_children_that_were_not_sent(
    fabric: penstock.Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.tasks.link._UNDER_WAY", 1)  # so that they wait for their parent
    app = fabric.tasks()
    link = Refusing(app._link, refuse_roots)
    family = submit_family(app)
    link.go_on.set()
    check_family(family)
    with TinyWorker(fabric) as worker:
        assert "failed" in str(family["survivor"].result(WAIT_S))
    assert worker.ran == ["tests.tasks.functions:echo"]
    results = fabric.table(streams_of("default").results)
    stored = results.get(family["grandchild"].id)
    assert stored is not None
    assert read_outcome(stored).status == 1, "others who depend on it find that out, too"


def test_a_table_that_cannot_be_reached_is_waited_for(
    fabric: penstock.Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(losses, "_PAUSE_S", 0.001)
    app = fabric.tasks()
    Refusing(app._link, refuse_roots).go_on.set()
    results, refused = app._link._losses._results, list[bytes]()
    put = results.put

    async def reluctant(key: bytes, *args: object, **options: object) -> int:
        if len(refused) < 3:
            refused.append(key)
            raise UnavailableError("not now")
        return await put(key, *args, **options)  # type: ignore[arg-type]

    results.put = reluctant  # type: ignore[method-assign, assignment]
    parent = app.submit(functions.square, 3)
    with pytest.raises(LimitError):
        parent.result(WAIT_S)
    with pytest.raises(TaskFailedError):
        app.submit(functions.square, parent).result(WAIT_S)
    assert refused == [parent.id] * 3


def test_everything_is_refused(fabric: penstock.Fabric, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.tasks.link._UNDER_WAY", 1)
    app = fabric.tasks()
    link = Refusing(app._link, lambda _: InvalidError("no"))
    family = submit_family(app)
    link.go_on.set()
    for name in ("parent", "survivor"):
        with pytest.raises(InvalidError, match="no"):
            family[name].result(WAIT_S)
    for name in ("child", "grandchild", "skipped"):
        assert family[name].exception(WAIT_S) is not None
    assert app._link.outbox.empty


def test_children_of_a_task_that_was_taken_back(
    fabric: penstock.Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.tasks.link._UNDER_WAY", 1)
    app = fabric.tasks()
    link = Refusing(app._link, lambda _: None)
    app.post(functions.square, 1, keep=0)  # under way: what comes next is not sent yet
    parent = app.submit(functions.square, 3, priority=1)
    child = app.submit(functions.square, parent)
    assert parent.cancel()
    with pytest.raises(TaskCancelledError):
        parent.result(WAIT_S)
    with pytest.raises(TaskFailedError, match="depends on failed"):
        child.result(WAIT_S)
    link.go_on.set()


def test_on_an_event_loop(fabric: penstock.Fabric) -> None:
    async def main() -> None:
        async with fabric._asynchronous() as twin:
            app = await twin.tasks()
            Refusing(app._link, refuse_roots).go_on.set()
            parent = await app.submit(functions.square, 3)
            child = await app.submit(functions.square, parent)
            with pytest.raises(LimitError):
                await parent.result(WAIT_S)
            with pytest.raises(TaskFailedError):
                await child.result(WAIT_S)

    asyncio.run(main())
