"""Messages and deliveries of the asyncio shell."""

from __future__ import annotations

from collections.abc import Awaitable, Generator, Iterator, Sequence
from typing import Any

from penstock.client.delivery import LeasedBatch
from penstock.client.inputs import lease_ms, milliseconds
from penstock.client.messages import LeasedMessage
from penstock.client.settle import FLUSH_AT, settle
from penstock.wire.columns import Rows
from penstock.wire.frames import Settle


class _Done:
    """An awaitable that is done: `message.ack()` and `await message.ack()` are the same."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


_DONE = _Done()


class AsyncMessage(LeasedMessage):
    """A leased message. Ack it when it is dealt with; else it is delivered again."""

    __slots__ = ()

    def ack(self, wait: bool = False) -> Awaitable[None]:
        """Done with it. Buffered, and sent with others within 50 ms: it need not be awaited.

        With `wait`, await it: then it is committed; LeaseLostError if the lease was lost. Without,
        refusals are counted in the queue's `refused`.
        """
        if wait:
            return self._settle(Settle.ACK)
        granted = self._granted
        acks = granted.acks
        acks.append(self)
        if len(acks) >= FLUSH_AT or not granted.settler.attended:
            granted.settler.due()
        return _DONE

    def nack(self, delay: float = 0.0) -> Awaitable[None]:
        """Gives it back, to be delivered again after `delay` seconds. Need not be awaited."""
        return self._send(Settle.NACK, milliseconds("delay", delay))

    def extend(self, seconds: float) -> Awaitable[None]:
        """Makes the lease end that long from now; LeaseLostError if it was lost.

        It may cover messages that were popped with this one: those have it as long, too. If they
        were pushed one by one, it does not end sooner for the sake of one of them.
        """
        return self._settle(Settle.EXTEND, lease_ms(seconds))

    def dead(self) -> Awaitable[None]:
        """Gives up on it: it goes to the dead letters. Need not be awaited."""
        return self._send(Settle.DEAD)

    def _send(self, op: Settle, arg: int = 0) -> Awaitable[None]:
        granted = self._granted
        granted.settler.keep([granted.item(op, self.position, 1, arg)])
        granted.settler.flush()
        return _DONE

    def _settle(self, op: Settle, arg: int = 0) -> Awaitable[None]:
        granted = self._granted
        items = [granted.item(op, self.position, 1, arg)]
        outcome: Awaitable[None] = granted.settler.run(settle(granted.settler, items))
        return outcome


class AsyncDelivery(LeasedBatch):
    """Messages that were popped together, column by column."""

    def __iter__(self) -> Iterator[AsyncMessage]:
        for each in self._granted:
            yield from map(AsyncMessage, each.values, each.positions, each.owners)

    def ack(self, wait: bool = False, rows: Sequence[int] | Rows | None = None) -> Awaitable[None]:
        """Done with all of them, or with those in some rows; as `AsyncMessage.ack`."""
        if wait:
            return self._settle(Settle.ACK, rows=rows)
        self._settler.add(self._items(Settle.ACK, rows=rows))
        return _DONE

    def nack(
        self, delay: float = 0.0, rows: Sequence[int] | Rows | None = None, counted: bool = True
    ) -> Awaitable[None]:
        """Gives all, or some rows, back, for `delay` seconds at least. Need not be awaited.

        `counted=False`: nobody has looked at them, so this delivery of them does not count."""
        op = Settle.NACK if counted else Settle.RETURN
        self._settler.keep(self._items(op, milliseconds("delay", delay), rows))
        self._settler.flush()
        return _DONE

    def dead(self, rows: Sequence[int] | Rows | None = None) -> Awaitable[None]:
        """Gives up on all of them, or on some rows: dead letters. Need not be awaited."""
        self._settler.keep(self._items(Settle.DEAD, rows=rows))
        self._settler.flush()
        return _DONE

    def extend(
        self, seconds: float, rows: Sequence[int] | Rows | None = None
    ) -> Awaitable[None]:
        """Makes all leases, or those of some rows, end that long from now; LeaseLostError if some
        were lost: its `rows` are all of those, and the others are extended. A lease that covers
        more rows is that long for all of them."""
        outcome: Awaitable[None] = self._settler.run(self._extended(lease_ms(seconds), rows))
        return outcome

    def _settle(
        self, op: Settle, arg: int = 0, rows: Sequence[int] | Rows | None = None
    ) -> Awaitable[None]:
        items = self._items(op, arg, rows)
        outcome: Awaitable[None] = self._settler.run(settle(self._settler, items))
        return outcome
