"""Folding what the log says of a queue: leases, and what became of messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from penstock.core.changes import Change, Given, read_changes, read_grants
from penstock.core.lost import changes_lost, gives_lost, missed
from penstock.core.records import Kind

if TYPE_CHECKING:
    from penstock.core.shard import Shard

T = TypeVar("T", Given, Change)


def replay_queue(shard: Shard, kind: int, meta: bytes, number: int, now_us: int) -> None:
    """Folds a record of leases or changes. If records before it are lost, what does not fit any
    more does not keep the rest of it from being folded; it is raised after that."""
    if kind == Kind.GRANT:
        stream, grants = read_grants(meta)
        shard.invisible.discard(number)
        if stream in shard.streams:
            _fold(shard, grants, lambda given: _granted(shard, stream, given, now_us))
        return
    stream, changes = read_changes(meta)
    if stream in shard.streams:
        _fold(shard, changes, lambda change: _changed(shard, stream, change, now_us))


def _fold(shard: Shard, items: list[T], fold: Callable[[T], None]) -> None:
    failure: AssertionError | LookupError | None = None
    for item in items:
        try:
            fold(item)
        except (AssertionError, LookupError) as error:
            if not shard.torn:
                raise
            failure = failure or error
    if failure is not None:
        raise failure


def _granted(shard: Shard, stream: int, given: Given, now_us: int) -> None:
    queue, end = shard.queue(stream), given.position + given.span
    if shard.torn and (count := missed(queue, end)):
        shard.damaged.append((stream, 0, end - count, count))
    if not gives_lost(queue, given, shard.torn):
        queue.granted(given, now_us)


def _changed(shard: Shard, stream: int, change: Change, now_us: int) -> None:
    queue = shard.queue(stream)
    if not changes_lost(queue, change, shard.torn):
        queue.changed(change, now_us)
