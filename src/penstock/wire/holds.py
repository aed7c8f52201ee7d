"""Messages that are held until entries of tables exist, and the parts that they fall back to."""

from __future__ import annotations

from enum import IntEnum

import msgspec

from penstock.wire.request import ColdRequest


class Mark(IntEnum):
    """What the writer of an entry says to those who wait for it."""

    OK = 0
    FAILED = 1
    SKIPPED = 2


class Policy(IntEnum):
    """What becomes of a held message when an entry that it waits for has a mark other than OK.

    FAIL and SKIP differ in what the fallback says, which the core does not read: in both cases the
    message is finished and its fallback carried out. RUN: the entry counts as any other.
    """

    FAIL = 0
    SKIP = 1
    RUN = 2


class TxnPush(msgspec.Struct, array_like=True):
    """Push or publish a batch inside a transaction."""

    stream: int
    partition: int
    shard: int
    batch: bytes


class TxnWrite(msgspec.Struct, array_like=True):
    """Put (or delete, when value is None) a table entry inside a transaction."""

    stream: int
    key: bytes
    value: bytes | None
    if_version: int | None = None
    ttl_ms: int = 0
    mark: int = Mark.OK


class TxnHold(msgspec.Struct, array_like=True):
    """Push a message under an id, held until all entries of `after` (table and key) have existed.

    `writes` and `pushes` are its fallback: carried out instead, once, if the policy or its
    time-to-live ends it before that. A message whose id is known in its queue is not stored again.
    """

    stream: int
    id: bytes
    batch: bytes
    after: list[tuple[int, bytes]] = []
    policy: int = Policy.FAIL
    writes: list[TxnWrite] = []
    pushes: list[TxnPush] = []


class Held(ColdRequest):
    """What a held message waits for; asked of the owner of its id's shard. Answer: HeldInfo, or
    None if no message of that id is held."""

    stream: int
    id: bytes


class HeldInfo(msgspec.Struct):
    """What a held message waits for: the number of entries, and the first of them, each with the
    name of its table. None of both: it is held until it is released by hand."""

    count: int
    edges: list[tuple[str, bytes]]
    policy: int
