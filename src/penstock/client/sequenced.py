"""Requests that take numbers of a producer's sequence, and what to do when they are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self, TypeVar

from penstock.client.producer import Lane, Verdict
from penstock.client.requests import Request
from penstock.client.steps import Steps
from penstock.cluster.ring import ALONE_TURNS
from penstock.errors import ForgottenError, InvalidError, LimitError, PenstockError

# A refusal takes those behind it along that are under way on the same shard, once for each: two
# queues that are there at once may have so many.
_TRIES = 2 * ALONE_TURNS

S = TypeVar("S", bound="SequencedRequest")


class OvertakenError(Exception):
    """Sent now, a request would overtake one that must come before it. Internal."""


class SequencedRequest(Request):
    """A request that is one or more numbers of a lane; taken when it is sent."""

    __slots__ = ("_count", "_first", "_lane", "_stored", "follows", "verdict")

    _lane: Lane | None
    _stored: bool
    follows: SequencedRequest | None
    verdict: Verdict

    def _unsent(self) -> None:
        self._lane = None
        self._stored = False
        # If order matters, and until it is sent itself: what was sent before, to the same place.
        self.follows = None
        self.verdict = Verdict.FINAL

    def _lane_to_use(self, lane_of: Callable[[int], Lane], shard: int) -> Lane:
        """The lane, unless that would put it before a request that it follows."""
        lane = lane_of(shard)
        if self.follows is not None and self.follows._is_before(lane):
            raise OvertakenError
        return lane

    def _is_before(self, lane: Lane) -> bool:
        """Whether this was sent, is not known to be stored, and the lane goes on without it."""
        if self._lane is None or self._stored:
            return False
        return lane is not self._lane or lane.next < self._first + self._count

    def _take(self, lane: Lane, count: int) -> None:
        self._lane, self._first, self._count = lane, lane.next, count
        lane.next += count
        self.follows = None  # it has its place: each would keep the one before, and so all of them

    def answered(self, answer: bytearray) -> None:
        """Tells the lane how far the node has come."""
        lane, end = self._lane, self._first + self._count
        if lane is not None and end > lane.stored:
            lane.stored = end
        self._stored = True

    def refused(self, error: PenstockError) -> None:
        """Tells the lane, which may use the numbers again."""
        if self._lane is not None:
            self.verdict = self._lane.refused(self._first, self._count, error, self.resent)

    def check_place(self) -> Steps[None]:
        """Before it is sent again: StaleError if it belongs elsewhere by now."""
        yield from ()

    def again(self) -> Self:
        """The same request, to be sent under new numbers."""
        raise NotImplementedError


def answer_of(request: SequencedRequest) -> Steps[bytearray]:
    """Sends a request, again if it was not refused for its own sake, and waits for its answer."""
    try:
        answer: bytearray = yield request
    except (InvalidError, ForgottenError) as error:
        _, answer = yield from sent_again(request, error)
    return answer


def sent_again(request: S, error: PenstockError) -> Steps[tuple[S, bytearray]]:
    """After a refusal: sends the request again if it was not refused for its own sake.

    Gives the request that was answered, and the answer; raises `error` if nothing can be done, and
    StaleError if it has to be placed anew.
    """
    suspected = False
    for _ in range(_TRIES):
        if request.verdict is Verdict.FINAL or (request.verdict is Verdict.SUSPECT and suspected):
            raise error
        yield from request.check_place()
        suspected = suspected or request.verdict is Verdict.SUSPECT
        request = request.again()
        try:
            return request, (yield request)
        except (InvalidError, ForgottenError) as refusal:
            error = refusal
    raise LimitError("too many requests before this one were refused; nothing was stored")
