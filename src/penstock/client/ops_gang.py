"""Operations of queues of gangs, written once for both shells (see `steps`)."""

from __future__ import annotations

import time
from datetime import datetime

from penstock.client.gangs import granted
from penstock.client.inputs import check_headers, id_bytes, milliseconds
from penstock.client.messages import Receipt
from penstock.client.ops_push import terms_of
from penstock.client.pops import PARK_S, give_up_all
from penstock.client.push import push_one
from penstock.client.requests import Pending, Request, Resend
from penstock.client.routing import Routes
from penstock.client.rows import Headers
from penstock.client.settle import Settler
from penstock.client.state import QueueState
from penstock.client.steps import Abandon, Finish, FinishAny, Start, Steps, body_of, decoder
from penstock.errors import InvalidError, MovedError
from penstock.wire.frames import Settle, Verb
from penstock.wire.limits import MAX_GANG_MEMBERS
from penstock.wire.messages import Park, Seat, pack

_GRACE_S = 5.0  # for the answer of a node that has waited; who leaves earlier may miss a gang

_decode_seat = decoder(Seat | None)


def push_gang(
    queue: QueueState,
    value: bytes,
    members: int,
    *,
    headers: Headers | None = None,
    id: bytes | str | None = None,
    delay: float = 0.0,
    at: datetime | float | None = None,
    ttl: float | None = None,
    priority: int = 0,
    durability: str | None = None,
) -> Steps[Receipt]:
    """Stores a message that is granted to so many parked workers at once: 1 to 1,000. When it
    returns, it is as durable as the receipt says. The rest is as for `push`.
    """
    if isinstance(members, bool) or not isinstance(members, int):
        raise InvalidError(f"members must be a number, not {members!r}")
    if not 0 < members <= MAX_GANG_MEMBERS:
        raise InvalidError(f"a gang has 1 to {MAX_GANG_MEMBERS:,} members, not {members:,}")
    if not queue.options.gangs:
        raise InvalidError(f"queue {queue.name!r} has no gangs: create it with gangs=True")
    check_headers(headers)
    message_id = None if id is None else id_bytes(id)
    place = queue._place_for(None, message_id)._replace(generation=members)
    terms = terms_of(delay, at, ttl, priority, durability)
    return push_one(place, value, None, headers, None, terms, queue._extra(message_id, False))


class ParkRequest(Request):
    """A worker waits for a gang. Should it be given one after it has left, the gang is given back
    at once: the other members must not wait for it."""

    __slots__ = ("_settler",)

    def __init__(
        self, settler: Settler, worker: str, address: str, wait_s: float, shard: int
    ) -> None:
        call = Park(settler.stream, worker, address, milliseconds("timeout", wait_s))
        super().__init__(Verb.CALL, [pack(call)], Resend.ANEW, wait_s, shard)
        self._settler = settler

    def answered_late(self, answer: bytearray) -> None:
        """Nobody will ever take this place."""
        seat = read_seat(answer)
        if seat is not None:
            self._settler.keep(granted(seat, self._settler).items(Settle.NACK))


def read_seat(answer: bytearray) -> Seat | None:
    """The place that a node gave, if it did."""
    seat: Seat | None = _decode_seat(body_of(answer))
    return seat


def park(
    queue: QueueState, worker: str, address: str = "", timeout: float = 0.0
) -> Steps[tuple[Seat, Settler] | None]:
    """A place in a gang; None if there is none within `timeout` seconds. In a cluster the worker
    waits at the owner of the queue's shard, and follows it."""
    if not isinstance(worker, str) or not isinstance(address, str):
        raise InvalidError("the name and the address of a worker are text")
    shard, settler, routes = queue._only_shard, queue._settler, queue._routes
    if shard is None or not queue.options.gangs:
        raise InvalidError(f"queue {queue.name!r} has no gangs: create it with gangs=True")
    ends_s = time.monotonic() + timeout
    while True:
        wait_s = min(max(ends_s - time.monotonic(), 0.0), PARK_S)
        request = ParkRequest(settler, worker, address, wait_s, shard)
        if routes is None:
            answer: bytearray | None = yield request
        else:
            answer = yield from _park_at_owner(routes, request, wait_s)
        seat = None if answer is None else read_seat(answer)
        if seat is not None:
            return seat, settler
        if time.monotonic() >= ends_s:
            return None


def _park_at_owner(
    routes: Routes, request: ParkRequest, wait_s: float
) -> Steps[bytearray | None]:
    """The answer of the shard's owner; None if the shard has another one since."""
    request.node = routes.owner(request.shard)
    try:
        pending: Pending = yield Start(request)
        yield from _wait(routes, pending, wait_s + _GRACE_S)
        if not pending.done:
            yield Abandon(pending)
        if not pending.done:  # in a loop of another thread it may have been answered just now
            return None
        answer: bytearray = yield Finish(pending)
    except MovedError:
        return None
    return answer


def _wait(routes: Routes, pending: Pending, seconds: float) -> Steps[None]:
    """Until it is answered, the shard has another owner, or time is up. Other news of the cluster
    do not matter: whoever parks anew stands behind all others."""
    request, ends_s = pending.request, time.monotonic() + seconds
    try:
        while not pending.done and request.node == routes.owner(request.shard):
            if (left_s := ends_s - time.monotonic()) <= 0:
                return
            yield FinishAny([pending, routes.changed], left_s)
    except GeneratorExit:  # there is nobody any more to do anything
        raise
    except BaseException:
        yield from give_up_all([pending])
        raise
