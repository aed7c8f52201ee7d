"""Messages that were leased to somebody and never left: their shard got another owner meanwhile, or
whoever waited was told that the disk refuses.

A lease is logged before its messages leave, and they do not if the shard is lost by then. The new
owner may have the lease in its log, and cannot know that nobody got anything: others would have
to wait until it runs out. So whoever lost the shard tells (`on_lost`). A lease that the disk has
refused is written all the same once the disk takes writes again, and ends then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from functools import partial
from typing import NamedTuple

from penstock.core import queue_rules as rules
from penstock.core.changes import Change
from penstock.core.effects import Slice
from penstock.core.kernel import Kernel
from penstock.core.queue import QueueShard
from penstock.core.shard import Stream
from penstock.core.views import Taken
from penstock.errors import MovedError, PenstockError
from penstock.wire.entry import Entry

Failed = Callable[[PenstockError], None]


class Handed(NamedTuple):
    """What one delivery of a queue is made of; `epochs` of the shards that it was taken from."""

    stream: int
    taken: Taken
    epochs: dict[int, int]


class Undelivered:
    """Ends leases that nobody has. `change` logs what became of messages, `arrived` hands ready
    ones out."""

    def __init__(
        self, kernel: Kernel, change: Callable[[Stream, QueueShard, list[Change]], None],
        arrived: Callable[[QueueShard], None],
    ) -> None:  # fmt: skip
        self._kernel = kernel
        self._change = change
        self._arrived = arrived
        # Told of a shard that has another owner now, the epoch before that, a queue, and leases.
        self.on_lost: Callable[[int, int, int, list[int]], None] = _nobody

    def answer_when_safe(
        self, handed: Handed, grant: Entry, answer: Callable[[], None], tell: Failed
    ) -> None:
        """Calls `answer` when the last grant is safe. If it is lost, or the disk refuses it, `tell`
        is called, and nothing leaves: also not if the disk takes the grant later."""
        grant.answer, grant.failed = answer, partial(self._nothing_leaves, handed, grant, tell)

    def _nothing_leaves(
        self, handed: Handed, grant: Entry, tell: Failed, error: PenstockError
    ) -> None:
        tell(error)
        if isinstance(error, MovedError):
            self._give_back_soon(handed, set())
        else:  # the disk may take it later, or its shard be lost before that
            grant.answer, grant.done = None, lambda _: self.sent(handed, ())
            grant.failed = partial(self._nothing_leaves, handed, grant, _nobody_waits)

    def watch(self, handed: Handed, grants: Sequence[Entry]) -> None:
        """Some of it may be lost before it leaves, in a cluster."""
        for entry in grants:
            entry.failed = partial(self._part_failed, handed, entry, entry.failed)

    def _part_failed(
        self, handed: Handed, grant: Entry, tell: Failed | None, error: PenstockError
    ) -> None:
        if tell is not None:
            tell(error)
        if isinstance(error, MovedError):
            self._give_back_soon(handed, handed.epochs.keys())
        else:
            grant.failed = partial(self._part_failed, handed, grant, tell)

    def _give_back_soon(self, handed: Handed, leaving: Set[int]) -> None:
        """Not now: further shards may be about to go."""
        self._kernel.timers.at(self._kernel.now_us, lambda: self._give_back(handed, leaving))

    def sent(self, handed: Handed, slices: Sequence[Slice]) -> None:
        """These left. Whatever else there was may never leave from here."""
        if len(slices) < len(handed.taken.order):
            self._give_back(handed, {part.shard for part in slices})

    def _give_back(self, handed: Handed, leaving: Set[int]) -> None:
        """Messages of these shards may leave, unless they are lost."""
        stream, taken, epochs = handed
        for number, given in taken.by_shard().items():
            grants = [each.number for each in given]
            if not self._kernel.still_served({number: epochs[number]}):
                self.on_lost(number, epochs[number], stream, grants)
            elif number not in leaving:
                self.end(number, stream, grants)

    def end(self, number: int, stream: int, grants: Iterable[int]) -> None:
        """Leases of a shard that this node serves end; those that it does not know, or that have
        ended already, do nothing."""
        queue = self._kernel.shards[number].queues.get(stream)
        definition = self._kernel.streams.get(stream)
        if queue is not None and definition is not None:
            self._change(definition, queue, rules.undelivered(queue, grants, self._kernel.is_old))
            self._arrived(queue)


def _nobody_waits(error: PenstockError) -> None:
    """They were told before."""


def _nobody(shard: int, epoch: int, stream: int, grants: list[int]) -> None:
    """Unless this is a cluster."""
