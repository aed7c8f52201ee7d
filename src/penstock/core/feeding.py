"""Deliveries to subscriptions, from when their messages are leased until they leave."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
    kept = {number for number, epoch in epochs.items() if kernel.still_served({number: epoch})}
    return [part for part in slices if part.shard in kept]


class Feed:
    """One delivery. The subscription's credit is what it has not been sent: it gets back what does
    not leave, or it would starve while whoever subscribed believes that messages are to come."""

    __slots__ = (
        "_charged", "_epochs", "_feeding", "_kernel", "_leave", "_subscription", "_taken", "_waits",
    )  # fmt: skip

    def __init__(
        self, kernel: Kernel, subscription: Subscription, taken: Taken, epochs: dict[int, int],
        leave: Callable[[list[Slice] | None], None],
    ) -> None:  # fmt: skip
        """`epochs`: of the shards that messages were taken from. `leave` is called with what is to
        be sent, perhaps nothing, or None if all has left early; then there is room, and credit, for
        others."""
        self._kernel = kernel
        self._subscription = subscription
        self._taken = taken
        self._epochs = epochs
        self._leave = leave
        self._charged = taken.messages
        self._feeding = True
        self._waits = 0  # grants that are neither safe nor lost
        subscription.credit -= taken.messages
        subscription.feeding += 1

    def wait_for(self, grants: Sequence[Entry]) -> None:
        """The messages leave when all of these are safe, or lost with their shards. Nobody waits
        for this very delivery: it comes when it can."""
        self._waits = len(grants)
        for entry in grants:
            entry.done, entry.failed = self._safe, self._failed

    def _safe(self, grant: Entry) -> None:
        self._waits -= 1
        if grant.answered:  # it is the only one; see `promises`
            self._give_room()
            self._subscription.credit -= self._taken.messages
            self._leave(None)
        elif not self._waits:
            self._end()

    def _failed(self, error: PenstockError) -> None:
        if isinstance(error, MovedError):
            self._waits -= 1
            if not self._waits:  # soon, not now: the node may be about to lose further shards
                self._kernel.timers.at(self._kernel.now_us, self._end)
        else:  # the disk refuses; should it take the grant later, the messages leave after all
            self._give_room()

    def _end(self) -> None:
        self._give_room()
        slices = still_ours(self._kernel, self._taken, self._epochs)
        leaving = self._taken.messages
        if len(slices) < len(self._taken.order):
            leaving = sum(part.mask.bit_count() for part in slices)
        self._subscription.credit -= leaving
        self._leave(slices)

    def _give_room(self) -> None:
        self._subscription.credit += self._charged
        self._charged = 0
        if self._feeding:
            self._feeding = False
            self._subscription.feeding -= 1
