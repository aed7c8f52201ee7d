"""Where the results of a group go: queues, topics, tables, functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from penstock.client.aio import AsyncFabric, AsyncTransaction
from penstock.consumers.calls import DeadLetter
from penstock.consumers.steps import Late, Result
from penstock.errors import InvalidError

MAX_OUTLETS = 100
FORMS = "'queue:NAME', 'topic:NAME', 'table:NAME', a function, or an Outlet"

Source = Result | Late | DeadLetter


class Record(NamedTuple):
    """Something that leaves a group: a message for a queue or topic, an entry for a table."""

    key: bytes
    value: bytes
    headers: dict[str, bytes]
    source: Source  # what it was made of
    to: str = ""

    @property
    def size(self) -> int:
        """Bytes, about."""
        return len(self.key) + len(self.value) + 64


def record_of(source: Source, partition: int) -> Record:
    """What is sent for a result, a late fragment or a dead letter."""
    if isinstance(source, Result):
        headers = {"result-id": source.id.encode()}
        return Record(source.key, source.value, headers, source, source.to)
    if isinstance(source, Late):
        fragment = source.fragment
        headers = {
            "late-partition": b"%d" % partition,
            "late-offset": b"%d" % fragment.offset,
            "late-watermark-us": b"%d" % source.watermark_us,
        }
        return Record(fragment.key, fragment.value, headers, source)
    headers = {
        "dead-partition": b"%d" % partition,
        "dead-offset": b"%d" % source.offset,
        "dead-handler": source.handler.encode(),
        "dead-error": source.error.encode()[:1000],
    }
    value = b"" if source.fragment is None else source.fragment.value
    return Record(source.key, value, headers, source)


class Outlet:
    """One place. Derive from it to deliver anywhere; such a class cannot be part of a transaction
    unless it sets `transactional` and adds to the one that it is given."""

    transactional = False

    async def open(self, fabric: AsyncFabric) -> None:
        """Called once, before anything is delivered."""

    async def deliver(self, records: Sequence[Record]) -> None:
        """Delivers records in their order; they are safe when it returns."""
        raise NotImplementedError

    def add(self, transaction: AsyncTransaction, records: Sequence[Record]) -> None:
        """Delivers records when the transaction commits."""
        raise NotImplementedError


class QueueOutlet(Outlet):
    """A queue; made if it is not there."""

    transactional = True

    def __init__(self, name: str) -> None:
        self._name = name

    async def open(self, fabric: AsyncFabric) -> None:
        self._queue = await fabric.queue(self._name)

    async def deliver(self, records: Sequence[Record]) -> None:
        await self._queue.push_many(**_columns(records))

    def add(self, transaction: AsyncTransaction, records: Sequence[Record]) -> None:
        transaction.push_many(self._queue, **_columns(records))


class TopicOutlet(Outlet):
    """A topic; made if it is not there. Results of a key keep their order."""

    transactional = True

    def __init__(self, name: str) -> None:
        self._name = name

    async def open(self, fabric: AsyncFabric) -> None:
        self._topic = await fabric.topic(self._name)

    async def deliver(self, records: Sequence[Record]) -> None:
        await self._topic.publish_many(**_columns(records))

    def add(self, transaction: AsyncTransaction, records: Sequence[Record]) -> None:
        transaction.publish_many(self._topic, **_columns(records))


class TableOutlet(Outlet):
    """A table; made if it is not there. The last result of a key is its entry."""

    transactional = True

    def __init__(self, name: str) -> None:
        self._name = name

    async def open(self, fabric: AsyncFabric) -> None:
        self._table = await fabric.table(self._name)

    async def deliver(self, records: Sequence[Record]) -> None:
        for record in records:
            await self._table.put(record.key, record.value)

    def add(self, transaction: AsyncTransaction, records: Sequence[Record]) -> None:
        for record in records:
            transaction.put(self._table, record.key, record.value)


class CallOutlet(Outlet):
    """A function of one result (or late fragment, or dead letter); it may be asynchronous."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function

    async def deliver(self, records: Sequence[Record]) -> None:
        for record in records:
            told = self._function(record.source)
            if inspect.isawaitable(told):
                await told


def _columns(records: Sequence[Record]) -> dict[str, Any]:
    return {
        "values": [record.value for record in records],
        "keys": [record.key for record in records],
        "headers": [record.headers for record in records],
    }


_KINDS: dict[str, Callable[[str], Outlet]] = {
    "queue": QueueOutlet,
    "topic": TopicOutlet,
    "table": TableOutlet,
}

Target = str | Outlet | Callable[[Any], Any]
Targets = Target | Sequence[Target] | Mapping[str, Target]


def outlet_of(target: Target) -> Outlet:
    """The outlet that is meant; InvalidError if none can be."""
    if isinstance(target, Outlet):
        return target
    if isinstance(target, str):
        kind, colon, name = target.partition(":")
        if not colon or kind not in _KINDS or not name:
            raise InvalidError(f"{target!r} is no place for results: use {FORMS}")
        return _KINDS[kind](name)
    if callable(target):
        return CallOutlet(target)
    raise InvalidError(f"{target!r} is no place for results: use {FORMS}")


class Outlets:
    """All places of one kind of record, by the names that results may give."""

    def __init__(self, targets: Targets) -> None:
        self._by_name: dict[str, list[Outlet]] = {}
        if isinstance(targets, Mapping):
            self._by_name = {name: [outlet_of(each)] for name, each in targets.items()}
            if not self._by_name:
                raise InvalidError("results need a place to go to")
            self._by_name.setdefault("", next(iter(self._by_name.values())))
        elif isinstance(targets, Sequence) and not isinstance(targets, str):
            self._by_name = {"": [outlet_of(each) for each in targets]}
        else:
            self._by_name = {"": [outlet_of(targets)]}
        if not 0 < len(self.all) <= MAX_OUTLETS:
            raise InvalidError(f"results go to 1 to {MAX_OUTLETS} places")

    @property
    def all(self) -> list[Outlet]:
        """Each of them once."""
        found = (each for outlets in self._by_name.values() for each in outlets)
        return list({id(each): each for each in found}.values())

    def route(self, records: Sequence[Record]) -> list[tuple[Outlet, list[Record]]]:
        """What each place gets, in order. InvalidError if a result names a place that is not."""
        by_name: dict[str, list[Record]] = {}
        for record in records:
            by_name.setdefault(record.to, []).append(record)
        routed: dict[int, tuple[Outlet, list[Record]]] = {}
        for name, chosen in by_name.items():
            if name not in self._by_name:
                known = ", ".join(sorted(filter(None, self._by_name))) or "no names"
                raise InvalidError(f"a result is for {name!r}; `to` has {known}")
            for outlet in self._by_name[name]:
                routed.setdefault(id(outlet), (outlet, []))[1].extend(chosen)
        return list(routed.values())
