"""Operations of queues, written once for both shells (see `steps`)."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from penstock.client.delivery import Part, read_grants
from penstock.client.inputs import check_wait, id_bytes, milliseconds
from penstock.client.messages import LeasedMessage, SeenMessage
from penstock.client.ops_fabric import stream_stats
from penstock.client.pops import PARK_S, PopSearch
from penstock.client.pops import PopRequest as PopRequest
from penstock.client.producer import shard_of
from penstock.client.requests import messages_of
from penstock.client.settle import Settler, flush_settler, settle, started
from penstock.client.settle_items import ack_items
from penstock.client.spread import ask_all, ask_owners, for_each
from penstock.client.state import QueueState
from penstock.client.steps import Steps, ask, decoder
from penstock.errors import InvalidError, NotFoundError
from penstock.wire.frames import PopMode, Settle, SettleItem
from penstock.wire.messages import (
    Delete,
    Purge,
    Redrive,
    Release,
)

_STATES = {
    "delayed": PopMode.PEEK_DELAYED,
    "leased": PopMode.PEEK_LEASED,
    "held": PopMode.PEEK_HELD,
}

_read_int = decoder(int)
_read_bool = decoder(bool)
_read_strings = decoder(list[str])


def pop_grants(
    queue: QueueState,
    messages: int,
    timeout: float,
    lease: float | None,
    mode: PopMode = PopMode.LEASE,
) -> Steps[list[Part]]:
    """Grants of at most so many messages; none if there are none within `timeout` seconds."""
    check_wait(timeout)
    if queue._routes is not None:
        search = PopSearch(
            queue._routes, queue._pop_route, queue._settler, messages, lease, mode,
            queue._only_shard,
        )  # fmt: skip
        return (yield from search.run(timeout))
    ends = time.monotonic() + timeout if timeout else 0.0
    while True:
        request = PopRequest(queue._settler, messages, min(timeout, PARK_S), lease, mode)
        answer: bytearray = yield request
        granted = read_grants(answer, queue._settler)
        if not granted and mode is PopMode.LEASE and messages_of(answer):
            continue  # what it found is damaged; there may be more
        if granted or not timeout:
            return granted
        timeout = max(ends - time.monotonic(), 0.0)
        if not timeout:
            return granted


def looking(state: str) -> PopMode:
    """The mode of a look at messages in a state."""
    try:
        return _STATES[state]
    except KeyError:
        raise InvalidError(f"state {state!r}: use {', '.join(_STATES)}") from None


def seen(found: Iterable[LeasedMessage]) -> list[SeenMessage]:
    """What a look has found. A node that does not know such looks tells of other messages, which
    are left out."""
    each = [SeenMessage(one.value, one.position, one._granted) for one in found]
    return [one for one in each if one.until_us]


def ack_many(
    queue: QueueState, messages: Iterable[LeasedMessage], wait: bool = False
) -> Steps[None]:
    """Acknowledges messages. With `wait`, they are committed when it returns; LeaseLostError if one
    was refused. Without, they are sent now, and refusals are counted in `refused`.
    """
    items = ack_items(_own(queue, messages))
    if wait:
        yield from settle(queue._settler, items)
        return
    yield from _send(queue._settler, items)


def nack_many(
    queue: QueueState, messages: Iterable[LeasedMessage], delay: float = 0.0
) -> Steps[None]:
    """Gives messages back, to be delivered again after `delay` seconds."""
    arg = milliseconds("delay", delay)
    items = [
        item._replace(op=int(Settle.NACK), arg=arg) for item in ack_items(_own(queue, messages))
    ]
    yield from _send(queue._settler, items)


def _send(settler: Settler, items: list[SettleItem]) -> Steps[None]:
    if not settler.attended:
        settler.attend(settler)
    yield from started(settler.drain(items))


def _own(queue: QueueState, messages: Iterable[LeasedMessage]) -> list[LeasedMessage]:
    own = list(messages)
    for message in own:
        if not isinstance(message, LeasedMessage) or message._granted.settler is not queue._settler:
            raise InvalidError(f"{message!r} was not popped from this {queue!r}")
    return own


def flush(queue: QueueState) -> Steps[None]:
    """Sends buffered acks and waits until they are committed; refusals are counted in `refused`."""
    return flush_settler(queue._settler)


def purge(queue: QueueState) -> Steps[int]:
    """Drops all waiting messages; leased ones stay. How many they were."""
    return _purge(queue, Purge(queue.info.id))


def purge_dead(queue: QueueState) -> Steps[int]:
    """Drops all dead letters; how many they were."""
    return _purge(queue, Purge(queue.info.id, dead=True))


def _purge(queue: QueueState, call: Purge) -> Steps[int]:
    if queue._routes is None:
        dropped: int = yield from ask(call, _read_int)
        return dropped
    told = yield from ask_all(queue._routes, call, _read_int)
    return sum(told.values())


def redrive(queue: QueueState, limit: int = 1000) -> Steps[int]:
    """Moves at most `limit` dead letters back to the queue; how many it moved."""
    routes = queue._routes
    moved: int = 0
    if routes is None:
        moved = yield from ask(Redrive(queue.info.id, limit), _read_int)
        return moved
    for node in routes.owners():  # one after the other, as the limit is for all
        if moved >= limit:
            break
        call = Redrive(queue.info.id, limit - moved)
        told = yield from ask_owners(routes, routes.owned_by(node)[:1], call, _read_int)
        moved += sum(int(each.value) for each in told)
    return moved


def stats(queue: QueueState) -> Steps[dict[str, Any]]:
    """Figures of the queue."""
    return stream_stats(queue)


def release(queue: QueueState, ids: Iterable[bytes | str]) -> Steps[list[str]]:
    """Makes held messages available, by id, and those that were pushed with a delay before their
    time, as long as their ids are remembered: `released`, `done` or `unknown` for each. One that
    was given back with a delay waits for it (`done`). If their node dies before they are popped,
    those with a delay wait again."""
    stream, routes = queue.info.id, queue._routes
    keys = [id_bytes(each) for each in ids]
    found: list[str]
    if routes is None:
        found = yield from ask(Release(stream, keys), _read_strings)
    else:
        placed = [(shard_of(key, queue._producer.shards), key) for key in keys]
        found = yield from for_each(
            routes, placed, lambda chosen: Release(stream, chosen), _read_strings
        )
    return found


def delete(queue: QueueState) -> Steps[bool]:
    """Deletes the queue and all its messages; whether it was there. What was acked through this
    object is committed before: such acks would be refused afterwards."""
    if queue._settler.busy:
        with suppress(NotFoundError):  # another has deleted it meanwhile
            yield from flush_settler(queue._settler)
    was_there = yield from ask(Delete("queue", queue.name, queue.info.namespace), _read_bool)
    return bool(was_there)
