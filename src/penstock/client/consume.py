"""Standing consumption of a queue: credit, what was handed out, and what goes back at the end.

Shared by both shells, which only wait for frames and write the loop.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Generic, TypeVar

from penstock.client.delivery import Granted, Part, read_grants
from penstock.client.inputs import lease_ms
from penstock.client.messages import LeasedMessage
from penstock.client.requests import Request, Resend, Subscription
from penstock.client.settle import Settler
from penstock.client.settle_items import ack_items
from penstock.errors import InvalidError
from penstock.wire.buffers import Buffer
from penstock.wire.frames import POP, PopMode, Settle, SettleItem, Verb

_DELIVER_BYTES = 1280 << 10  # of one frame: room for a batch as `push_many` makes them, uncut
_MAX_PREFETCH = 1 << 20
_MAX_GROWN = 1 << 14  # how far ahead a fast consumer is served when it does not say itself
_QUICK_S = 0.1  # half of what was ahead was used up so soon: twice as much may be
_SLOW_S = 1.0  # it took so long: half as much

ACKS_WAIT_S = 0.003  # at most, for others to be sent with them, while more messages come
_LEAST_WAIT_S = 0.001  # less is nothing that a socket can wait for
_IN_VAIN = 16  # so many acks are sent at once after one that waited for nothing

M = TypeVar("M", bound=LeasedMessage)


class _SubscribeRequest(Request):
    """Asks for deliveries; after a reconnect, for as many as were still to come."""

    __slots__ = ("_lease_ms", "_stream", "_subscription")

    def __init__(self, subscription: Subscription, stream: int, lease: int) -> None:
        super().__init__(Verb.SUBSCRIBE, [], Resend.ANEW)
        self._subscription = subscription
        self._stream = stream
        self._lease_ms = lease

    def parts(self) -> list[Buffer]:
        """With the credit as it is now."""
        credit = max(self._subscription.given - self._subscription.delivered, 0)
        body = POP.pack(self._stream, credit, _DELIVER_BYTES, 0, self._lease_ms, PopMode.LEASE)
        return [body]


class QueueSubscription(Subscription):
    """Deliveries of a queue."""

    __slots__ = ("_lease_ms", "_settler")

    def __init__(self, settler: Settler, credit: int, lease: int) -> None:
        super().__init__(_SubscribeRequest(self, settler.stream, lease))
        self.given = credit
        self._settler = settler
        self._lease_ms = lease

    @property
    def queue(self) -> int:
        """Its id."""
        return self._settler.stream

    def arrived_late(self, frame_: bytearray) -> None:
        """Nobody will ever see these messages: they are free again with the next flush."""
        for granted in read_grants(frame_, self._settler):
            self._settler.keep(granted.items(Settle.NACK))

    def request_for(self, part: Subscription) -> Request:
        """The same queue and lease, with the part's own credit."""
        return _SubscribeRequest(part, self._settler.stream, self._lease_ms)


class ConsumeState(Generic[M]):
    """One consume loop. `take` gives the next delivery, `unhanded` what nobody has seen."""

    def __init__(
        self,
        settler: Settler,
        make: Callable[[bytes, int, Granted], M],
        prefetch: int | None,
        lease: float | None,
        max_messages: int | None,
        clock: Callable[[], float] | None = None,
        ordered: bool = False,
    ) -> None:
        """`ordered`: what comes next may wait for the ack of what came before."""
        bad = isinstance(prefetch, bool) or not isinstance(prefetch, int | None)
        if bad or (prefetch is not None and prefetch < 1):
            raise InvalidError(f"prefetch must be 1 or more, not {prefetch!r}")
        if max_messages is not None and max_messages < 1:
            raise InvalidError(f"max_messages must be 1 or more, not {max_messages!r}")
        credit = min(prefetch or 1, _MAX_PREFETCH, max_messages or _MAX_PREFETCH)
        self.settler = settler
        self.subscription = QueueSubscription(settler, credit, lease_ms(lease))
        self._make = make
        self._window = credit  # messages that may be leased ahead
        self._adapts = prefetch is None
        self._clock = clock or time.monotonic
        self._since = self._clock()  # when credit was last given
        self._flushed = self._since - ACKS_WAIT_S  # when acks were last sent
        self._ordered = ordered
        self._at_once = 0  # so many are sent without waiting for others
        self._most = max_messages
        self._handed = 0  # since the start
        self._owed = 0  # handed out, and not yet given back as credit
        self._unseen: deque[Part] = deque()
        self._current: Iterator[M] = iter(())

    @property
    def finished(self) -> bool:
        """Whether as many messages as were wanted have been handed out."""
        return self._most is not None and self._handed >= self._most

    def take(self) -> list[Part]:
        """The next delivery, now counted as handed out; only when the subscription has one."""
        granted = read_grants(self.subscription.inbox.popleft(), self.settler)
        for each in granted:
            self._count(each)
        return granted

    def open(self) -> None:
        """The next delivery, to be handed out message by message; as `take`."""
        self._unseen.extend(read_grants(self.subscription.inbox.popleft(), self.settler))

    def messages(self) -> Iterator[M] | None:
        """The messages of the next part that was opened; None when another must be opened, or as
        many as were wanted have been handed out."""
        if not self._unseen or self.finished:
            return None
        part = self._unseen.popleft()
        self._count(part)
        self._current = map(self._make, part.values, part.positions, part.owners)
        if self._most is not None and self._handed > self._most:
            # Several nodes gave more than was wanted: the rest is not handed out.
            return islice(self._current, len(part.positions) - (self._handed - self._most))
        return self._current

    def acks_wait_s(self) -> float:
        """How long acks may wait for others before they are sent. Not at all after a pause; where
        messages come one after the other, a request for each would be half of the node's work."""
        if self._ordered or self._at_once or not self.settler.waiting:
            return 0.0
        wait_s = self._flushed + ACKS_WAIT_S - self._clock()
        return wait_s if wait_s >= _LEAST_WAIT_S else 0.0

    def waited_in_vain(self) -> None:
        """Nothing came in that time."""
        self._at_once = _IN_VAIN

    def flush(self) -> None:
        """Sends acks that wait, without waiting for answers."""
        if self.settler.waiting:
            self._flushed = self._clock()
            self._at_once = max(self._at_once - 1, 0)
        self.settler.flush()

    def _count(self, part: Part) -> None:
        self._handed += len(part.positions)
        self._owed += len(part.positions)

    def credit(self) -> int:
        """How many more messages the node may send now; 0 if it is not time to tell it."""
        sharers = self.subscription.sharers  # none may be left without credit by the others
        if self._owed < max(self._window // (2 * sharers), 1):
            return 0
        used = self._owed
        credit = used + self._adapt()
        self._owed = min(credit, 0)
        if self._most is not None:
            credit = min(credit, self._most - self.subscription.given)
            if sharers > 1:  # what is left may all be on the node whose share is used up
                credit = max(credit, min(used, self._most - self._handed))
        return max(credit, 0)

    def _adapt(self) -> int:
        """By how much the window grows or shrinks: leases must not run out on messages that wait
        here for a slow consumer, and a fast one must not wait for the node."""
        now = self._clock()
        elapsed_s, self._since = now - self._since, now
        before = self._window
        if self._adapts and elapsed_s < _QUICK_S:
            self._window = min(2 * before, _MAX_GROWN)
        elif self._adapts and elapsed_s > _SLOW_S:
            self._window = max(before // 2, 1)
        return self._window - before

    def unhanded(self) -> list[SettleItem]:
        """Gives back what has arrived and nobody has seen: delivered again at once."""
        nack = int(Settle.NACK)
        left = [item._replace(op=nack) for item in ack_items(list(self._current))]
        inbox = self.subscription.inbox
        while inbox:
            self._unseen.extend(read_grants(inbox.popleft(), self.settler))
        while self._unseen:
            left += self._unseen.popleft().items(nack)
        return left
