"""Reservations of a queue, written once for both shells (see `steps`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from penstock.client.delivery import Granted, Merged, Part, read_grants
from penstock.client.inputs import check_name
from penstock.client.producer import shard_of
from penstock.client.requests import Request, Resend
from penstock.client.spread import ask_all, ask_owners
from penstock.client.state import QueueState
from penstock.client.steps import Steps, ask, decoder
from penstock.errors import DamagedError, InvalidError
from penstock.wire.batch import Batch
from penstock.wire.frames import Verb
from penstock.wire.messages import (
    FinishReservations,
    ReadReserved,
    Reservation,
    Reservations,
    Reserve,
    ReservedPart,
    SealReservation,
    Unreserve,
    pack,
)
from penstock.wire.numeric import np

_read_parts = decoder(list[ReservedPart])
_read_reservation = decoder(Reservation | None)
_read_reservations = decoder(list[Reservation])
_read_int = decoder(int)


def reserve(
    queue: QueueState,
    key: str,
    number: int,
    max_messages: int = 10_000,
    max_bytes: int = 64 << 20,
) -> Steps[Reservation | None]:
    """Reserves messages under a key and number: nobody else gets them, for as long as it takes.

    Asked again with the same number, the answer is the same. None if there is nothing now: the
    number is not used up. Numbers begin at 1 and grow. ConflictError if the number is finished or
    was released, LimitError if too many reservations of the key are open.
    """
    name, home = _home(queue, key)
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise InvalidError(f"number must be 1 or more, not {number!r}")
    if max_messages < 1 or max_bytes < 1:
        raise InvalidError("a reservation has room for one message and one byte at least")
    stream = queue.info.id
    look = SealReservation(stream, name, number)
    known: Reservation | None = yield from ask(look, _read_reservation, home)
    if known is not None:
        return known
    parts = yield from _lease(queue, name, number, max_messages, max_bytes)
    if not parts:
        return None
    seal = SealReservation(stream, name, number, parts)
    sealed: Reservation | None = yield from ask(seal, _read_reservation, home)
    return sealed


def _lease(
    queue: QueueState, key: str, number: int, messages: int, size: int
) -> Steps[list[ReservedPart]]:
    """Every node gives its share."""
    stream, routes = queue.info.id, queue._routes
    found: list[ReservedPart]
    if routes is None:
        found = yield from ask(Reserve(stream, key, number, messages, size), _read_parts)
        return found
    nodes = max(len(list(routes.owners())), 1)
    call = Reserve(stream, key, number, -(-messages // nodes), -(-size // nodes))
    told = yield from ask_owners(routes, range(queue._producer.shards), call, _read_parts)
    shards = {part.shard: part for each in told for part in each.value}
    return [part for _, part in sorted(shards.items())]


class ReservedReader:
    """Reads one part of a reservation, piece by piece."""

    def __init__(self, queue: QueueState, key: str, number: int, part: ReservedPart) -> None:
        if not isinstance(part, ReservedPart):
            raise InvalidError(f"a part of a reservation is meant, not {part!r}")
        self._queue = queue
        self._key, _ = _home(queue, key)
        self._number = number
        self._part = part
        self._after = _After(0, 0)
        self._messages = 0

    def next(self) -> Steps[list[Batch]]:
        """The next batches, with the reserved rows and no others; none at the end. DamagedError if
        some of them could not be read."""
        return [_rows_of(each) for each in (yield from self.grants())]

    def grants(self) -> Steps[list[Part]]:
        """The same, as the node granted them."""
        call = ReadReserved(
            self._queue.info.id, self._key, self._number, self._part.shard, *self._after
        )
        request = Request(Verb.CALL, [pack(call)], Resend.MARKED, shard=self._part.shard)
        answer: bytearray = yield request
        found = read_grants(answer, self._queue._settler)
        for each in found:
            for grant in each.grants if isinstance(each, Merged) else [each]:
                self._after = max(self._after, _After(grant.grant, grant.positions[-1] + 1))
            self._messages += len(each.positions)
        if not found and self._messages != self._part.messages:
            raise DamagedError(
                f"shard {self._part.shard} could give {self._messages:,} of "
                f"{self._part.messages:,} messages of reservation {self._number}"
            )
        return found


class _After(NamedTuple):
    """Where to go on: after this position of this grant."""

    grant: int
    position: int


def _rows_of(part: Granted | Merged) -> Batch:
    if isinstance(part, Merged) or len(part.positions) == len(part.batch):
        return part.batch
    rows = np.arange(len(part.batch))[part.rows]
    return Batch.parse(part.batch.take(rows), verify=False)


def finish(queue: QueueState, key: str, through: int) -> Steps[int]:
    """Acknowledges all reservations of a key with a number up to `through`, once: how many messages
    they have. When it returns, that is durable; done before, it is harmless, and the answer is 0.
    """
    name, home = _home(queue, key)
    return ask(FinishReservations(queue.info.id, name, through), _read_int, home)


def unreserve(
    queue: QueueState, key: str, numbers: Iterable[int] | None = None
) -> Steps[int]:
    """Gives back what reservations of a key hold, those of some numbers or all: how many messages.

    They are delivered again, to anybody. For operators: whoever reserved them cannot read or
    acknowledge them any more.
    """
    name, home = _home(queue, key)
    wanted = None if numbers is None else list(numbers)
    return ask(Unreserve(queue.info.id, name, wanted), _read_int, home)


def reservations(queue: QueueState) -> Steps[list[Reservation]]:
    """All open reservations of the queue, by key and number."""
    call = Reservations(queue.info.id)
    if queue._routes is None:
        found: list[Reservation] = yield from ask(call, _read_reservations)
        return found
    told = yield from ask_all(queue._routes, call, _read_reservations)
    joined = [each for part in told.values() for each in part]
    return sorted(joined, key=lambda each: (each.key, each.number))


def _home(queue: QueueState, key: str) -> tuple[str, int]:
    """The key, checked, and its home shard."""
    name = check_name(key)
    return name, shard_of(name.encode(), queue._producer.shards)
