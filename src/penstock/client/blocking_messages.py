"""Messages and deliveries of the blocking shell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.client.delivery import LeasedBatch
from penstock.client.inputs import lease_ms, milliseconds
from penstock.client.messages import LeasedMessage
from penstock.client.settle import FLUSH_AT, settle
from penstock.wire.columns import Rows
from penstock.wire.frames import Settle


class Message(LeasedMessage):
    """A leased message. Ack it when it is dealt with; else it is delivered again."""

    __slots__ = ()

    def ack(self, wait: bool = False) -> None:
        """Done with it. Buffered, and sent with others within 50 ms, unless `wait`.

        With `wait` it is committed when this returns; LeaseLostError if the lease was lost.
        Without, refusals are counted in the queue's `refused`.
        """
        if wait:
            self._settle(Settle.ACK)
            return
        granted = self._granted
        acks = granted.acks
        acks.append(self)
        if len(acks) >= FLUSH_AT or not granted.settler.attended:
            granted.settler.due()

    def nack(self, delay: float = 0.0) -> None:
        """Gives it back, to be delivered again after `delay` seconds. Sent at once."""
        granted = self._granted
        arg = milliseconds("delay", delay)
        granted.settler.keep([granted.item(Settle.NACK, self.position, 1, arg)])
        granted.settler.flush()

    def extend(self, seconds: float) -> None:
        """Makes the lease end that long from now; LeaseLostError if it was lost.

        It may cover messages that were popped with this one: those have it as long, too. If they
        were pushed one by one, it does not end sooner for the sake of one of them.
        """
        self._settle(Settle.EXTEND, lease_ms(seconds))

    def dead(self) -> None:
        """Gives up on it: it goes to the dead letters. Sent at once."""
        granted = self._granted
        granted.settler.keep([granted.item(Settle.DEAD, self.position, 1)])
        granted.settler.flush()

    def _settle(self, op: Settle, arg: int = 0) -> None:
        granted = self._granted
        granted.settler.run(settle(granted.settler, [granted.item(op, self.position, 1, arg)]))


class Delivery(LeasedBatch):
    """Messages that were popped together, column by column."""

    def __iter__(self) -> Iterator[Message]:
        for each in self._granted:
            yield from map(Message, each.values, each.positions, each.owners)

    def ack(self, wait: bool = False, rows: Sequence[int] | Rows | None = None) -> None:
        """Done with all of them, or with those in some rows; as `Message.ack`."""
        items = self._items(Settle.ACK, rows=rows)
        if wait:
            self._settler.run(settle(self._settler, items))
        else:
            self._settler.add(items)

    def nack(
        self, delay: float = 0.0, rows: Sequence[int] | Rows | None = None, counted: bool = True
    ) -> None:
        """Gives all, or some rows, back, to be delivered again after `delay` s. Sent at once.

        `counted=False`: nobody has looked at them, so this delivery of them does not count."""
        op = Settle.NACK if counted else Settle.RETURN
        self._settler.keep(self._items(op, milliseconds("delay", delay), rows))
        self._settler.flush()

    def dead(self, rows: Sequence[int] | Rows | None = None) -> None:
        """Gives up on all of them, or on some rows: they are dead letters. Sent at once."""
        self._settler.keep(self._items(Settle.DEAD, rows=rows))
        self._settler.flush()

    def extend(self, seconds: float, rows: Sequence[int] | Rows | None = None) -> None:
        """Makes all leases, or those of some rows, end that long from now; LeaseLostError if some
        were lost: its `rows` are all of those, and the others are extended. A lease that covers
        more rows is that long for all of them."""
        self._settler.run(self._extended(lease_ms(seconds), rows))
