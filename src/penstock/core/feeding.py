"""Deliveries to subscriptions, from when their messages are leased until they leave."""

from __future__ import annotations

from collections.abc import Callable

from penstock.core.effects import Slice
from penstock.core.kernel import Kernel
from penstock.core.slices import slices_of
from penstock.core.views import Subscription, Taken
from penstock.errors import MovedError, PenstockError
from penstock.wire.entry import Entry


def still_ours(kernel: Kernel, taken: Taken, epochs: dict[int, int]) -> list[Slice]:
    """What was taken, without the messages of shards that have another owner since: whoever lost a
    shard must deliver nothing of it, and may deliver all else."""
    slices = slices_of(taken)
    if kernel.still_served(epochs):
        return slices
    kept = _kept(kernel, epochs)
    return [part for part in slices if part.shard in kept]


def _kept(kernel: Kernel, epochs: dict[int, int]) -> set[int]:
    """The shards that this node has owned ever since they had these epochs."""
    return {number for number, epoch in epochs.items() if kernel.still_served({number: epoch})}


class Feed:
    """One delivery. The subscription's credit is what it has not been sent: it gets back what does
    not leave, or it would starve while whoever subscribed believes that messages are to come."""

    __slots__ = (
        "_charged", "_epochs", "_feeding", "_kernel", "_leave", "_subscription", "_taken",
    )  # fmt: skip

    def __init__(
        self, kernel: Kernel, subscription: Subscription, taken: Taken, epochs: dict[int, int],
        leave: Callable[[list[Slice]], None],
    ) -> None:  # fmt: skip
        """`epochs`: of the shards that messages were taken from. `leave` is called with what is to
        be sent, perhaps nothing, whenever there is room, and credit, for others."""
        self._kernel = kernel
        self._subscription = subscription
        self._taken = taken
        self._epochs = epochs
        self._leave = leave
        self._charged = taken.messages
        self._feeding = True
        subscription.credit -= taken.messages
        subscription.feeding += 1

    def wait_for(self, entry: Entry) -> None:
        """The messages leave when this entry, the last of their grants, is safe. Nobody waits for
        this very delivery: it comes when it can."""
        entry.done, entry.failed = self._safe, self._failed

    def _safe(self, _: Entry) -> None:
        self._end()
        slices = still_ours(self._kernel, self._taken, self._epochs)
        leaving = self._taken.messages
        if len(slices) < len(self._taken.order):
            leaving = sum(part.mask.bit_count() for part in slices)
        self._subscription.credit += self._charged - leaving
        self._leave(slices)

    def _failed(self, error: PenstockError) -> None:
        """The disk refuses, and it is tried again; or the shard has another owner. Then the grants
        of the others are waited for: their messages are leased, and not all of them safe yet."""
        self._end()
        self._subscription.credit += self._charged
        self._charged = 0
        if not isinstance(error, MovedError):
            return
        kernel = self._kernel
        if kept := _kept(kernel, self._epochs):
            confirmed = kernel.confirmation([kernel.shards[number] for number in kept])
            assert confirmed is not None, "nobody owns shards of a node that is alone"
            self.wait_for(confirmed)
        # Soon, and not now: the node may be about to lose more of its shards.
        kernel.timers.at(kernel.now_us, lambda: self._leave([]))

    def _end(self) -> None:
        if self._feeding:
            self._feeding = False
            self._subscription.feeding -= 1
