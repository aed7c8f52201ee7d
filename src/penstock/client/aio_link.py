"""One connection to one node of a cluster. It does not come back: what it had goes elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

from penstock.client.aio_wire import Wire
from penstock.client.protocol import Protocol
from penstock.client.reconnect import CONNECT_S
from penstock.client.requests import Pending, Request, Resend, Subscription
from penstock.client.welcome import hello_frame, read_welcome
from penstock.errors import ClosedError, PenstockError, ProtocolError, UnavailableError, said
from penstock.near import connect_near
from penstock.wire.frames import CREDIT, LISTS, MAPS, Verb, frame
from penstock.wire.messages import Hello, Welcome

Address = tuple[str, int]
DialTo = Callable[[Wire, Address], Awaitable[object]]


async def dial_to(wire: Wire, address: Address) -> None:
    """Connects a wire: the near way, if there is one, or over TCP."""
    loop = asyncio.get_running_loop()
    if (near := connect_near(*address)) is not None:
        await loop.create_unix_connection(lambda: wire, sock=near)
    else:
        await loop.create_connection(lambda: wire, *address)


class Events(NamedTuple):
    """What a link tells the router."""

    takes_back: Callable[[Link, Pending, PenstockError], bool]
    heard: Callable[[], None]
    lost: Callable[[Link, list[Pending], list[Subscription]], None]


class Link:
    """Requests under way to one node. `node` is 0 while nobody knows which it is."""

    def __init__(self, node: int, address: Address, hello: Hello, events: Events) -> None:
        self.node = node
        self.address = address
        self.heard_s = 0.0  # when the node last said something
        self.lists = False  # whether it can be asked where messages of a queue are
        self.tells = False  # whether it can be asked to say when there is a newer map
        self.error: PenstockError | None = None  # why it is over
        self._opened_s = 0.0
        self._sent_away = False
        self._hello = hello
        self._events = events
        self._loop = asyncio.get_running_loop()
        self._protocol = Protocol()
        self._protocol.takes_back = self._takes_back
        self._wire: Wire | None = None
        self._greeting: asyncio.Future[list[bytearray]] | None = None

    async def open(self, dial: DialTo) -> Welcome:
        """Connects; UnavailableError if it cannot be done in a few seconds."""
        wire = Wire(self._received, self._ended)
        greeting = self._greeting = self._loop.create_future()
        try:
            async with asyncio.timeout(CONNECT_S):
                await dial(wire, self.address)
                wire.send([hello_frame(self._hello)])
                welcome = read_welcome(await greeting)
                wire.check_open()
        except (OSError, TimeoutError, ProtocolError) as error:
            host, port = self.address
            self._fail(wire, UnavailableError(f"cannot connect to {host}:{port}: {said(error)}"))
            raise self.error or UnavailableError("lost") from error
        except BaseException as error:
            self._fail(wire, UnavailableError(f"the greeting failed: {said(error)}"))
            raise
        self._protocol.welcome(welcome)
        self.lists = LISTS in welcome.features
        self.tells = MAPS in welcome.features
        self._wire, self.heard_s = wire, self._loop.time()
        self._opened_s = self.heard_s
        return welcome

    def _fail(self, wire: Wire, error: UnavailableError) -> None:
        if self._greeting is not None:
            self._greeting.cancel()
        self.error = self.error or error
        wire.close(error)

    # --- requests ----------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether requests can be sent."""
        return self._wire is not None

    def check_ready(self) -> None:
        """UnavailableError if it is over: that may be before whoever waited for it is awake.
        ClosedError if the fabric is closed."""
        if self._wire is None:
            if isinstance(self.error, ClosedError):
                raise self.error
            why = "the connection was lost" if self.error is None else self.error.message
            raise UnavailableError(why)

    @property
    def answered(self) -> bool:
        """Whether the node has said anything since it was greeted, other than to go away."""
        return self.heard_s > self._opened_s and not self._sent_away

    @property
    def idle(self) -> bool:
        """Whether nothing is under way."""
        return self.ready and not self._protocol.waiting

    @property
    def room(self) -> bool:
        """Whether one more request may start now."""
        return self._wire is not None and not self._protocol.full and not self._wire.crowded

    @property
    def packed(self) -> bool:
        """Whether not even a standing request may start now, for which places are kept."""
        return self._wire is not None and self._protocol.packed

    @property
    def under_way(self) -> list[Pending]:
        """Requests in flight, oldest first."""
        return list(self._protocol.in_flight.values())

    def writes_to(self, shard: int) -> bool:
        """Whether something that changes a shard is under way."""
        for pending in self._protocol.in_flight.values():
            request = pending.request
            if request.shard == shard and request.resend is Resend.MARKED and not request.node:
                return True
        return False

    def start(self, request: Request, order: int = 0) -> Pending:
        """Sends a request; LimitError if too many are in flight."""
        pending = self._protocol.start(request, reserved=True)
        pending.order = order
        return self._send(pending)

    def start_again(self, pending: Pending) -> None:
        """Sends what was sent to another node before, as it is."""
        self._protocol.adopt(pending)
        self._send(pending)

    def subscribe(self, subscription: Subscription) -> Pending:
        """Starts a standing request; LimitError if the link is `packed`."""
        return self._send(self._protocol.subscribe(subscription))

    def credit(self, subscription: Subscription, messages: int) -> None:
        """Lets the node deliver so many more."""
        subscription.given += messages
        if self._wire is not None:
            packed = CREDIT.pack(messages)
            self._wire.send([frame(Verb.CREDIT, subscription.id, 0, packed)])

    def cancel(self, request_id: int) -> None:
        """Tells the node that nobody waits for a request or subscription any more."""
        if self._wire is not None:
            self._wire.send([self._protocol.cancel_frame(request_id)])

    def unsubscribe(self, subscription: Subscription) -> None:
        """What still arrives for a cancelled subscription is late."""
        self._protocol.unsubscribe(subscription)

    def abandon(self, pending: Pending) -> bool:
        """Nobody waits for a pop or fetch any more; whether it was under way here."""
        if self._protocol.in_flight.get(pending.id) is not pending:
            return False
        if pending.request.resend is Resend.ANEW:
            self._protocol.forget(pending)
            self.cancel(pending.id)
        return True

    def _send(self, pending: Pending) -> Pending:
        assert self._wire is not None
        pending.sent, pending.since_s = True, pending.since_s or self._loop.time()
        self._wire.send(pending.parts)
        return pending

    # --- the wire ----------------------------------------------------------------------------

    def _takes_back(self, pending: Pending, error: PenstockError) -> bool:
        return self._events.takes_back(self, pending, error)

    def _received(self, wire: Wire, frames: list[bytearray]) -> None:
        if wire is not self._wire:
            if self._greeting is not None and not self._greeting.done():
                self._greeting.set_result(frames)
            return
        self.heard_s = self._loop.time()
        try:
            self._protocol.receive(frames)
        except PenstockError as error:
            self._sent_away = True
            wire.close(error)
        self._events.heard()

    def _ended(self, wire: Wire, error: PenstockError) -> None:
        self.error = self.error or error
        if wire is not self._wire:
            if self._greeting is not None and not self._greeting.done():
                self._greeting.set_exception(UnavailableError(error.message))
            return
        self._wire = None
        if isinstance(error, ProtocolError):
            self._protocol.fail(error)
        self._events.lost(self, *self._protocol.hand_over())

    def close(self, error: PenstockError) -> Wire | None:
        """Ends the connection: the router hears of what was under way. Its wire, to wait for."""
        wire = self._wire
        if wire is not None:
            wire.close(error)
        return wire


def doubt(links: Iterable[Link], since_s: float) -> None:
    """Of these, nodes that have said nothing at all since then are looked for anew."""
    for link in links:
        if link.heard_s < since_s:
            link.close(UnavailableError("the node is silent"))
