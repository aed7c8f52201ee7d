"""Penstock: queues, topics and tables in one durable fabric."""

from __future__ import annotations

from penstock import errors
from penstock.client.blocking import Fabric, Session, Transaction, connect
from penstock.client.blocking_loops import (
    BatchConsumer,
    Consumer,
    PartitionBatches,
    TopicConsumer,
    Watcher,
)
from penstock.client.blocking_messages import Delivery, Message
from penstock.client.blocking_streams import DeadLetters, NamedProducer, Queue, Table, Topic
from penstock.client.messages import LeasedMessage, Receipt, Receipts, Refusal, TopicMessage
from penstock.embedded import open_fabric as open
from penstock.errors import PenstockError
from penstock.wire.batch import Batch
from penstock.wire.messages import ClaimInfo, Entry, StreamInfo, TxnReceipt

__all__ = [
    "Batch",
    "BatchConsumer",
    "ClaimInfo",
    "Consumer",
    "DeadLetters",
    "Delivery",
    "Entry",
    "Fabric",
    "LeasedMessage",
    "Message",
    "NamedProducer",
    "PartitionBatches",
    "PenstockError",
    "Queue",
    "Receipt",
    "Receipts",
    "Refusal",
    "Session",
    "StreamInfo",
    "Table",
    "Topic",
    "TopicConsumer",
    "TopicMessage",
    "Transaction",
    "TxnReceipt",
    "Watcher",
    "connect",
    "errors",
    "open",
]
