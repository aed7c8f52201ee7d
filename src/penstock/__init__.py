"""Penstock: queues, topics, tables and tasks in one durable fabric.

Names are imported when they are first used: `penstock --help` needs none of them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from penstock import errors

if TYPE_CHECKING:
    from penstock.client.blocking import Fabric, Session, Transaction, connect
    from penstock.client.blocking_loops import (
        BatchConsumer,
        Consumer,
        PartitionBatches,
        TopicConsumer,
        Watcher,
    )
    from penstock.client.blocking_messages import Delivery, Message
    from penstock.client.blocking_stages import QueueStage, TopicStage
    from penstock.client.blocking_streams import DeadLetters, NamedProducer, Queue, Table, Topic
    from penstock.client.gangs import GangSeat
    from penstock.client.holding import Hold
    from penstock.client.messages import (
        LeasedMessage,
        Receipt,
        Receipts,
        Refusal,
        SeenMessage,
        TopicMessage,
    )
    from penstock.client.stages import StageToken
    from penstock.consumers.group import ConsumerGroup
    from penstock.embedded import open_fabric as open
    from penstock.errors import PenstockError
    from penstock.tasks.app import TaskApp
    from penstock.tasks.declare import Task, task
    from penstock.tasks.executor import TaskExecutor
    from penstock.tasks.futures import TaskFuture, TaskRef
    from penstock.tasks.results import TaskResults
    from penstock.tasks.watching.shells import TaskWatcher
    from penstock.wire.batch import Batch
    from penstock.wire.growth import PartitionFamily, Split
    from penstock.wire.messages import (
        ClaimInfo,
        ClaimStatus,
        Entry,
        HeldInfo,
        Publication,
        Reservation,
        ReservedPart,
        StreamInfo,
        TxnReceipt,
    )

__all__ = [
    "Batch",
    "BatchConsumer",
    "ClaimInfo",
    "ClaimStatus",
    "Consumer",
    "ConsumerGroup",
    "DeadLetters",
    "Delivery",
    "Entry",
    "Fabric",
    "GangSeat",
    "HeldInfo",
    "Hold",
    "LeasedMessage",
    "Message",
    "NamedProducer",
    "PartitionBatches",
    "PartitionFamily",
    "PenstockError",
    "Publication",
    "Queue",
    "QueueStage",
    "Receipt",
    "Receipts",
    "Refusal",
    "Reservation",
    "ReservedPart",
    "SeenMessage",
    "Session",
    "Split",
    "StageToken",
    "StreamInfo",
    "Table",
    "Task",
    "TaskApp",
    "TaskExecutor",
    "TaskFuture",
    "TaskRef",
    "TaskResults",
    "TaskWatcher",
    "Topic",
    "TopicConsumer",
    "TopicMessage",
    "TopicStage",
    "Transaction",
    "TxnReceipt",
    "Watcher",
    "connect",
    "errors",
    "open",
    "task",
]

_HOMES = {
    "client.blocking": "Fabric Session Transaction connect",
    "client.blocking_loops": "BatchConsumer Consumer PartitionBatches TopicConsumer Watcher",
    "client.blocking_messages": "Delivery Message",
    "client.blocking_stages": "QueueStage TopicStage",
    "client.holding": "Hold",
    "client.stages": "StageToken",
    "client.blocking_streams": "DeadLetters NamedProducer Queue Table Topic",
    "client.gangs": "GangSeat",
    "client.messages": "LeasedMessage Receipt Receipts Refusal SeenMessage TopicMessage",
    "consumers.group": "ConsumerGroup",
    "embedded": "open_fabric",
    "errors": "PenstockError",
    "tasks.app": "TaskApp",
    "tasks.declare": "Task task",
    "tasks.executor": "TaskExecutor",
    "tasks.futures": "TaskFuture TaskRef",
    "tasks.results": "TaskResults",
    "tasks.watching.shells": "TaskWatcher",
    "wire.batch": "Batch",
    "wire.growth": "PartitionFamily Split",
    "wire.messages": (
        "ClaimInfo ClaimStatus Entry HeldInfo Publication Reservation ReservedPart StreamInfo "
        "TxnReceipt"
    ),
}
_home_of = {name: home for home, names in _HOMES.items() for name in names.split()}
_real_name = {"open": "open_fabric"}


def __getattr__(name: str) -> object:
    real = _real_name.get(name, name)
    if name not in __all__ or real not in _home_of:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"penstock.{_home_of[real]}"), real)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
