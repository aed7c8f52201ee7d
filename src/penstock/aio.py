"""Penstock for asyncio: `from penstock import aio`, then `await aio.connect(…)`."""

from __future__ import annotations

from penstock.client.aio import AsyncFabric, AsyncSession, AsyncTransaction, Connecting, connect
from penstock.client.aio_loops import (
    AsyncBatchConsumer,
    AsyncConsumer,
    AsyncPartitionBatches,
    AsyncTopicConsumer,
    AsyncWatcher,
)
from penstock.client.aio_messages import AsyncDelivery, AsyncMessage
from penstock.client.aio_stages import AsyncQueueStage, AsyncTopicStage
from penstock.client.aio_streams import (
    AsyncDeadLetters,
    AsyncNamedProducer,
    AsyncQueue,
    AsyncTable,
    AsyncTopic,
)
from penstock.consumers.aio_group import AsyncConsumerGroup as ConsumerGroup
from penstock.embedded import open_async as open
from penstock.tasks.aio_app import AsyncTaskApp
from penstock.tasks.aio_results import AsyncTaskResults
from penstock.tasks.futures import AsyncTaskFuture

__all__ = [
    "AsyncBatchConsumer",
    "AsyncConsumer",
    "AsyncDeadLetters",
    "AsyncDelivery",
    "AsyncFabric",
    "AsyncMessage",
    "AsyncNamedProducer",
    "AsyncPartitionBatches",
    "AsyncQueue",
    "AsyncQueueStage",
    "AsyncSession",
    "AsyncTable",
    "AsyncTaskApp",
    "AsyncTaskFuture",
    "AsyncTaskResults",
    "AsyncTopic",
    "AsyncTopicConsumer",
    "AsyncTopicStage",
    "AsyncTransaction",
    "AsyncWatcher",
    "Connecting",
    "ConsumerGroup",
    "connect",
    "open",
]
