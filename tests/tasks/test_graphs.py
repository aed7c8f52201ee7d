"""Tasks that depend on others: held by the queue, run when they may, failed along the edges."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.tasks import functions
from tests.tasks.tiny_worker import TinyWorker

import penstock
from penstock.errors import InvalidError
from penstock.tasks.errors import SerialisationError, TaskFailedError, TaskSkippedError
from penstock.tasks.names import streams_of

WAIT_S = 60.0


@pytest.fixture
def worker(fabric: penstock.Fabric, app: penstock.TaskApp) -> Iterator[TinyWorker]:
    with TinyWorker(fabric, most=7) as made:
        yield made


def test_a_future_among_the_arguments_is_waited_for_by_the_queue(
    fabric: penstock.Fabric, app: penstock.TaskApp
) -> None:
    squares = [app.submit(functions.square, each) for each in range(10)]
    total = app.submit(functions.total, squares)
    app.flush()
    queue = fabric.queue(streams_of("default").queue, create=False)
    waits = queue.held(total.id)
    assert waits is not None
    assert waits.count == 10
    with TinyWorker(fabric):
        assert total.result(WAIT_S) == sum(each * each for each in range(10))


def test_futures_may_be_deep_and_repeated(worker: TinyWorker, app: penstock.TaskApp) -> None:
    one = app.submit(functions.square, 1)
    got = app.submit(functions.echo, {"deep": [(one, one)]}, named=one).result(WAIT_S)
    assert got == [[{"deep": [(1, 1)]}], {"named": 1}]


def test_references_and_outcomes_of_others_may_be_depended_on(
    worker: TinyWorker, fabric: penstock.Fabric, app: penstock.TaskApp
) -> None:
    posted = app.post(functions.square, 3)
    chain = app.post(functions.square, posted)
    assert app.submit(functions.square, chain).result(WAIT_S) == 3**8
    app.submit(functions.square, 2, task_id="base").result(WAIT_S)
    other = fabric.tasks("default")
    assert other.submit(functions.square, other.future("base")).result(WAIT_S) == 16


def test_a_named_task_may_depend_on_others(worker: TinyWorker, app: penstock.TaskApp) -> None:
    for _ in range(2):
        parent = app.submit(functions.square, 3)
        assert app.submit(functions.square, parent, task_id="daily").result(WAIT_S) == 81
    assert worker.ran.count("tests.tasks.functions:square") == 3


def test_what_is_not_kept_cannot_be_depended_on(app: penstock.TaskApp) -> None:
    fleeting = app.submit(functions.square, 3, keep=0)
    with pytest.raises(SerialisationError, match="is not kept"):
        app.submit(functions.square, fleeting)
    kept = app.submit(functions.square, 3)
    with pytest.raises(InvalidError, match="delayed"):
        app.submit(functions.square, kept, delay=1.0)
    with pytest.raises(InvalidError, match="on_failure"):
        app.submit(functions.square, kept, on_failure="panic")
    unsent = app.map(functions.square, [kept]).results(WAIT_S)
    with pytest.raises(InvalidError, match="map takes no futures"):
        next(unsent)


def test_failure_travels_along_the_edges(worker: TinyWorker, app: penstock.TaskApp) -> None:
    failed = app.submit(functions.fail, "first")
    child = app.submit(functions.square, failed)
    grandchild = app.submit(functions.square, child, on_failure="skip")
    survivor = app.submit(functions.echo, grandchild, on_failure="run")
    with pytest.raises(TaskFailedError, match="depends on failed"):
        child.result(WAIT_S)
    with pytest.raises(TaskSkippedError):
        grandchild.result(WAIT_S)
    ((parent,), _) = survivor.result(WAIT_S)
    assert "was skipped" in parent
    assert (child.state, grandchild.state, survivor.state) == ("failed", "skipped", "done")
    assert worker.ran.count("tests.tasks.functions:square") == 0


class Node(NamedTuple):
    parents: list[int]
    fails: bool
    on_failure: str


@st.composite
def graphs(draw: st.DrawFn) -> list[Node]:
    nodes: list[Node] = []
    for number in range(draw(st.integers(1, 14))):
        earlier = st.lists(st.integers(0, number - 1), max_size=3) if number else st.just([])
        policy = st.sampled_from(["fail", "fail", "skip", "run"])
        nodes.append(Node(draw(earlier), draw(st.integers(0, 5)) == 0, draw(policy)))
    return nodes


def expected(nodes: list[Node]) -> list[tuple[str, int | None]]:
    """The model: each task after its parents, in the order in which they were made."""
    ended: list[tuple[str, int | None]] = []
    for number, node in enumerate(nodes):
        parents = [ended[parent] for parent in node.parents]
        if node.on_failure != "run" and any(state != "done" for state, _ in parents):
            ended.append(("failed" if node.on_failure == "fail" else "skipped", None))
        elif node.fails:
            ended.append(("failed", None))
        else:
            ended.append(("done", number + sum(value or 0 for _, value in parents)))
    return ended


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(graphs())
def test_any_graph_ends_as_the_model_says(
    worker: TinyWorker, app: penstock.TaskApp, nodes: list[Node]
) -> None:
    futures: list[penstock.TaskFuture[Any]] = []
    for number, node in enumerate(nodes):
        parents = [futures[parent] for parent in node.parents]
        futures.append(
            app.submit(
                functions.combine, number, parents, fails=node.fails, on_failure=node.on_failure
            )
        )
    app.wait(futures, WAIT_S)
    got = [
        (future.state, future.result() if future.state == "done" else None) for future in futures
    ]
    assert got == expected(nodes)


def test_a_wide_graph_is_held_in_bundles(worker: TinyWorker, app: penstock.TaskApp) -> None:
    roots = [app.post(functions.square, each) for each in range(200)]
    middle = [app.post(functions.square, each) for each in roots]
    assert app.submit(functions.total, middle).result(WAIT_S) == sum(each**4 for each in range(200))
    assert len(app._link.waiting) == 0, "nothing is kept here for what was posted"
