"""The protocol core: requests in flight, their answers, and what to send again. No I/O, no clock.

A shell calls `start` when a request's turn to be sent has come, sends the parts it gets, hands
every frame that arrives to `receive`, and after a reconnect sends what `resend` returns. Requests
with a producer's sequence take it inside `start`, so sequences are taken in the order of sending.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable

from penstock.client.requests import Pending, Request, Resend, Subscription
from penstock.errors import (
    LimitError,
    PenstockError,
    ProtocolError,
    TooLargeError,
    UnavailableError,
)
from penstock.wire.buffers import Buffer
from penstock.wire.frames import (
    FRAME,
    FRAME_BYTES,
    Flag,
    Verb,
    check_length,
    frame,
    frame_head,
    read_error,
)
from penstock.wire.limits import MAX_FRAME_BYTES, MAX_IN_FLIGHT
from penstock.wire.messages import Welcome

_RESPONSE, _ERROR, _RESEND = int(Flag.RESPONSE), int(Flag.ERROR), int(Flag.RESEND)
_DELIVER, _EVENT, _COMING = int(Verb.DELIVER), int(Verb.EVENT), int(Verb.COMING)
_RESERVED = 16  # places that only `start(..., reserved=True)` may use
FORGOTTEN_AFTER_S = 600.0  # a node remembers a producer for 15 minutes at least
_REMEMBERED = 1024  # cancelled requests whose late answer is still recognised


class Protocol:
    """Requests in flight and subscriptions of one connection, across reconnects."""

    def __init__(self) -> None:
        self.in_flight: dict[int, Pending] = {}
        self.limit = MAX_IN_FLIGHT
        self.max_frame = MAX_FRAME_BYTES
        self._subscriptions: dict[int, Subscription] = {}
        self._cancelled: OrderedDict[int, Request | Subscription] = OrderedDict()
        self._ending: set[int] = set()  # subscriptions whose cancellation is on its way
        self._next_id = 1
        # In a cluster: whether a refused request is taken back, to be sent to another node.
        self.takes_back: Callable[[Pending, PenstockError], bool] | None = None

    def welcome(self, welcome: Welcome) -> None:
        """Takes over the node's limits."""
        self.limit = max(min(welcome.max_in_flight, MAX_IN_FLIGHT), 2 * _RESERVED)
        self.max_frame = min(welcome.max_frame, MAX_FRAME_BYTES)

    @property
    def waiting(self) -> bool:
        """Whether anything is in flight or subscribed to, so that a connection is needed."""
        return bool(self.in_flight or self._subscriptions)

    @property
    def room(self) -> int:
        """How many more requests may start before an answer must come."""
        return max(self.limit - _RESERVED - len(self.in_flight), 0)

    @property
    def full(self) -> bool:
        """Whether an answer must come before another request may start."""
        return len(self.in_flight) >= self.limit - _RESERVED

    @property
    def packed(self) -> bool:
        """The same, for one that may use the reserved places."""
        return len(self.in_flight) >= self.limit

    def start(self, request: Request, *, reserved: bool = False) -> Pending:
        """Registers a request; `parts` of the result is the whole frame, to be sent next.

        LimitError when too many are in flight (`reserved`: the last places may be used). An error
        of the request itself leaves everything as it was.
        """
        if len(self.in_flight) >= self.limit - (0 if reserved else _RESERVED):
            raise LimitError(f"{len(self.in_flight)} requests wait for their answers")
        request_id = self._next_id
        parts = _framed(request, request_id)
        if (size := sum(map(len, parts))) > self.max_frame:
            error = TooLargeError(f"a request of {size:,} bytes; the node takes {self.max_frame:,}")
            request.refused(error)
            raise error
        pending = Pending(request_id, request, parts)
        self._next_id = request_id + 1
        self.in_flight[request_id] = pending
        return pending

    def subscribe(self, subscription: Subscription) -> Pending:
        """Like `start`, and the reserved places may be used; frames that arrive under the request's
        id go to the subscription."""
        pending = self.start(subscription.request, reserved=True)
        subscription.id = pending.id
        self._subscriptions[pending.id] = subscription
        return pending

    def cancel_frame(self, request_id: int) -> bytes:
        """What tells the node that nobody waits for a parked request or subscription any more.

        A subscription takes what still arrives until `unsubscribe`, but is not made again: a lost
        connection ends it as well.
        """
        if request_id in self._subscriptions:
            self._ending.add(request_id)
        return frame(Verb.CANCEL, request_id)

    def forget(self, pending: Pending) -> None:
        """Nobody waits any more, and the node is told: an answer under way goes to the request."""
        if pending.id in self.in_flight:  # remembered first: another thread may read the answer
            self._remember(pending.id, pending.request)
            self.in_flight.pop(pending.id, None)

    def unsubscribe(self, subscription: Subscription) -> None:
        """The same for a subscription: what still arrives goes to its `arrived_late`. Whoever waits
        until it has begun is told that it will not."""
        pending = self.in_flight.pop(subscription.id, None)
        self._ending.discard(subscription.id)
        if subscription.id in self._subscriptions:
            self._remember(subscription.id, subscription)
            self._subscriptions.pop(subscription.id, None)
        if pending is not None:
            pending.settle(None, UnavailableError("the subscription ended before it began"))

    def _remember(self, request_id: int, cancelled: Request | Subscription) -> None:
        self._cancelled[request_id] = cancelled
        if len(self._cancelled) > _REMEMBERED:  # whoever reads may be here, too: one step each
            self._cancelled.popitem(last=False)

    def receive(self, frames: list[bytearray]) -> None:
        """Takes frames of the node.

        ProtocolError if one makes no sense: the connection is beyond repair, `fail` must follow.
        UnavailableError if the node is going: reconnect; what it refused is then sent again.
        """
        going: UnavailableError | None = None
        for each in frames:
            length, verb, flags, _, request_id = FRAME.unpack_from(each)
            if check_length(length) != len(each):
                raise ProtocolError(f"a frame of {len(each)} bytes says that it has {length}")
            if flags & _RESPONSE:
                going = self._answer(request_id, verb, flags, each) or going
            elif verb in (_DELIVER, _EVENT):
                self._arrived(request_id, each)
            elif verb != _COMING:  # that was for the transport
                raise ProtocolError(f"the node sent verb {verb} as if it were a client")
        if going is not None:
            raise going

    def _arrived(self, request_id: int, frame_: bytearray) -> None:
        subscription = self._subscriptions.get(request_id)
        if subscription is not None:
            subscription.arrived(frame_)
            return
        cancelled = self._cancelled.get(request_id)
        if not isinstance(cancelled, Subscription):
            raise ProtocolError(f"a delivery for request {request_id}, which is no subscription")
        cancelled.arrived_late(frame_)

    def _answer(
        self, request_id: int, verb: int, flags: int, answer: bytearray
    ) -> UnavailableError | None:
        pending = self.in_flight.get(request_id)
        if pending is None:
            ended = self._subscriptions.pop(request_id, None) if flags & _ERROR else None
            if ended is not None:  # for example because its queue was deleted
                ended.fail(read_error(memoryview(answer)[FRAME_BYTES:]))
                self._remember(request_id, ended)
                return None
            late = self._cancelled.get(request_id)
            if late is None:
                raise ProtocolError(f"an answer to request {request_id}, which was not asked")
            if isinstance(late, Request) and not flags & _ERROR:
                late.answered_late(answer)
            return None
        if verb != pending.request.verb:
            raise ProtocolError(f"an answer of verb {verb} to a request of {pending.request.verb}")
        error = read_error(memoryview(answer)[FRAME_BYTES:]) if flags & _ERROR else None
        if type(error) is UnavailableError:
            return error
        if self.in_flight.pop(request_id, None) is None:  # given up, or all ended, just now
            if error is None:
                pending.request.answered_late(answer)
            return None
        if error is not None and self.takes_back is not None and self.takes_back(pending, error):
            return None
        pending.settle(answer, error)
        if error is not None and (ended := self._subscriptions.pop(request_id, None)) is not None:
            ended.fail(error)
        return None

    def resend(self, now_s: float = 0.0) -> list[Pending]:
        """After a reconnect: what must be sent now, oldest first; their `parts` are ready.

        What was first sent so long ago that the node may not know it again is refused instead.
        """
        self._forget_old(now_s - FORGOTTEN_AFTER_S)
        self._cancelled.clear()
        for request_id in self._ending:
            self._subscriptions.pop(request_id, None)
            self.in_flight.pop(request_id, None)
        self._ending.clear()
        for pending in self.in_flight.values():
            self._prepare(pending)
        for request_id, subscription in self._subscriptions.items():
            subscription.renewed()
            if request_id not in self.in_flight:
                request = subscription.request
                again = Pending(request_id, request, _framed(request, request_id))
                self.in_flight[request_id] = again
        return list(self.in_flight.values())

    def _forget_old(self, before_s: float) -> None:
        for pending in list(self.in_flight.values()):
            marked = pending.request.resend is Resend.MARKED
            if pending.sent and marked and pending.since_s < before_s:
                del self.in_flight[pending.id]
                pending.forgotten("the node was away so long that it may not recognise a resend")

    def _prepare(self, pending: Pending) -> None:
        request = pending.request
        request.resent = request.resent or pending.sent
        if request.resend is Resend.ANEW:  # unsent, too: credit may have been given meanwhile
            pending.parts = _framed(request, pending.id)
        elif pending.sent:
            size = sum(map(len, pending.parts[1:]))
            head = frame_head(request.verb, pending.id, request.flags | _RESEND, size)
            pending.parts = [head, *pending.parts[1:]]

    def hand_over(self) -> tuple[list[Pending], list[Subscription]]:
        """The connection is over: gives up all that it had, requests oldest first."""
        waiting, self.in_flight = list(self.in_flight.values()), {}
        listening, self._subscriptions = list(self._subscriptions.values()), {}
        self._cancelled.clear()
        return waiting, listening

    def adopt(self, pending: Pending) -> None:
        """Takes a request over from another connection, numbers and all; `parts` are ready."""
        pending.id = self._next_id
        self._next_id += 1
        self._prepare(pending)
        self.in_flight[pending.id] = pending

    def fail(self, error: PenstockError) -> None:
        """Ends everything in flight and every subscription with this error."""
        waiting, self.in_flight = list(self.in_flight.values()), {}
        listening, self._subscriptions = list(self._subscriptions.values()), {}
        for pending in waiting:
            pending.settle(None, _own(error))
        for subscription in listening:
            subscription.fail(_own(error))


def _own(error: PenstockError) -> PenstockError:
    """The same error for one who waits: what is noted on it is not the others' concern."""
    own = copy.copy(error).with_traceback(None)
    own.__notes__ = list(getattr(error, "__notes__", ()))
    return own


def _framed(request: Request, request_id: int) -> list[Buffer]:
    parts = request.parts()
    size = 0
    for part in parts:
        size += len(part)
    return [frame_head(request.verb, request_id, request.flags, size), *parts]
