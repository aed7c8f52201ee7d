"""What is asked of a node: requests, those in flight, and standing ones. No I/O, no clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from enum import IntEnum

from penstock.errors import ForgottenError, PenstockError, ProtocolError
from penstock.wire.buffers import Buffer
from penstock.wire.frames import COUNT, FRAME_BYTES, Verb

_DELIVER = int(Verb.DELIVER)
_NOBODY: list[Callable[[], None]] = []  # shared, and never added to: see `listen`
ANY = -1  # no shard: every node of a cluster can answer


class Resend(IntEnum):
    """What a lost connection means for a request that was sent and not answered."""

    ANEW = 0  # nothing was changed by it: ask again
    MARKED = 1  # the node recognises the repetition, or it does no harm


class Request:
    """Something to ask of the node. Subclasses compute their parts when they are sent."""

    __slots__ = ("_parts", "flags", "node", "patience_s", "resend", "resent", "shard", "verb")

    def __init__(
        self,
        verb: int,
        parts: list[Buffer],
        resend: Resend,
        patience_s: float = 0.0,
        shard: int = ANY,
    ) -> None:
        self.verb = verb
        self.flags = 0  # of its frame
        self.resend = resend
        self.patience_s = patience_s  # how long the node itself may wait before it answers
        self.resent = False  # it was sent before, and the answer was lost
        self.shard = shard  # in a cluster: its owner is asked, whoever that is
        self.node = 0  # in a cluster: this very node is asked, and MovedError if it cannot be
        self._parts = parts

    def parts(self) -> list[Buffer]:
        """The body, now that the request is sent. Called again, before each time that it is sent,
        only if `resend` is ANEW."""
        return self._parts

    def answered(self, answer: bytearray) -> None:
        """The whole answer frame has come; called before anybody who waits sees it."""

    def refused(self, error: PenstockError) -> None:
        """The node answered with an error, or the request was given up."""

    def answered_late(self, answer: bytearray) -> None:
        """An answer crossed the request's cancellation, or nobody has waited to read it."""


class Pending:
    """A request in flight. `done` turns True once; then `answer` or `error` is set."""

    __slots__ = (
        "answer", "done", "error", "id", "order", "parts", "request", "sent", "since_s", "then",
    )  # fmt: skip

    def __init__(self, request_id: int, request: Request, parts: list[Buffer]) -> None:
        self.id = request_id
        self.request = request
        self.parts = parts
        self.sent = False  # set by the shell before the first byte leaves
        self.since_s = 0.0  # and when that was, by the shell's clock
        self.order = 0  # in a cluster: its place among all requests, whatever node they went to
        self.done = False
        self.answer: bytearray | None = None
        self.error: PenstockError | None = None
        self.then: list[Callable[[], None]] = _NOBODY  # called once, when done

    def settle(self, answer: bytearray | None, error: PenstockError | None) -> None:
        """Records the outcome and tells the request and whoever waits."""
        self.parts = []
        if error is not None:
            self.request.refused(error)
            self.error = error
        elif answer is not None:
            self.request.answered(answer)
            self.answer = answer
        self.done = True
        for wake in self.then:
            wake()

    def forgotten(self, why: str) -> None:
        """It was sent, its answer was lost, and no node may recognise it now: it is given up."""
        self.request.resent = True  # or it would pass for one that the node has not stored
        self.settle(None, ForgottenError(why))

    def result(self) -> bytearray:
        """The answer frame; raises what the node refused it with."""
        if self.error is not None:
            raise self.error
        assert self.answer is not None
        return self.answer

    def leave_unread(self) -> None:
        """Nobody will read the answer, if it is there: it might as well have come late."""
        if self.answer is not None:
            with suppress(PenstockError):  # what makes no sense cannot be given back
                self.request.answered_late(self.answer)


def messages_of(frame_: bytearray) -> int:
    """How many messages a delivery has; in the answer to a pop, with those that were not read."""
    return int(COUNT.unpack_from(frame_, FRAME_BYTES)[1])


class Subscription:
    """A standing request: frames arrive under its id until it is cancelled."""

    __slots__ = ("delivered", "error", "given", "id", "inbox", "request", "sharers", "then")

    def __init__(self, request: Request) -> None:
        self.id = 0
        self.request = request
        self.inbox: deque[bytearray] = deque()
        self.error: PenstockError | None = None
        self.then: list[Callable[[], None]] = _NOBODY  # called whenever something arrives
        # Two counters, each written by one side only: outstanding credit is their difference.
        self.given = 0
        self.delivered = 0
        self.sharers = 1  # nodes among which the credit is divided

    @property
    def done(self) -> bool:
        """Whether there is something to take: a frame, or an error."""
        return bool(self.inbox) or self.error is not None

    def arrived(self, frame_: bytearray) -> None:
        """A frame under this subscription's id."""
        if frame_[4] == _DELIVER:
            if len(frame_) < FRAME_BYTES + COUNT.size:
                raise ProtocolError("a delivery without its counts")
            self.delivered += messages_of(frame_)
        self.inbox.append(frame_)
        for wake in self.then:
            wake()

    def fail(self, error: PenstockError) -> None:
        """Nothing more will arrive."""
        self.error = error
        for wake in self.then:
            wake()

    def arrived_late(self, frame_: bytearray) -> None:
        """A frame crossed the cancellation."""

    @property
    def queue(self) -> int | None:
        """The queue whose messages are delivered, if it is one."""
        return None

    def renewed(self) -> None:
        """The connection was lost, and the node is asked anew; called before it is."""

    def request_for(self, part: Subscription) -> Request:
        """In a cluster: asks one node for its part, which has a credit of its own."""
        return part.request


def listen(waitable: Pending | Subscription, wake: Callable[[], None]) -> None:
    """Has `wake` called when something arrives. It must not change who listens."""
    waitable.then = [*waitable.then, wake]


def unlisten(waitable: Pending | Subscription, wake: Callable[[], None]) -> None:
    """Undoes `listen`."""
    waitable.then = [each for each in waitable.then if each is not wake]
