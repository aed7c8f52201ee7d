"""Operations of queues, written once for both shells (see `steps`)."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from penstock.client.delivery import Part, read_grants
from penstock.client.inputs import id_bytes, lease_ms, milliseconds
from penstock.client.messages import LeasedMessage
from penstock.client.requests import Request, Resend
from penstock.client.settle import Settler, ack_items, flush_settler, settle
from penstock.client.state import QueueState
from penstock.client.steps import Start, Steps, ask, decoder
from penstock.errors import InvalidError
from penstock.wire.frames import POP, PopMode, Settle, SettleItem, Verb
from penstock.wire.messages import (
    Delete,
    Purge,
    Redrive,
    Release,
    StreamStats,
)

_POP_BYTES = 4 << 20  # of one answer; the first batch may be larger
_PARK_S = 60.0  # how long the node holds a pop that finds nothing; then it is asked anew

_read_int = decoder(int)
_read_bool = decoder(bool)
_read_figures = decoder(dict[str, Any])
_read_strings = decoder(list[str])


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


def pop_grants(
    queue: QueueState,
    messages: int,
    timeout: float,
    lease: float | None,
    mode: PopMode = PopMode.LEASE,
) -> Steps[list[Part]]:
    """Grants of at most so many messages; none if there are none within `timeout` seconds."""
    ends = time.monotonic() + timeout if timeout else 0.0
    while True:
        request = PopRequest(queue._settler, messages, min(timeout, _PARK_S), lease, mode)
        answer: bytearray = yield request
        granted = read_grants(answer, queue._settler)
        if granted or not timeout:
            return granted
        timeout = max(ends - time.monotonic(), 0.0)
        if not timeout:
            return granted


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
    for request in settler.drain(items):
        yield Start(request)


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
    return ask(Purge(queue.info.id), _read_int)


def purge_dead(queue: QueueState) -> Steps[int]:
    """Drops all dead letters; how many they were."""
    return ask(Purge(queue.info.id, dead=True), _read_int)


def redrive(queue: QueueState, limit: int = 1000) -> Steps[int]:
    """Moves at most `limit` dead letters back to the queue; how many it moved."""
    return ask(Redrive(queue.info.id, limit), _read_int)


def stats(queue: QueueState) -> Steps[dict[str, Any]]:
    """Figures of the queue."""
    return ask(StreamStats(queue.info.id), _read_figures)


def release(queue: QueueState, ids: Iterable[bytes | str]) -> Steps[list[str]]:
    """Makes held messages available, by id: `released`, `done` or `unknown` for each."""
    return ask(Release(queue.info.id, [id_bytes(each) for each in ids]), _read_strings)


def delete(queue: QueueState) -> Steps[bool]:
    """Deletes the queue and all its messages; whether it was there."""
    return ask(Delete("queue", queue.name, queue.info.namespace), _read_bool)
