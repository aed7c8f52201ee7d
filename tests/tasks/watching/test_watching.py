"""The whole of it on a real fabric: tasks in every state, and workers that come and go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from tests.node.test_cluster import wait_for
from tests.tasks.watching import shop
from tests.tasks.watching.harness import LONG_S, OwnWorker, tells

from penstock.client.blocking import Fabric
from penstock.errors import NotFoundError
from penstock.tasks.aio_app import AsyncTaskApp
from penstock.tasks.watching.reports import WorkerReport
from penstock.tasks.watching.shells import TaskWatcher

StartWorker = Callable[..., OwnWorker]


def test_a_task_that_is_done_tells_of_its_way(fabric: Fabric, start_worker: StartWorker) -> None:
    start_worker()
    with fabric.tasks() as app:
        parents = [app.submit(shop.price, item) for item in (1, 2)]
        child = app.submit(shop.total, parents)
        assert child.result(LONG_S) == 30
        status = app.status(child)
        assert (status.state, status.attempt, status.children) == ("done", 1, [])
        assert status.parents == [each.id for each in parents]
        names = ["submitted", "ready", "leased", "begun", "ended", "settled"]
        assert [stage.name for stage in status.stages] == names
        times = [stage.at_us for stage in status.stages]
        assert times == sorted(times)
        settled = [app.status(each).stages[-1].at_us for each in parents]
        assert times[1] == max(settled)
        assert app.status(parents[0]).children == [child.id]
        assert app.explain(child).state == "done"


def test_unkept_outcomes_are_found_where_their_caller_reads_them(
    fabric: Fabric, start_worker: StartWorker
) -> None:
    start_worker()
    with fabric.tasks() as app:
        unkept = app.submit(shop.price, 4, keep=0)
        unkept.result(LONG_S)
        assert app.status(unkept).state == "done"
        assert app.status("nobody has submitted this").state == "unknown"


def test_tasks_that_wait_say_for_what(fabric: Fabric, start_worker: StartWorker) -> None:
    with fabric.tasks() as app:
        first = app.submit(shop.wait)
        second = app.submit(shop.price, 1)
        child = app.submit(shop.total, [first, second])
        later = app.submit(shop.price, 1, delay=3600)
        app.flush()
        assert app.explain(first).reasons[0].why == "no worker is there"
        assert app.status(second).state == "ready"
        told = app.explain(child)
        assert told.state == "held"
        assert told.reasons[0].why == "it waits for the outcome of 2 tasks"
        assert "is ready" in told.reasons[0].advice
        assert app.explain(later).reasons[0].why.startswith("it was submitted with a delay of 1 h")
        assert app.status(first).children == [child.id]
        start_worker(1)
        assert shop.begun.wait(LONG_S)
        wait_for(lambda: tells(app.workers(), first.id))
        assert app.status(first).state == "running"
        assert "has been running it" in app.explain(first).reasons[0].why
        shop.go_on.set()


def test_tasks_that_wait_for_a_rate_or_for_a_gang(
    fabric: Fabric, start_worker: StartWorker
) -> None:
    start_worker()
    with fabric.tasks() as app:
        app.submit(shop.seldom).result(LONG_S)
        second = app.submit(shop.seldom)
        wait_for(lambda: app.status(second).state == "delayed")
        (told,) = app.explain(second).reasons
        assert told.why.startswith("the rate of tests.tasks.watching.shop:seldom is used up; ")
        assert "; starts are free in " in told.why
        gang = app.gang(shop.price, size=3)
        app.flush()
        status = app.status(gang)
        assert (status.state, status.function) == ("ready", "tests.tasks.watching.shop:price")
        (told,) = app.explain(gang).reasons
        assert told.why == "it is a gang of 3, and 0 workers wait for a gang"


def test_failures_and_dead_tasks(fabric: Fabric, start_worker: StartWorker) -> None:
    start_worker()
    with fabric.tasks() as app, TaskWatcher(fabric) as watcher:
        bad = app.submit(shop.refuse, 13)
        child = app.submit(shop.total, [bad])
        assert bad.exception(LONG_S) is not None
        assert child.exception(LONG_S) is not None
        status = app.status(bad)
        assert (status.state, status.dead, status.retries) == ("failed", True, 0)
        assert status.error is not None
        assert "no price for item 13" in status.error.traceback
        assert status.children == [child.id]
        (told,) = app.explain(child).reasons
        assert "never ran" in told.why
        assert bad.id.hex() in told.advice
        ((call, outcome),) = watcher.dead()
        assert (call.task, outcome) == (bad.id, bad.outcome)


def test_the_graph_around_a_task(fabric: Fabric, start_worker: StartWorker) -> None:
    start_worker()
    with fabric.tasks() as app:
        parents = [app.submit(shop.price, item) for item in range(3)]
        middle = app.submit(shop.total, parents)
        last = app.submit(shop.total, [middle])
        waits = app.submit(shop.wait)
        held = app.submit(shop.total, [last, waits])
        last.exception(LONG_S)
        graph = app.graph(last)
        assert set(graph.nodes) == {each.id for each in (*parents, middle, last, held)}
        assert graph.nodes[held.id].state == "held"
        assert graph.children(middle.id) == [last.id]
        small = app.graph(last, limit=2)
        assert len(small.nodes) == 2
        assert small.more
        with pytest.raises(NotFoundError):
            app.graph(b"x" * 16)
        shop.go_on.set()


def test_workers_are_seen_while_they_are_there(fabric: Fabric, start_worker: StartWorker) -> None:
    worker = start_worker(3)
    with fabric.tasks() as app:
        assert list(app.map(shop.price, range(500)).results(LONG_S))[-1] == 4990
        waits = app.submit(shop.wait)

        def seen() -> WorkerReport | None:
            reports = [each for each in app.workers() if each.running]
            told = reports and reports[0].figures["done"] == 500 and reports[0].utilisation
            return reports[0] if told else None

        report = wait_for(seen)
        assert (report.kind, report.concurrency, report.executors) == ("thread", 3, 3)
        assert "tests.tasks.watching.shop:price" in report.functions
        assert report.running[0].task == waits.id
        assert report.utilisation <= 1
        seen_now = app.overview()
        price = next(row for row in seen_now.functions if row.function.endswith(":price"))
        assert price.attempts == 500
        assert price.waited_p99_us >= price.waited_p50_us > 0
        assert seen_now.counts["leased"] == 1
        assert seen_now.left == 500
        shop.go_on.set()
        waits.result(LONG_S)
        worker.end()
        assert app.workers() == []


def test_a_run_as_lanes(fabric: Fabric, start_worker: StartWorker) -> None:
    start_worker()
    with fabric.tasks() as app:
        list(app.map(shop.price, range(300)).results(LONG_S))
        app.submit(shop.price, 1).result(LONG_S)
        timeline = app.timeline()
        assert (timeline.tasks, timeline.failed) == (301, 0)
        assert sum(len(lane.bars) for lane in timeline.lanes) == 301
        assert 0 < timeline.utilisation <= 1
        assert app.timeline(since=-60).tasks == 0


def test_whoever_only_looks_makes_no_streams(fabric: Fabric) -> None:
    with pytest.raises(NotFoundError, match="there is no task set 'none'"):
        TaskWatcher(fabric, "none")
    assert fabric.queues() == []
    assert fabric.tables() == []


def test_the_same_on_an_event_loop(fabric: Fabric, start_worker: StartWorker) -> None:
    start_worker()

    async def look() -> None:
        async with await fabric._asynchronous() as twin:
            app: AsyncTaskApp = await twin.tasks()
            parent = await app.submit(shop.price, 3)
            child = await app.submit(shop.total, [parent])
            assert await child == 30
            assert (await app.status(child)).state == "done"
            assert (await app.explain(child)).state == "done"
            assert set((await app.graph(child)).nodes) == {parent.id, child.id}
            assert (await app.timeline()).tasks == 2
            assert (await app.overview()).left == 2
            assert len(await app.workers()) == 1

    asyncio.run(look())
