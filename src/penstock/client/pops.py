"""Popping: one request to one node, and the search for messages in a cluster."""

from __future__ import annotations

import time
from collections.abc import Iterable

from penstock.client.delivery import Part, read_grants
from penstock.client.inputs import lease_ms, milliseconds
from penstock.client.requests import Pending, Request, Resend
from penstock.client.routing import MAX_STANDING, Routes
from penstock.client.settle import Settler
from penstock.client.steps import Abandon, Finish, FinishAny, Start, Steps
from penstock.errors import InvalidError, MovedError
from penstock.wire.frames import POP, PopMode, Settle, Verb

PARK_S = 60.0  # how long the node holds a pop that finds nothing; then it is asked anew
_TURN_S = 1.0  # the same, when there are more nodes than can be waited on at once
_POP_BYTES = 4 << 20  # of one answer; the first batch may be larger


class PopRequest(Request):
    """A pop. Should its answer come after it was cancelled, the messages go back at once."""

    __slots__ = ("_settler",)

    def __init__(
        self, settler: Settler, messages: int, timeout: float, lease: float | None, mode: PopMode
    ) -> None:
        if isinstance(messages, bool) or not isinstance(messages, int) or messages < 1:
            raise InvalidError(f"max_messages must be 1 or more, not {messages!r}")
        wait_ms = milliseconds("timeout", timeout)
        body = POP.pack(settler.stream, messages, _POP_BYTES, wait_ms, lease_ms(lease), mode)
        super().__init__(Verb.POP, [body], Resend.ANEW, timeout)
        self._settler = settler

    def answered_late(self, answer: bytearray) -> None:
        """Nobody will ever see these messages: they are free again with the next flush."""
        for granted in read_grants(answer, self._settler):
            self._settler.keep(granted.items(Settle.NACK))


class PopSearch:
    """Finds messages of a queue: first on the last node that had some, then on the others, one
    after the other; then it waits on all of them at once."""

    def __init__(
        self, routes: Routes, settler: Settler, messages: int, lease: float | None, mode: PopMode
    ) -> None:
        self._routes = routes
        self._settler = settler
        self._messages = messages
        self._lease = lease
        self._mode = mode

    def run(self, timeout: float) -> Steps[list[Part]]:
        """Grants of at most so many messages; none if there are none within `timeout` seconds."""
        ends_s = time.monotonic() + timeout
        found = yield from self._ask_in_turn()
        turn = 0
        while not found and (left_s := ends_s - time.monotonic()) > 0 and timeout:
            found = yield from self._wait_on_all(left_s, turn)
            turn += MAX_STANDING
        return found

    def _request(self, node: int, messages: int, timeout: float) -> PopRequest:
        request = PopRequest(self._settler, messages, timeout, self._lease, self._mode)
        request.node = node
        return request

    def _ask_in_turn(self) -> Steps[list[Part]]:
        """What is there now. A look at messages goes on until it has seen enough."""
        found: list[Part] = []
        left = self._messages
        for node in self._routes.pop_order(self._settler.stream):
            try:
                answer: bytearray = yield self._request(node, left, 0.0)
            except MovedError:
                continue
            granted = read_grants(answer, self._settler)
            found += granted
            left -= _count(granted)
            if granted and self._mode is PopMode.LEASE:
                self._routes.had_messages(self._settler.stream, node)
            if left <= 0 or (found and self._mode is PopMode.LEASE):
                break
        return found

    def _wait_on_all(self, seconds: float, turn: int) -> Steps[list[Part]]:
        """Waits until a node has messages, the map changes, or time is up."""
        changed = self._routes.changed
        nodes = self._routes.pop_order(self._settler.stream)
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
            yield FinishAny([*parked.values(), changed], park_s)
        except GeneratorExit:  # there is nobody any more to do anything
            raise
        except BaseException:
            yield from _abandon(parked.values())
            raise
        yield from _abandon(parked.values())
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
            self._routes.had_messages(self._settler.stream, node)
        if _count(granted) <= room:
            return granted
        for part in granted:
            self._settler.keep(part.items(Settle.NACK))
        return []


def _abandon(parked: Iterable[Pending]) -> Steps[None]:
    for pending in parked:
        if not pending.done:
            yield Abandon(pending)


def _count(parts: Iterable[Part]) -> int:
    return sum(len(part.positions) for part in parts)
