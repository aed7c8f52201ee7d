"""Operations of tables, written once for both shells (see `steps`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from penstock.client.holding import mark_of
from penstock.client.inputs import check_version, key_bytes, milliseconds
from penstock.client.ops_fabric import stream_stats
from penstock.client.producer import Producer, shard_of
from penstock.client.requests import Request, Resend, Subscription
from penstock.client.sequenced import SequencedRequest, answer_of
from penstock.client.spread import scan_owners
from penstock.client.state import TableState
from penstock.client.steps import Steps, ask, body_of, decoder
from penstock.errors import InvalidError, PenstockError, TooLargeError
from penstock.wire.buffers import Buffer
from penstock.wire.frames import Verb, frame
from penstock.wire.limits import MAX_TABLE_KEY_BYTES, MAX_TABLE_VALUE_BYTES
from penstock.wire.messages import (
    Delete,
    Entry,
    Event,
    Get,
    Put,
    Remove,
    Scan,
    Watch,
    pack,
)

PAGE = 1000
T = TypeVar("T")

_read_int = decoder(int)
_read_bool = decoder(bool)
_read_entry = decoder(Entry | None)
_read_entries = decoder(list[Entry])
_read_event = decoder(Event)


class HasId(Protocol):
    """A session of either shell."""

    @property
    def id(self) -> int:
        """As the node knows it."""


def _key(key: bytes | str) -> bytes:
    return key_bytes(key, MAX_TABLE_KEY_BYTES)


def _value(value: bytes) -> bytes:
    if not isinstance(value, bytes):
        raise InvalidError(f"a value must be bytes, not {type(value).__name__}")
    if len(value) > MAX_TABLE_VALUE_BYTES:
        raise TooLargeError(
            f"a value of {len(value):,} bytes; the limit of a table is {MAX_TABLE_VALUE_BYTES:,}"
        )
    return value


class WriteRequest(SequencedRequest):
    """A write of an entry. One number of a lane of its own, taken on the shard of the key, makes a
    resend harmless."""

    __slots__ = ("_producer", "_write")

    def __init__(self, producer: Producer, write: Put | Remove) -> None:
        shard = shard_of(write.key, producer.shards)
        super().__init__(Verb.CALL, [], Resend.MARKED, shard=shard)
        self._unsent()
        self._producer = producer
        self._write = write

    def parts(self) -> list[Buffer]:
        """Takes the number and packs the write."""
        lane = self._lane_to_use(self._producer.free_lane, self.shard)
        self._write.producer, self._write.sequence = lane.producer, lane.next
        packed = pack(self._write)
        self._take(lane, 1)
        return [packed]

    def answered(self, answer: bytearray) -> None:
        """Others may use the lane."""
        super().answered(answer)
        self._give_back()

    def refused(self, error: PenstockError) -> None:
        """Others may use the lane; it knows itself whether it is still of use."""
        super().refused(error)
        self._give_back()

    def _give_back(self) -> None:
        if self._lane is not None:
            self._producer.give_back(self.shard, self._lane)

    def again(self) -> WriteRequest:
        """The same write, under a new number."""
        return WriteRequest(self._producer, self._write)


def _written(table: TableState, write: Put | Remove, read: Callable[[Buffer], T]) -> Steps[T]:
    answer = yield from answer_of(WriteRequest(table._producer, write))
    return read(body_of(answer))


def put(
    table: TableState,
    key: bytes | str,
    value: bytes,
    *,
    if_version: int | None = None,
    ttl: float | None = None,
    session: HasId | None = None,
    mark: str = "ok",
) -> Steps[int]:
    """Writes an entry; its version, durable when it returns.

    `if_version`: only if the entry has this version (0: only if it is absent), else ConflictError.
    `ttl`: the entry goes after so many seconds. `session`: it goes when the session ends. `mark`:
    `ok`, `failed` or `skipped`, which is told to messages that are held until it exists.
    """
    ttl_ms = 0 if ttl is None else max(milliseconds("ttl", ttl), 1)
    owner = 0 if session is None else session.id
    chosen = mark_of(mark)
    version = check_version(if_version)
    write = Put(table.info.id, _key(key), _value(value), version, ttl_ms, owner, mark=chosen)
    return _written(table, write, _read_int)


def append(table: TableState, key: bytes | str, value: bytes) -> Steps[int]:
    """Adds to the end of an entry's value, or creates it; its version, durable when it returns."""
    write = Put(table.info.id, _key(key), _value(value), append=True)
    return _written(table, write, _read_int)


def entry(table: TableState, key: bytes | str) -> Steps[Entry | None]:
    """Value and version of an entry; None if there is none."""
    packed = _key(key)
    shard = shard_of(packed, table._producer.shards)
    return ask(Get(table.info.id, packed), _read_entry, shard)


def get(table: TableState, key: bytes | str) -> Steps[bytes | None]:
    """The value of an entry; None if there is none."""
    found = yield from entry(table, key)
    return None if found is None else found.value


def delete(table: TableState, key: bytes | str, if_version: int | None = None) -> Steps[bool]:
    """Deletes an entry; whether it was there. ConflictError if it has another version."""
    return _written(table, Remove(table.info.id, _key(key), check_version(if_version)), _read_bool)


def scan(
    table: TableState, prefix: bytes | str, after: bytes | None, values: bool = True
) -> Steps[list[Entry]]:
    """The next page of entries whose key has a prefix, in the order of keys; empty at the end.

    A page may be short although there are more: the node bounds its bytes too.
    """
    packed, routes = _key(prefix), table._routes

    def page_after(key: bytes | None) -> Scan:
        return Scan(table.info.id, packed, key, PAGE, values)

    if routes is None:
        return ask(page_after(after), _read_entries)
    return scan_owners(routes, page_after, _read_entries, after, PAGE)


def scan_all(table: TableState, prefix: bytes | str, values: bool = True) -> Steps[list[Entry]]:
    """All pages."""
    found: list[Entry] = []
    after = None
    while page := (yield from scan(table, prefix, after, values)):
        found += page
        after = page[-1].key
    return found


def stats(table: TableState) -> Steps[dict[str, Any]]:
    """Figures of the table."""
    return stream_stats(table)


def drop(table: TableState) -> Steps[bool]:
    """Deletes the table and all its entries; whether it was there."""
    return ask(Delete("table", table.name, table.info.namespace), _read_bool)


class WatchSubscription(Subscription):
    """Events of a watch. What happened while the connection was lost is reported as lost."""

    __slots__ = ()

    def __init__(self, table: TableState, prefix: bytes) -> None:
        body = pack(Watch(table.info.id, prefix))
        super().__init__(Request(Verb.CALL, [body], Resend.ANEW))

    def renewed(self) -> None:
        """Events may have been missed."""
        self.arrived(bytearray(frame(Verb.EVENT, self.id, 0, pack(Event([], lost=True)))))

    def request_for(self, part: Subscription) -> Request:
        """The same of every node."""
        return Request(Verb.CALL, self.request.parts(), Resend.ANEW)


class WatchState:
    """What a watcher knows: enough to find what it missed when events were lost."""

    def __init__(self, table: TableState, prefix: bytes | str) -> None:
        self._table = table
        self._prefix = _key(prefix)
        self._versions: dict[bytes, int] = {}
        self.subscription = WatchSubscription(table, self._prefix)

    def baseline(self) -> Steps[None]:
        """Learns what is there when the watch starts."""
        yield from self._changes()

    def changes(self, event: bytearray) -> Steps[list[Entry]]:
        """The changes that an EVENT frame tells of."""
        told: Event = _read_event(body_of(event))
        for each in told.entries:
            if each.version:
                self._versions[each.key] = each.version
            else:
                self._versions.pop(each.key, None)
        if not told.lost:
            return told.entries
        return told.entries + (yield from self._changes())

    def _changes(self) -> Steps[list[Entry]]:
        present = yield from scan_all(self._table, self._prefix)
        found = [each for each in present if self._versions.get(each.key) != each.version]
        versions = {each.key: each.version for each in present}
        gone = [Entry(key, b"", 0) for key in self._versions if key not in versions]
        self._versions = versions
        return found + gone
