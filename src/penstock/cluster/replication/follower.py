"""A follower's side of one shard: it stores what the owner logs, in order, and says how far."""

from __future__ import annotations

from penstock.cluster.replication.messages import (
    Accepted,
    Confirm,
    Confirmed,
    Position,
    Probe,
    Record,
    Records,
    Stale,
)
from penstock.cluster.replication.owner import Out


class Followed:
    """A shard of which this node holds a copy that another node owns.

    `epoch` is the latest that this node has heard of: whoever speaks for an earlier one is told so
    and not listened to. Nothing is promised before it is on this node's disk, except that a record
    is here (`received`), which is all that a grant needs.
    """

    def __init__(self, shard: int, epoch: int, last: int, last_epoch: int, out: Out) -> None:
        self.shard, self.epoch = shard, epoch
        self.received = self.synced = last
        self.received_epoch = self.synced_epoch = last_epoch
        self._owner = self._round = 0  # who asked last where this copy ends, and in which round
        self._out = out

    def promoted(self, epoch: int) -> None:
        """The map says that a later epoch has begun."""
        self.epoch = max(self.epoch, epoch)

    def probed(self, node: int, message: Probe) -> None:
        """An owner asks where this copy ends, and then how much of it is on the disk."""
        if not self._listens(node, message.epoch):
            return
        self._owner, self._round = node, message.round
        last, last_epoch = self.received, self.received_epoch
        position = Position(self.shard, self.epoch, message.round, last, last_epoch)
        self._out.messages.append((node, position))
        self._accept()

    def offered(self, node: int, message: Records) -> list[Record]:
        """Records from an owner; those that are new and next in line, to be stored.

        A gap cannot be: a link keeps order. If there is one all the same, nothing is taken, and the
        owner, who hears no more, probes anew.
        """
        if not self._listens(node, message.epoch):
            return []
        fresh = [record for record in message.records if record.number > self.received]
        if node != self._owner or not fresh or fresh[0].number != self.received + 1:
            return []
        self.received, self.received_epoch = fresh[-1].number, fresh[-1].epoch
        self._accept()
        return fresh

    def stored(self, number: int, epoch: int) -> None:
        """All up to this record is on the disk, and folded."""
        if number > self.synced:
            self.synced, self.synced_epoch = number, epoch
            self._accept()

    def installed(self, number: int, epoch: int) -> None:
        """A copy of the owner's whole state, after this record, has taken the place of all."""
        self.received = self.synced = number
        self.received_epoch = self.synced_epoch = epoch

    def asked(self, node: int, message: Confirm) -> None:
        """An owner asks whether it still is one."""
        if self._listens(node, message.epoch):
            answer = Confirmed(self.shard, message.epoch, message.number)
            self._out.messages.append((node, answer))

    def _listens(self, node: int, epoch: int) -> bool:
        if epoch < self.epoch:
            self._out.messages.append((node, Stale(self.shard, self.epoch)))
            return False
        self.epoch = epoch
        return True

    def _accept(self) -> None:
        if self._owner:
            message = Accepted(
                self.shard, self.epoch, self._round, self.received, self.synced
            )
            self._out.messages.append((self._owner, message))
