"""What a task set is made of, and how tasks and those who wait for them are named."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from penstock.client.inputs import check_name, id_bytes
from penstock.errors import InvalidError

REPLY_PARTITIONS = 64
REPLY_RETENTION_S = 3600.0
CLIENT_BYTES = 8
TASK_BYTES = 16
NOBODY = -1  # instead of a partition: nobody waits for the outcome
CANCEL_PREFIX = b"cancel/"  # of the control table's entries, each a task's id
_NUMBER_BYTES = TASK_BYTES - CLIENT_BYTES


class TaskStreams(NamedTuple):
    """The names of the streams of one task set."""

    queue: str
    """Tasks, those that are held among them."""
    replies: str
    """Topic: outcomes on their way to whoever waits. Key: the task's id."""
    results: str
    """Table: outcomes that are kept. Key: the task's id."""
    gangs: str
    """Queue of gangs."""
    control: str
    """Table: schedules, cancels, members of gangs, tokens of rates."""
    blobs: str
    """Table: pieces of values that are too large for a message."""


def streams_of(task_set: str) -> TaskStreams:
    """The streams of a task set; InvalidError or TooLargeError if it cannot be a name."""
    queue = f"tasks.{check_name(task_set)}"
    longest = check_name(f"{queue}.replies")
    others = [f"{queue}.{each}" for each in ("results", "gangs", "control", "blobs")]
    return TaskStreams(queue, longest, *others)


def task_id_of(client: bytes, number: int) -> bytes:
    """The id of a client's task of this number."""
    return client + number.to_bytes(_NUMBER_BYTES, "big")


def named_task_id(name: str) -> bytes:
    """The id of a task that the caller has named: the same name is the same task."""
    return hashlib.blake2b(id_bytes(name), digest_size=TASK_BYTES).digest()


def shown(task: bytes) -> str:
    """A task's id as people see and type it."""
    return task.hex()


def client_of(task: bytes) -> bytes:
    """The client that has made this id; of a named task, bytes that are nobody's."""
    return task[:CLIENT_BYTES]


def reply_partition(client: bytes) -> int:
    """Where outcomes for a client are published."""
    if len(client) != CLIENT_BYTES:
        raise InvalidError(f"a client's id has {CLIENT_BYTES} bytes, not {len(client)}")
    return int.from_bytes(client, "big") % REPLY_PARTITIONS


def cancel_key(task: bytes) -> bytes:
    """The entry of the control table that asks for a task to be cancelled."""
    return CANCEL_PREFIX + task
