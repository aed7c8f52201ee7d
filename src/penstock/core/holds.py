"""Messages that wait for entries of tables: what the two ends of an edge know of it.

The shard of the message has a `Hold`: the edges that are left, as a set, so that it does no harm to
hear of one twice. The shard of the entry has a `Watcher` until the entry is written.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from penstock.errors import LimitError
from penstock.wire.holds import Policy, TxnPush, TxnWrite

if TYPE_CHECKING:
    from penstock.core.queue import QueueShard

MAX_HOLD_BYTES = 64 << 20  # of one queue in one shard; one message more is always let in
SPARE_WATCHERS = 1000  # of a shard: so many are not worth a look
_TABLE = struct.Struct("<I")


class Fallback(msgspec.Struct, array_like=True):
    """What is done instead of a held message: parts, and the shard of each, the writes first."""

    shards: list[int]
    writes: list[TxnWrite]
    pushes: list[TxnPush]

    def parts(self) -> Iterator[tuple[int, TxnWrite | TxnPush]]:
        """Each with its shard."""
        yield from zip(self.shards, [*self.writes, *self.pushes], strict=True)


class Waits(msgspec.Struct, array_like=True):
    """What the record of a held message says of it: shard, table and key of every entry that it
    waits for, its policy, and its fallback (packed; empty: none)."""

    after: list[tuple[int, int, bytes]]
    policy: int
    fallback: bytes


_waits = msgspec.msgpack.Decoder(Waits)
_fallback = msgspec.msgpack.Decoder(Fallback)
pack_waits = msgspec.msgpack.Encoder().encode
pack_fallback = msgspec.msgpack.Encoder().encode


def read_waits(packed: bytes) -> Waits:
    """What `pack_waits` made."""
    return _waits.decode(packed)


def check_waits(packed: bytes) -> None:
    """ValueError (msgspec's errors are such) unless it can be read, and what it falls back to."""
    if fallback := read_waits(packed).fallback:
        list(_fallback.decode(fallback).parts())


def packed_edge(table: int, key: bytes) -> bytes:
    """An edge as a hold keeps it: small, and in an order."""
    return _TABLE.pack(table) + key


class Hold:
    """One message that waits. Its edges are a sorted list: a million of these are kept."""

    __slots__ = ("coming", "edges", "failed", "fallback", "policy")

    def __init__(self, edges: Iterable[bytes], policy: int, fallback: bytes) -> None:
        self.edges = sorted(set(edges))
        self.policy = policy
        self.fallback = fallback  # packed, as nearly all of them are never looked at
        self.coming = True  # the message itself is not committed yet
        self.failed = False

    @property
    def size(self) -> int:
        """Bytes of what it waits for and falls back to."""
        return sum(map(len, self.edges)) + len(self.fallback)

    def waits_for(self, edge: bytes) -> bool:
        """Whether it is one of those that are left."""
        at = bisect_left(self.edges, edge)
        return at < len(self.edges) and self.edges[at] == edge

    def meet(self, edge: bytes) -> bool:
        """An entry exists; whether it was waited for."""
        if not self.waits_for(edge):
            return False
        del self.edges[bisect_left(self.edges, edge)]
        return True

    def pairs(self) -> Iterator[tuple[int, bytes]]:
        """Tables and keys that are left."""
        for edge in self.edges:
            (table,) = _TABLE.unpack_from(edge)
            yield table, edge[_TABLE.size :]

    def parts(self) -> Iterator[tuple[int, TxnWrite | TxnPush]]:
        """What is done instead of the message."""
        if self.fallback:
            yield from _fallback.decode(self.fallback).parts()

    def snapshot(self) -> tuple[list[bytes], int, bytes, bool, bool]:
        """Plain data for `restore`."""
        return self.edges, self.policy, self.fallback, self.coming, self.failed

    @classmethod
    def restore(cls, row: Any) -> Hold:
        """The hold that made this snapshot."""
        edges, policy, fallback, coming, failed = row
        hold = cls(edges, policy, fallback)
        hold.coming, hold.failed = coming, failed
        return hold


class Holds:
    """The holds of one queue in one shard, by the ids of their messages."""

    __slots__ = ("_holds", "bytes")

    def __init__(self) -> None:
        self._holds: dict[bytes, Hold] = {}
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._holds)

    def get(self, key: bytes | None) -> Hold | None:
        """The hold of a message, if it waits for anything."""
        return None if key is None else self._holds.get(key)

    def add(self, key: bytes, hold: Hold) -> None:
        """A message waits."""
        self._holds[key] = hold
        self.bytes += hold.size

    def meet(self, key: bytes, edge: bytes) -> Hold | None:
        """An entry exists; the hold of a message, if it was waited for."""
        hold = self._holds.get(key)
        if hold is None or not hold.meet(edge):
            return None
        self.bytes -= len(edge)
        return hold

    def fail(self, key: bytes) -> Hold | None:
        """A message will not be ready; its hold, unless that was over."""
        hold = self._holds.get(key)
        if hold is None or hold.failed:
            return None
        self.bytes -= sum(map(len, hold.edges))
        hold.edges, hold.failed = [], True
        return hold

    def drop(self, key: bytes) -> None:
        """A message does not wait any more, if it did."""
        hold = self._holds.pop(key, None)
        self.bytes -= 0 if hold is None else hold.size

    def has_room(self) -> None:
        """LimitError if so much is known of messages that wait that no more may be."""
        if self.bytes >= MAX_HOLD_BYTES:
            raise LimitError(
                f"what held messages of one shard wait for, and fall back to, has {self.bytes:,} "
                "bytes already"
            )

    def snapshot(self) -> list[Any]:
        """Plain data for `restore`."""
        return [(key, *hold.snapshot()) for key, hold in self._holds.items()]

    @classmethod
    def restore(cls, rows: Iterable[Any]) -> Holds:
        """The holds that made this snapshot."""
        holds = cls()
        for key, *row in rows:
            holds.add(key, Hold.restore(row))
        return holds


# --- fold: a queue's part in one shard. A message that is not committed yet is dealt with then ---


def began(queue: QueueShard, key: bytes, waits: Waits) -> None:
    """A message is in the log that waits for entries."""
    edges = [packed_edge(table, name) for _, table, name in waits.after]
    queue.holds.add(key, Hold(edges, waits.policy, waits.fallback))


def came(queue: QueueShard, key: bytes) -> None:
    """The message of a hold is committed, or found to be damaged."""
    hold = queue.holds.get(key)
    if hold is not None:
        hold.coming = False
        if not hold.edges:
            _let_go(queue, key, hold)


def met(queue: QueueShard, key: bytes, edge: bytes, mark: int) -> Hold | None:
    """An entry exists. The hold, if its message is finished for that, and falls back."""
    hold = queue.holds.meet(key, edge)
    if hold is None:
        return None
    if mark and hold.policy != Policy.RUN:
        return ended(queue, key)
    if not hold.edges:
        _let_go(queue, key, hold)
    return None


def ended(queue: QueueShard, key: bytes) -> Hold | None:
    """A message is finished, whatever it waits for; its hold, unless that was over."""
    hold = queue.holds.fail(key)
    if hold is not None:
        _let_go(queue, key, hold)
    return hold


def _let_go(queue: QueueShard, key: bytes, hold: Hold) -> None:
    if not hold.coming:
        queue.holds.drop(key)
        queue.unheld(key, hold.failed)


# --- the other end -----------------------------------------------------------------------------


class Watcher(NamedTuple):
    """A held message that waits for an entry: its shard, queue and id."""

    shard: int
    stream: int
    id: bytes


StillWaits = Callable[[int, bytes, Watcher], bool]  # by table and key of the entry


class Watchers:
    """Who waits for which entries of a shard that are not there yet.

    Nobody takes a watcher back whose message has ended otherwise: no record says so. Whoever knows
    which of them still wait has the others left out, now and then (`is_crowded`, `sweep`). Should
    a replay bring some of those back, they are told of their entry for nothing.
    """

    __slots__ = ("_known", "_tables", "messages")

    def __init__(self) -> None:
        self._tables: dict[int, dict[bytes, list[Watcher]]] = {}
        self.messages = 0
        self._known = 0  # how many were left when somebody last looked

    @property
    def is_crowded(self) -> bool:
        """Whether so many have come that it is time to look."""
        return self.messages > 2 * self._known + SPARE_WATCHERS

    def sweep(self, waits: StillWaits) -> None:
        """Leaves out those of whom it is known that they do not wait any more."""
        for table, keys in list(self._tables.items()):
            for key in list(keys):
                self.sweep_entry(table, key, waits)
        self._known = self.messages

    def sweep_entry(self, table: int, key: bytes, waits: StillWaits) -> None:
        """The same for those of one entry."""
        self._keep(table, key, [each for each in self.of(table, key) if waits(table, key, each)])

    def _keep(self, table: int, key: bytes, left: list[Watcher]) -> None:
        self.take(table, key)
        if left:
            self._tables.setdefault(table, {})[key] = left
            self.messages += len(left)

    def add(self, table: int, key: bytes, watcher: Watcher) -> None:
        """A message waits for an entry."""
        self._tables.setdefault(table, {}).setdefault(key, []).append(watcher)
        self.messages += 1

    def of(self, table: int, key: bytes) -> list[Watcher]:
        """Those that wait for an entry."""
        return self._tables.get(table, {}).get(key, [])

    def count(self, table: int, key: bytes) -> int:
        """How many wait for an entry."""
        return len(self.of(table, key))

    def take(self, table: int, key: bytes) -> list[Watcher]:
        """Those that wait for an entry; they are told, and forgotten."""
        keys = self._tables.get(table)
        if keys is None:
            return []
        found = keys.pop(key, [])
        self.messages -= len(found)
        if not keys:
            del self._tables[table]
        return found

    def drop_stream(self, stream: int) -> None:
        """A table is gone: who waits for it will not hear of it any more. Or a queue is, and
        nothing of it waits."""
        for key in list(self._tables.get(stream, ())):
            self.take(stream, key)
        for table, keys in list(self._tables.items()):
            for key, watchers in list(keys.items()):
                left = [each for each in watchers if each.stream != stream]
                if len(left) < len(watchers):
                    self._keep(table, key, left)

    def snapshot(self) -> list[Any]:
        """Plain data for `restore`."""
        return [
            (table, key, watchers)
            for table, keys in self._tables.items()
            for key, watchers in keys.items()
        ]

    @classmethod
    def restore(cls, rows: list[Any]) -> Watchers:
        """The watchers that made this snapshot."""
        watchers = cls()
        for table, key, found in rows:
            watchers._keep(table, key, [Watcher._make(each) for each in found])
        return watchers
