"""Sessions: requests, and ids.

In a cluster an id names the session's home shard, so that anybody can find it.

A node that stands alone counts its sessions from 1 on: those ids are below all of a cluster.
"""

from __future__ import annotations

from penstock.wire.request import ColdRequest

_OF_CLUSTER = 1 << 62
_NUMBER_BITS = 46  # of the log number under which the session began


def session_id(shard: int, number: int) -> int:
    """The id of the session that a record of its home shard begins."""
    return _OF_CLUSTER | shard << _NUMBER_BITS | number


def home_of(session: int) -> int | None:
    """The home shard of a session; None if it is one of a node that stood alone."""
    if session < _OF_CLUSTER:
        return None
    return (session - _OF_CLUSTER) >> _NUMBER_BITS


class SessionOpen(ColdRequest):
    """A session: entries bound to it go when it ends. Answer: int, its id. In a cluster it lives in
    a shard that the client chooses."""

    ttl_ms: int
    shard: int = -1


class SessionKeep(ColdRequest):
    """Keep a session alive. Answer: bool, False if it has ended."""

    session: int


class SessionClose(ColdRequest):
    """End a session now. Answer: bool."""

    session: int
