"""Requests and answers about gangs: messages that several workers are given together."""

from __future__ import annotations

import msgspec

from penstock.wire.request import ColdRequest


class Park(ColdRequest, omit_defaults=True):
    """A worker waits for a gang of a queue, under a name that no other worker has; `address` is
    told to the other members. Asked of the owner of the queue's shard. Answer: Seat, or None if
    there is no gang for it within `wait_ms`."""

    stream: int
    worker: str
    address: str = ""
    wait_ms: int = 0


class Seat(msgspec.Struct, array_like=True):
    """A place in a gang. All members have the same lease: shard, grant and position name it."""

    shard: int
    grant: int
    position: int
    attempt: int  # how often the gang has been granted, this time included
    rank: int  # 0: the manager, who extends and settles the lease
    addresses: list[str]  # of all members, by rank
    batch: bytes  # with one message, the gang's
