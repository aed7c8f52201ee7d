"""A worker's place in a gang, as both shells give it."""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

from penstock.client.delivery import Granted
from penstock.client.messages import LeasedMessage
from penstock.client.settle import Settler
from penstock.wire.batch import Batch
from penstock.wire.frames import GrantHead
from penstock.wire.messages import Seat

M = TypeVar("M", bound=LeasedMessage)


class GangSeat(NamedTuple, Generic[M]):
    """What a worker knows of its gang. All members have the same message, under one lease: the
    manager extends it, and acks or nacks the message; any member may nack it when another is gone,
    and all are granted anew then. A lease that is lost is lost for all of them."""

    message: M
    rank: int  # 0: the manager
    addresses: list[str]  # of all members, by rank, as they parked

    @classmethod
    def of(cls, kind: type[M], seat: Seat, settler: Settler) -> GangSeat[M]:
        """The place that a node gave."""
        (message,) = kind.all_of([granted(seat, settler)])
        return cls(message, seat.rank, seat.addresses)

    @property
    def size(self) -> int:
        """How many members the gang has."""
        return len(self.addresses)

    @property
    def attempt(self) -> int:
        """How often the gang has been granted, this time included."""
        return self.message.deliveries

    @property
    def lease(self) -> int:
        """The number of the lease: no other grant of the queue has it."""
        return self.message._granted.grant

    @property
    def manager(self) -> bool:
        """Whether this is the member that extends and settles the lease."""
        return self.rank == 0


def granted(seat: Seat, settler: Settler) -> Granted:
    """The lease that a place comes with, and its message."""
    batch = Batch.parse(seat.batch)
    head = GrantHead(seat.grant, seat.position, 1, seat.shard, seat.attempt, len(seat.batch))
    return Granted(head, batch, settler)
