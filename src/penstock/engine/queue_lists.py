"""The lists of a node: what it tells of its parts of queues, and what it knows of others' parts.

The owner of one shard, by a hash of the queue's id, keeps the queue's list: which nodes have
messages. All other nodes tell it when their part becomes empty or not empty. No push or pop waits
for that, and nothing of it is stored: a new owner begins with a list of all nodes, and asks them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from itertools import count
from typing import TypeVar

import msgspec

from penstock.cluster.map import ClusterMap
from penstock.cluster.pops import Hint, QueueOwner, list_shard
from penstock.core.fabric import Fabric
from penstock.core.kernel import Timer
from penstock.core.parking import Asker
from penstock.core.views import MAX_WAIT_MS
from penstock.errors import InvalidError, MovedError, NotFoundError, PenstockError, ProtocolError
from penstock.wire import messages as m
from penstock.wire.buffers import Buffer
from penstock.wire.frames import LISTS, Verb

TICK_US = 2_000  # a queue is told of at most once in so long
AGAIN_US = 5_000  # after so long further consumers are told of what nobody has taken
MOST_COUNTED = 64  # messages in a notice: more consumers are not woken at once
MAX_LISTS = 100_000  # that a node keeps
MAX_ROWS = 4096  # of one message
_INCARNATION_SHIFT = 40

_T = TypeVar("_T")
Notice = tuple[int, int, int]  # queue, fill, messages that are ready: 0 if its part is empty


class QueueNews(msgspec.Struct, array_like=True, frozen=True):
    """Between nodes: what the sender has, and lists of which it wants to hear the same."""

    told: list[Notice] = []
    asked: list[int] = []


pack_news = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(QueueNews).decode


def unpack_news(data: Buffer) -> QueueNews:
    """What a node said; ProtocolError if it makes no sense."""
    try:
        return _decode(data)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"news of queues that cannot be read: {error}") from error


class _List:
    """One queue of which this node keeps the list."""

    __slots__ = ("askers", "owner", "timer")

    def __init__(self, nodes: Iterable[int]) -> None:
        self.owner = QueueOwner(nodes)
        self.askers: dict[int, Asker] = {}
        self.timer: Timer | None = None


class QueueLists:
    """See the module. `send` is called with what a node is to hear. The shell calls `advance` after
    every event, and `placed` when there is a new map."""

    def __init__(
        self, node: int, incarnation: int, fabric: Fabric, send: Callable[[int, QueueNews], None]
    ) -> None:
        self._node = node
        self._first_fill = incarnation << _INCARNATION_SHIFT
        self._fabric = fabric
        self._kernel = fabric.kernel
        self._send = send
        self.on_filled: Callable[[int], None] = _nobody  # told of queues that a node has some of
        self.nodes: set[int] = set()  # that own shards
        self._map: ClusterMap | None = None
        self._told: dict[int, tuple[int, Notice]] = {}  # queue: to whom, and what
        self._lists: dict[int, _List] = {}
        self._consumers = count(1)
        self._next_us = 0  # when the next notices may be sent
        self._timer: Timer | None = None
        fabric.number = node
        fabric.queues.on_end = self._shard_ended
        fabric.calls.hand_over({m.WhereIs: self._where})

    @property
    def enabled(self) -> bool:
        """Whether all nodes understand each other in this."""
        return LISTS in self._fabric.features

    def enable(self) -> None:
        """They do, and always will."""
        if not self.enabled:
            self._fabric.features.append(LISTS)

    # --- events ----------------------------------------------------------------------------

    def placed(self, cluster: ClusterMap, now_us: int) -> None:
        """There is a new map: lists that moved are told to their new owners, and given up here."""
        self._kernel.now_us = now_us
        self._map = cluster
        before, self.nodes = self.nodes, {place.owner for place in cluster.shards}
        for stream in [each for each in self._lists if self.owner_of(each) != self._node]:
            self._end(stream, _moved())
        for each in self._lists.values():
            each.owner.keep(self.nodes)
        # What such a node has said before its time was not listened to.
        self._ask(self.nodes - before, self._lists)
        for stream, (owner, _) in self._told.items():
            if self.owner_of(stream) != owner:
                self._fabric.queues.turned[stream] = None

    def _shard_ended(self, shard: int) -> None:
        shards = len(self._kernel.shards)
        for stream in [each for each in self._lists if list_shard(each, shards) == shard]:
            self._end(stream, _moved())

    def linked(self, node: int) -> None:
        """There is a new link: what was on the one before may be lost, so the node is asked."""
        self._ask([node], self._lists)

    def receive(self, source: int, news: QueueNews, now_us: int) -> None:
        """What a node has to say."""
        self._kernel.now_us = now_us
        for notice in news.told:
            self._hear(source, notice)
        if news.asked:
            rows = [self._notice(stream) for stream in news.asked]
            self._send(source, QueueNews(told=rows))

    def advance(self, now_us: int) -> None:
        """Tells the owners of lists what has changed here, unless that was done a moment ago."""
        turned = self._fabric.queues.turned
        if not turned or self._map is None or not self.enabled:
            return
        if now_us < self._next_us:
            if self._timer is None:
                self._timer = self._kernel.timers.at(self._next_us, self._due)
            return
        self._next_us = now_us + TICK_US
        self._fabric.queues.turned = {}
        self._tell(turned)

    def _due(self) -> None:
        self._timer = None  # the shell calls `advance` now

    # --- what this node has ------------------------------------------------------------------

    def _tell(self, streams: Iterable[int]) -> None:
        rows: dict[int, list[Notice]] = {}
        for stream in streams:
            if stream not in self._kernel.streams:
                self._told.pop(stream, None)
                self._end(stream, NotFoundError("this queue was deleted"))
                continue
            owner, notice = self.owner_of(stream), self._notice(stream)
            assert owner is not None, "there is a map"
            told = self._told.get(stream)
            self._told[stream] = owner, notice
            if told is not None and told[0] == owner and _same(told[1], notice):
                continue
            if owner == self._node:
                self._hear(owner, notice)
            else:
                rows.setdefault(owner, []).append(notice)
        for node, own in rows.items():
            for part in _parts(own):
                self._send(node, QueueNews(told=part))

    def _notice(self, stream: int) -> Notice:
        view = self._fabric.queues.views.get(stream)
        if view is None:
            return stream, self._first_fill, 0
        ready = max(view.ready(MOST_COUNTED), 1) if view.full else 0
        return stream, self._first_fill + view.fill, ready

    def owner_of(self, stream: int) -> int | None:
        """The node that keeps the list of a queue; None before there is a map."""
        if self._map is None:
            return None
        return self._map.owner_of(list_shard(stream, len(self._map.shards)))

    def full_nodes(self, stream: int) -> list[int] | None:
        """The nodes that have messages of a queue; None if another node keeps its list."""
        shards = self._kernel.shards
        if stream not in self._kernel.streams or not shards[list_shard(stream, len(shards))].owned:
            return None
        return self._list(stream).owner.full_nodes()

    # --- what others have --------------------------------------------------------------------

    def _list(self, stream: int) -> _List:
        """The list of a queue, which this node keeps; a new one if there is none."""
        found = self._lists.get(stream)
        if found is None:
            if len(self._lists) >= MAX_LISTS:  # any will do: it is begun anew when it is wanted
                moved = MovedError("this node keeps too many lists of queues")
                self._end(next(iter(self._lists)), moved)
            found = self._lists[stream] = _List(sorted(self.nodes))
            self._ask(self.nodes, [stream])
        return found

    def _ask(self, nodes: Collection[int], streams: Iterable[int]) -> None:
        if self._node in nodes:
            for stream in list(streams):
                self._hear(self._node, self._notice(stream))
        for part in _parts(list(streams)):
            for node in sorted(set(nodes) - {self._node}):
                self._send(node, QueueNews(asked=part))

    def _hear(self, node: int, notice: Notice) -> None:
        stream, fill, ready = notice
        # Nobody waits on a list that is not there; whoever asks for it begins it.
        if (known := self._lists.get(stream)) is None or node not in self.nodes:
            return
        if ready:
            self._wake(known, known.owner.filled(node, fill, ready))
            self.on_filled(stream)
        else:
            known.owner.emptied(node, fill)

    def _wake(self, known: _List, consumers: Iterable[int]) -> None:
        for consumer in consumers:
            asker = known.askers[consumer]
            self._answer(asker, known.owner.ask(consumer))
        if known.owner.owing and known.timer is None:
            due_us = self._kernel.now_us + AGAIN_US
            known.timer = self._kernel.timers.at(due_us, lambda: self._wake_more(known))

    def _wake_more(self, known: _List) -> None:
        known.timer = None
        self._wake(known, known.owner.more())

    # --- questions of consumers --------------------------------------------------------------

    def _where(self, connection: int, request: int, call: m.WhereIs) -> None:
        """Answers now, or when a node has messages, or when the time is up."""
        kernel = self._kernel
        if not self.enabled:
            raise InvalidError("not all nodes of the cluster keep lists of queues yet")
        kernel.stream(call.stream, "queue")
        kernel.served(list_shard(call.stream, len(kernel.shards)))
        known = self._list(call.stream)
        consumer = next(self._consumers)
        emptied = [Hint(node, fill) for node, fill in call.emptied if node in self.nodes]
        hints = known.owner.ask(consumer, emptied)
        if hints or not call.wait_ms:
            known.owner.leave(consumer)
            kernel.answer(connection, Verb.CALL, request, hints)
            return

        def left() -> None:
            known.owner.leave(consumer)
            del known.askers[consumer]

        asker = known.askers[consumer] = Asker(connection, request, left)
        self._fabric.park(connection, request, asker)
        due_us = kernel.now_us + min(call.wait_ms, MAX_WAIT_MS) * 1000
        asker.timer = kernel.timers.at(due_us, lambda: self._answer(asker, ()))

    def _answer(self, asker: Asker, hints: tuple[Hint, ...] | PenstockError) -> None:
        if asker.over:
            return
        asker.over = True
        if asker.timer is not None:
            self._kernel.timers.cancel(asker.timer)
        if isinstance(hints, PenstockError):
            self._kernel.fail(asker.connection, Verb.CALL, asker.request, hints)
        else:
            self._kernel.answer(asker.connection, Verb.CALL, asker.request, hints)

    def _end(self, stream: int, why: PenstockError) -> None:
        """This node keeps the list no more; whoever waits is told."""
        known = self._lists.pop(stream, None)
        for asker in list(known.askers.values()) if known is not None else ():
            self._answer(asker, why)


def _nobody(stream: int) -> None:
    """Until somebody wants to know."""


def _moved() -> MovedError:
    return MovedError("the list of this queue is kept by another node")


def _parts(rows: list[_T]) -> list[list[_T]]:
    """As many as a message may have, each."""
    return [rows[at : at + MAX_ROWS] for at in range(0, len(rows), MAX_ROWS)]


def _same(told: Notice, now: Notice) -> bool:
    """Whether whoever was told the one knows enough of the other. That a part is empty in a later
    fill than it was said to be is no news."""
    return not (told[2] or now[2]) or (told[1], bool(told[2])) == (now[1], bool(now[2]))
