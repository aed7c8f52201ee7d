"""The public surface: what is exported, and that both shells offer the same."""

from __future__ import annotations

import inspect

import pytest

import penstock
from penstock import aio, consumers, tasks

TWINS = [
    (penstock.Fabric, aio.AsyncFabric),
    (penstock.Queue, aio.AsyncQueue),
    (penstock.Topic, aio.AsyncTopic),
    (penstock.Table, aio.AsyncTable),
    (penstock.Transaction, aio.AsyncTransaction),
    (penstock.Message, aio.AsyncMessage),
    (penstock.Delivery, aio.AsyncDelivery),
    (penstock.DeadLetters, aio.AsyncDeadLetters),
    (penstock.NamedProducer, aio.AsyncNamedProducer),
    (penstock.QueueStage, aio.AsyncQueueStage),
    (penstock.TopicStage, aio.AsyncTopicStage),
    (penstock.TopicConsumer, aio.AsyncTopicConsumer),
    (penstock.Consumer, aio.AsyncConsumer),
    (penstock.BatchConsumer, aio.AsyncBatchConsumer),
    (penstock.PartitionBatches, aio.AsyncPartitionBatches),
    (penstock.TaskApp, aio.AsyncTaskApp),
    (penstock.TaskResults, aio.AsyncTaskResults),
]


@pytest.mark.parametrize(
    "module", [penstock, aio, consumers, tasks], ids=lambda module: module.__name__
)
def test_what_is_exported_is_there_and_sorted(module):
    assert all(hasattr(module, name) for name in module.__all__)
    assert sorted(module.__all__) == sorted(set(module.__all__))


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def shown(kind: type, name: str) -> list[tuple[str, object]]:
    parameters = inspect.signature(getattr(kind, name)).parameters.values()
    return [(each.name, each.default) for each in parameters][1:]


@pytest.mark.parametrize(("blocking", "asynchronous"), TWINS)
def test_both_shells_have_the_same_names_and_arguments(blocking, asynchronous):
    assert public(blocking) == public(asynchronous)
    for name in public(blocking):
        if callable(getattr(blocking, name)):
            assert shown(blocking, name) == shown(asynchronous, name), name


def test_futures_of_tasks_have_the_same_names_and_arguments():
    # The blocking one is also a future of the standard library, which has more.
    assert public(aio.AsyncTaskFuture) <= public(penstock.TaskFuture)
    for name in ("result", "exception", "cancel", "done", "cancelled", "add_done_callback"):
        assert shown(penstock.TaskFuture, name) == shown(aio.AsyncTaskFuture, name), name


@pytest.mark.parametrize("kind", [kind for twins in TWINS for kind in twins])
def test_everything_public_is_documented(kind):
    bare = [name for name in public(kind) if not inspect.getdoc(getattr(kind, name))]
    assert bare == []


def test_operations_keep_their_names_in_the_shells():
    assert penstock.Queue.push.__name__ == "push"
    assert "durable" in (penstock.Queue.push.__doc__ or "")
    assert list(inspect.signature(penstock.Queue.push).parameters)[1] == "value"
