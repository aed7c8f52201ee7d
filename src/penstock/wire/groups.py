"""Requests and answers about groups: offsets with states, and claims."""

from __future__ import annotations

import msgspec

from penstock.wire.request import ColdRequest


class Commit(ColdRequest, omit_defaults=True):
    """Commit the offsets of a group: (partition, next offset to read, claim or 0). Answer: None.
    `states`: none, or one for each offset, which it replaces; empty: no state any more."""

    stream: int
    group: str
    offsets: list[tuple[int, int, int]]
    states: list[bytes] = msgspec.field(default_factory=list)


class Committed(ColdRequest, omit_defaults=True):
    """Answer: list of the committed offset, or None, per partition; of all, or of those given, in
    their order."""

    stream: int
    group: str
    partitions: list[int] | None = None


class Claim(ColdRequest):
    """Claim a partition for a group member, or renew. Answer: ClaimInfo. An owner is one life of
    one process: if it has the partition already, it gets its token again."""

    stream: int
    partition: int
    group: str
    owner: str
    lease_ms: int
    token: int = 0  # of the claim to renew


class ClaimInfo(msgspec.Struct):
    """Who has a partition. `token` is 0 unless it is the asker; it grows with every owner."""

    owner: str
    token: int


class Unclaim(ColdRequest, omit_defaults=True):
    """Give a partition up. Answer: bool. `to`: only this one may claim it for `reserve_ms`."""

    stream: int
    partition: int
    group: str
    token: int
    to: str = ""
    reserve_ms: int = 0


class Renew(ColdRequest):
    """Claims of one owner, (partition, token), last their whole lease again. Nothing is logged.
    Answer: list[bool], whether each is still the owner's."""

    stream: int
    group: str
    owner: str
    claims: list[tuple[int, int]]


class Claims(ColdRequest, omit_defaults=True):
    """How a group stands. Answer: list[ClaimStatus]; of all partitions, or of those given, in
    their order. With `states`, of at most `MAX_STATES` partitions."""

    stream: int
    group: str
    partitions: list[int] | None = None
    states: bool = False


class ClaimStatus(msgspec.Struct, frozen=True):
    """How a group stands in a partition: who has it, and how far it has come."""

    owner: str  # empty: nobody
    token: int  # 0: nobody ever had it
    left_ms: int  # of the lease, or of the reservation; 0: it ran out
    reserved: str  # who alone may claim it, as long as nobody has it and time is left
    offset: int | None  # the committed one
    lag: int  # messages from there on, or from the first if nothing is committed
    age_ms: int  # since the batch arrived in which the first of those is; 0 if there is none
    state: bytes = b""  # committed with the offset; empty also if it was not asked for
