"""Popping: one request to one node, and the search for messages in a cluster."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable

from penstock.client.delivery import Part, read_grants
from penstock.client.inputs import lease_ms, milliseconds
from penstock.client.requests import Pending, Request, Resend, messages_of
from penstock.client.routing import FEW_NODES, MAX_STANDING, Routes
from penstock.client.settle import Settler
from penstock.client.steps import Abandon, Finish, FinishAny, Start, Steps, body_of, decoder
from penstock.cluster.pops import Ask, Hint, Park, Pop, PopRoute, list_shard
from penstock.errors import InvalidError, MovedError
from penstock.wire.frames import POP, PopMode, Settle, Verb
from penstock.wire.messages import WhereIs, pack

PARK_S = 60.0  # how long the node holds a pop that finds nothing; then it is asked anew
_TURN_S = 1.0  # the same, when there are more nodes than can be waited on at once
_POP_BYTES = 4 << 20  # of one answer; the first batch may be larger
_MOMENT_S = 1e-6
_MOST_ASKS = 3  # of the list, by a pop that does not wait: others may be faster each time

_read_hints = decoder(list[Hint])


class PopRequest(Request):
    """A pop. Should its answer come after it was cancelled, the messages go back at once."""

    __slots__ = ("_leases", "_settler")

    def __init__(
        self, settler: Settler, messages: int, timeout: float, lease: float | None, mode: PopMode
    ) -> None:
        if isinstance(messages, bool) or not isinstance(messages, int) or messages < 1:
            raise InvalidError(f"max_messages must be 1 or more, not {messages!r}")
        wait_ms = milliseconds("timeout", timeout)
        body = POP.pack(settler.stream, messages, _POP_BYTES, wait_ms, lease_ms(lease), mode)
        super().__init__(Verb.POP, [body], Resend.ANEW, timeout)
        self._settler = settler
        self._leases = mode is PopMode.LEASE

    def answered_late(self, answer: bytearray) -> None:
        """Nobody will ever see these messages: they are free again with the next flush."""
        if not self._leases:  # they were only to be looked at
            return
        for granted in read_grants(answer, self._settler):
            self._settler.keep(granted.items(Settle.NACK))


class WhereRequest(Request):
    """Asks the owner of a queue's list who has messages. Not every node knows the question."""

    __slots__ = ()

    def __init__(self, stream: int, emptied: Iterable[Hint], wait_s: float) -> None:
        call = WhereIs(stream, list(emptied), milliseconds("timeout", wait_s))
        super().__init__(Verb.CALL, [pack(call)], Resend.ANEW, wait_s)


def where_is(
    routes: Routes, stream: int, emptied: Iterable[Hint], wait_s: float
) -> Steps[list[Hint] | None]:
    """The nodes that have messages of a queue, as soon as there are any; none if there are none in
    so many seconds. None: the list has moved, ask again. InvalidError: nobody keeps one."""
    changed = routes.changed
    request = WhereRequest(stream, emptied, wait_s)
    request.node = routes.owner(list_shard(stream, len(routes.map.shards)))
    try:
        if not wait_s:
            answer: bytearray = yield request
            hints: list[Hint] = _read_hints(body_of(answer))
            return hints
        pending: Pending = yield Start(request)
    except MovedError:
        return None
    yield from _wait([pending], changed, wait_s)
    if not pending.done:
        return None if changed.done else []
    try:
        answer = yield Finish(pending)
    except MovedError:
        return None
    return list(_read_hints(body_of(answer)))


class SharedRoute(PopRoute):
    """The way of all pops of one queue in this client, whatever thread they are in."""

    def __init__(self, local: int | None = None) -> None:
        super().__init__(local)
        self._lock = threading.Lock()

    def next(self) -> Pop | Ask | Park:
        """What to do next."""
        with self._lock:
            return super().next()

    def found(self, node: int, messages: int) -> None:
        """A node gave messages."""
        with self._lock:
            super().found(node, messages)

    def empty(self, node: int, fill: int) -> None:
        """A node had none."""
        with self._lock:
            super().empty(node, fill)

    def unreachable(self, node: int) -> None:
        """A node could not be asked."""
        with self._lock:
            super().unreachable(node)

    def listed(self, hints: Iterable[Hint]) -> None:
        """What the owner of the list said."""
        with self._lock:
            super().listed(hints)


class PopSearch:
    """Finds messages of a queue: on the local node, on the last one that had some, on those that
    are listed; and waits, when there are none, where the list is kept.

    An ordered queue is on one shard (`only`): there is nothing to be found elsewhere. Where nobody
    keeps a list, nodes are asked one after the other, and then waited on all at once.
    """

    def __init__(
        self, routes: Routes, route: PopRoute, settler: Settler, messages: int,
        lease: float | None, mode: PopMode, only: int | None = None,
    ) -> None:  # fmt: skip
        self._routes = routes
        self._route = route
        self._settler = settler
        self._messages = messages
        self._lease = lease
        self._mode = mode
        self._only = only

    def run(self, timeout: float) -> Steps[list[Part]]:
        """Grants of at most so many messages; none if there are none within `timeout` seconds."""
        ends_s = time.monotonic() + timeout
        if self._mode is PopMode.LEASE and self._only is None:
            try:
                return (yield from self._follow(ends_s, timeout > 0))
            except _UnlistedError:
                pass
        found = yield from self._ask_in_turn()
        turn = 0
        while not found and (left_s := _left_s(ends_s)) and timeout:
            found = yield from self._wait_on_all(left_s, turn)
            turn += MAX_STANDING
        return found

    # --- by the list -------------------------------------------------------------------------

    def _follow(self, ends_s: float, waits: bool) -> Steps[list[Part]]:
        visited: set[int] = set()
        asks = 0
        while True:
            todo = self._route.next()
            if isinstance(todo, Pop):
                visited.add(todo.node)
                if found := (yield from self._visit(todo)):
                    return found
                continue
            if not waits and len(self._routes.owners()) <= FEW_NODES:
                # All can be asked, and then none is missed whose notice is still on its way.
                return (yield from self._ask_in_turn(visited))
            left_s = _left_s(ends_s)
            over = not left_s if waits else asks >= _MOST_ASKS
            if over:
                return []
            asks += 1
            hints = yield from self._listed(todo, min(left_s, PARK_S))
            if hints == [] and not waits:
                return []

    def _visit(self, todo: Pop) -> Steps[list[Part]]:
        node = todo.node
        if not self._routes.owned_by(node):
            self._route.unreachable(node)
            return []
        try:
            answer: bytearray = yield self._request(node, self._messages, 0.0)
        except MovedError:
            self._route.unreachable(node)
            return []
        granted = read_grants(answer, self._settler)
        if granted:
            self._route.found(node, _count(granted))
        elif not messages_of(answer):  # if only damaged ones were found, there may be more
            self._route.empty(node, todo.fill)
        return granted

    def _listed(self, todo: Ask | Park, wait_s: float) -> Steps[list[Hint] | None]:
        emptied = todo.emptied if isinstance(todo, Ask) else ()
        try:
            hints = yield from where_is(self._routes, self._settler.stream, emptied, wait_s)
        except InvalidError as error:
            raise _UnlistedError from error
        if hints is not None:
            self._route.listed(hints)
        return hints

    # --- without one -------------------------------------------------------------------------

    def _nodes(self) -> list[int]:
        if self._only is not None:
            return [self._routes.owner(self._only)]
        return self._routes.pop_order(self._settler.stream)

    def _request(self, node: int, messages: int, timeout: float) -> PopRequest:
        request = PopRequest(self._settler, messages, timeout, self._lease, self._mode)
        request.node = node
        return request

    def _ask_in_turn(self, without: Collection[int] = ()) -> Steps[list[Part]]:
        """What is there now. A look at messages goes on until it has seen enough."""
        found: list[Part] = []
        left = self._messages
        for node in [node for node in self._nodes() if node not in without]:
            try:
                answer: bytearray = yield self._request(node, left, 0.0)
            except MovedError:
                continue
            granted = read_grants(answer, self._settler)
            found += granted
            left -= _count(granted)
            if granted and self._mode is PopMode.LEASE:
                self._had_messages(node, granted)
            if left <= 0 or (found and self._mode is PopMode.LEASE):
                break
        return found

    def _had_messages(self, node: int, granted: list[Part]) -> None:
        self._routes.had_messages(self._settler.stream, node)
        self._route.found(node, _count(granted))

    def _wait_on_all(self, seconds: float, turn: int) -> Steps[list[Part]]:
        """Waits until a node has messages, the map changes, or time is up."""
        changed = self._routes.changed
        nodes = self._nodes()
        park_s = min(seconds, PARK_S if len(nodes) <= MAX_STANDING else _TURN_S)
        at = turn % max(len(nodes), 1)
        parked: dict[int, Pending] = {}
        found: list[Part] = []
        try:
            for node in [*nodes[at:], *nodes[:at]][:MAX_STANDING]:
                try:
                    pending: Pending = yield Start(self._request(node, self._messages, park_s))
                except MovedError:
                    continue
                parked[node] = pending
                if pending.done:
                    break
        except GeneratorExit:  # there is nobody any more to do anything
            raise
        except BaseException:
            yield from give_up_all(parked.values())
            raise
        yield from _wait(list(parked.values()), changed, park_s)
        for node, pending in parked.items():
            if pending.done:
                found += yield from self._take(node, pending, self._messages - _count(found))
        return found

    def _take(self, node: int, pending: Pending, room: int) -> Steps[list[Part]]:
        """What a node gave; what is more than was wanted goes back at once."""
        try:
            answer: bytearray = yield Finish(pending)
        except MovedError:
            return []
        granted = read_grants(answer, self._settler)
        if granted:
            self._had_messages(node, granted)
        if _count(granted) <= room:
            return granted
        for part in granted:
            self._settler.keep(part.items(Settle.NACK))
        return []


class _UnlistedError(Exception):
    """Nobody keeps a list of the queue."""


def _wait(parked: list[Pending], changed: Pending, seconds: float) -> Steps[None]:
    """Until one of them is answered, the map changes, or time is up; the others are given up."""
    try:
        yield FinishAny([*parked, changed], seconds)
    except GeneratorExit:  # there is nobody any more to do anything
        raise
    except BaseException:
        yield from give_up_all(parked)
        raise
    yield from abandon_all(parked)


def abandon_all(parked: Iterable[Pending]) -> Steps[None]:
    """Nobody waits for these any more; the nodes that have not answered are told."""
    for pending in parked:
        if not pending.done:
            yield Abandon(pending)


def give_up_all(parked: Collection[Pending]) -> Steps[None]:
    """The same, and nobody will read the answers that are there: what they gave goes back."""
    yield from abandon_all(parked)
    for pending in parked:
        pending.leave_unread()


def _left_s(ends_s: float) -> float:
    """How long until then. Less than a clock can tell is nothing: else it might last for ever."""
    left_s = ends_s - time.monotonic()
    return left_s if left_s > _MOMENT_S else 0.0


def _count(parts: Iterable[Part]) -> int:
    return sum(len(part.positions) for part in parts)
