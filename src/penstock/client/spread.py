"""Calls that concern several nodes of a cluster: each is asked for its part, answers are joined.

Written once for both shells (see `steps`). What moves while it is asked for is asked for again of
the node that has it then, within the deadline of a call.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import merge
from itertools import islice, takewhile
from typing import Any, NamedTuple, TypeVar

from penstock.client.producer import shard_of
from penstock.client.requests import Pending, Request, Resend
from penstock.client.routing import Routes
from penstock.client.steps import Finish, FinishAny, Start, Steps, body_of
from penstock.errors import (
    ClosedError,
    DeadlineError,
    MovedError,
    ProtocolError,
    UnavailableError,
)
from penstock.wire.buffers import Buffer
from penstock.wire.frames import Verb
from penstock.wire.messages import Entry, pack
from penstock.wire.messages import Request as Call

T = TypeVar("T")
_LARGEST = ("oldest_ms", "queues", "topics", "tables", "damaged_shards")  # not sums, when joined


class Told(NamedTuple):
    """What one node answered about some shards."""

    node: int
    shards: list[int]
    value: Any


def ask_owners(
    routes: Routes,
    shards: Iterable[int],
    call: Call | Callable[[list[int]], Call],
    read: Callable[[Buffer], Any],
    within_s: float | None = None,
) -> Steps[list[Told]]:
    """Asks every owner of these shards once, all at the same time: the same of each, or what `call`
    makes of its shards. DeadlineError if one does not answer in time; with `within_s`, those that
    do not answer so soon are left out instead."""
    ends_s = time.monotonic() + (routes.timeout_s if within_s is None else within_s)
    left, told = list(dict.fromkeys(shards)), []
    while left:
        if time.monotonic() > ends_s:
            if within_s is not None:
                break
            raise DeadlineError(f"{len(left)} shards had no owner to be asked in time")
        started: list[tuple[int, list[int], Pending]] = []
        asked, left = routes.groups(left), []
        for node, group in asked.items():
            question = call(group) if callable(call) else call
            request = Request(Verb.CALL, [pack(question)], Resend.MARKED)
            request.node = node
            try:
                pending: Pending = yield Start(request)
            except MovedError:
                left += group
            except UnavailableError as error:
                if within_s is None or isinstance(error, ClosedError):
                    raise
            else:
                started.append((node, group, pending))
        for node, group, pending in started:
            yield FinishAny([pending], max(ends_s - time.monotonic(), 0.0))
            if not pending.done:
                if within_s is not None:
                    continue
                raise DeadlineError(f"node {node} did not answer in time")
            try:
                answer: bytearray = yield Finish(pending)
            except MovedError:
                left += group
            except UnavailableError as error:
                if within_s is None or isinstance(error, ClosedError):
                    raise
            else:
                told.append(Told(node, group, read(body_of(answer))))
    return told


def ask_all(routes: Routes, call: Call, read: Callable[[Buffer], Any]) -> Steps[dict[int, Any]]:
    """Asks every node that owns shards; the last answer of each."""
    shards = range(len(routes.map.shards))
    told = yield from ask_owners(routes, shards, call, read)
    return {each.node: each.value for each in told}


def for_each(
    routes: Routes,
    items: Sequence[tuple[int, Any]],
    call: Callable[[list[Any]], Call],
    read: Callable[[Buffer], Any],
    within_s: float | None = None,
) -> Steps[list[Any]]:
    """Asks about items, given with their shards: an answer for each, in the order given. None for
    those of nodes that did not answer `within_s`, if that is given.

    ProtocolError if a node answers for more or fewer than it was asked about.
    """
    by_shard: dict[int, list[int]] = {}
    for at, (shard, _) in enumerate(items):
        by_shard.setdefault(shard, []).append(at)

    def places(shards: list[int]) -> Iterator[int]:
        return (at for shard in shards for at in by_shard[shard])

    def question(shards: list[int]) -> Call:
        return call([items[at][1] for at in places(shards)])

    told = yield from ask_owners(routes, by_shard, question, read, within_s)
    answers: list[Any] = [None] * len(items)
    for each in told:
        asked = list(places(each.shards))
        if len(each.value) != len(asked):
            text = f"node {each.node} answered for {len(each.value)} things instead of {len(asked)}"
            raise ProtocolError(text)
        for at, answer in zip(asked, each.value, strict=True):
            answers[at] = answer
    return answers


def join_figures(parts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Figures of several nodes as those of one: counts are added, the rest is that of the first."""
    joined: dict[str, Any] = {}
    for part in parts:
        for name, value in part.items():
            known = joined.get(name)
            if known is None:
                joined[name] = value
            elif isinstance(value, int | float) and not isinstance(value, bool):
                joined[name] = max(known, value) if name in _LARGEST else known + value
    return joined


def own_entries(routes: Routes, node: int, page: Iterable[Entry]) -> list[Entry]:
    """Those that the node owns: it may have copies of others, which are not the last word."""
    shards = len(routes.map.shards)
    return [each for each in page if routes.owner(shard_of(each.key, shards)) == node]


def merge_pages(pages: Sequence[tuple[bytes | None, list[Entry]]], limit: int) -> list[Entry]:
    """One page in the order of keys, of one from each node: the last key that it told of (None: it
    has no more), and the entries that count. Nothing is left out between them."""
    ends = [last for last, _ in pages if last is not None]
    found = merge(*(entries for _, entries in pages), key=lambda entry: entry.key)
    if not ends:
        return list(found)
    safe = min(ends)  # beyond it, one of the nodes may have more
    return list(islice(takewhile(lambda entry: entry.key <= safe, found), limit))


def scan_owners(
    routes: Routes,
    call: Callable[[bytes | None], Call],
    read: Callable[[Buffer], list[Entry]],
    after: bytes | None,
    limit: int,
) -> Steps[list[Entry]]:
    """The next page of a table's entries after a key; empty at the end."""
    shards = range(len(routes.map.shards))
    while True:
        version = routes.version
        told = yield from ask_owners(routes, shards, call(after), read)
        pages = []
        for each in told:
            last = each.value[-1].key if each.value else None
            pages.append((last, own_entries(routes, each.node, each.value)))
        if routes.version != version:
            continue  # shards may have moved from one that was asked late to one asked early
        page = merge_pages(pages, limit)
        ends = [last for last, _ in pages if last is not None]
        if page or not ends:
            return page
        after = min(ends)
