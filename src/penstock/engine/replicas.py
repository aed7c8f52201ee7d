"""The shards of a node in a cluster: which it owns and serves, which it follows.

Between the journal and the core: what the core logs is sent to the followers, and the core gets it
back as committed once the in-sync sets have it. Entries come back in the order in which this node
logged them, whatever their shard: the core may rely on that, as on a single node.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from penstock.cluster.commands import Command
from penstock.cluster.map import ClusterMap, ShardPlace
from penstock.cluster.replication.follower import Followed
from penstock.cluster.replication.messages import (
    Accepted,
    Confirm,
    Confirmed,
    Message,
    Position,
    Probe,
    Record,
    Records,
    Stale,
)
from penstock.cluster.replication.owner import Out, Owned
from penstock.core.fabric import Fabric
from penstock.core.records import Kind
from penstock.core.shard import CONTROL, Replayed, Shard
from penstock.errors import MovedError
from penstock.wire.durability import Durability
from penstock.wire.entry import Entry

EPOCH_GRANT_BITS = 40  # an epoch gives out fewer grants than these can count


class Replicas:
    """See the module. `append` puts a follower's record into the journal."""

    def __init__(self, node: int, fabric: Fabric, append: Callable[[Entry], None]) -> None:
        self.node = node
        self.out = Out()
        self._fabric = fabric
        self._append = append
        self._owned: dict[int, Owned] = {}
        self._followed: dict[int, Followed] = {}
        self._rising: dict[int, ShardPlace] = {}  # to be owned once all that was received is synced
        self._linked: set[int] = set()
        # What a node sent that must wait for definitions; bounded by the windows of its shards.
        self._held: dict[int, deque[Probe | Records | Confirm]] = {}
        self._line: deque[Entry] = deque()  # what this node logged, until it is committed
        self._ready: set[int] = set()  # of those in line, by identity: committed, not in turn yet
        self._taken: list[Entry] = []  # committed and in turn
        self._needs: dict[int, int] = {}  # barriers in line: how many shards have to confirm

    # --- the cluster map -------------------------------------------------------------------

    def placed(self, known: ClusterMap, now_us: int) -> None:
        """The control plane has a new map."""
        for number, place in enumerate(known.shards):
            if place.owner == self.node:
                self._rise(number, place, now_us)
            elif self.node in place.replicas or place.joining == self.node:
                self._follow(number, place.epoch, now_us)
            else:
                self._leave(number, now_us)

    def _rise(self, number: int, place: ShardPlace, now_us: int) -> None:
        owned = self._owned.get(number)
        if owned is None or owned.epoch != place.epoch:
            followed = self._followed.get(number)
            if followed is not None and followed.synced != followed.received:
                self._rising[number] = place
                return
            if owned is not None:
                self._lose(number, now_us)
            self._followed.pop(number, None)
            owned = self._own(number, place, now_us)
        owned.placed(place, now_us)

    def _own(self, number: int, place: ShardPlace, now_us: int) -> Owned:
        shard = self._shard(number)
        owned = Owned(number, place.epoch, self.node, shard.last, shard.epochs, self.out)
        self._owned[number] = owned
        shard.epoch = place.epoch
        self._fabric.begin_shard(shard, now_us, place.epoch << EPOCH_GRANT_BITS)
        owned.placed(place, now_us)
        for node in self._linked:
            owned.linked(node, now_us)
        return owned

    def _lose(self, number: int, now_us: int) -> None:
        """Whoever waits is told. The records stay in the log, and are folded as a follower folds
        them, before anything that the new owner says; it is the new owner who decides on them."""
        owned = self._owned.pop(number)
        self._fabric.end_shard(self._shard(number))
        error = MovedError(f"shard {number} has another owner now")
        barriers = [entry for entry in owned.abandon() if entry.kind == Kind.BARRIER]
        for entry in [*barriers, *(each for each in self._line if each.shard == number)]:
            entry.answer = entry.done = None
            self._needs.pop(id(entry), None)
            self._ready.add(id(entry))
            if entry.failed is not None:
                entry.failed(error)
                entry.failed = None
            if entry.kind != Kind.BARRIER and entry.number <= owned.local_done:
                self._stored(entry, now_us)  # the journal will not say so again
        self._advance()

    def _follow(self, number: int, epoch: int, now_us: int) -> None:
        self._rising.pop(number, None)
        if number in self._owned:
            self._lose(number, now_us)
        followed = self._followed.get(number)
        if followed is None:
            shard = self._shard(number)
            last = 0 if shard.unproven else shard.last
            last_epoch = shard.epochs.at(last)
            followed = Followed(number, epoch, last, last_epoch, self.out)
            self._followed[number] = followed
        followed.promoted(epoch)

    def _leave(self, number: int, now_us: int) -> None:
        self._rising.pop(number, None)
        self._followed.pop(number, None)
        if number in self._owned:
            self._lose(number, now_us)

    def _shard(self, number: int) -> Shard:
        return self._fabric.kernel.shards[number]

    # --- copies ----------------------------------------------------------------------------

    def owned(self, number: int) -> Owned | None:
        """A shard that this node owns."""
        return self._owned.get(number)

    def may_copy(self, number: int, epoch: int) -> bool:
        """Whether the owner in this epoch may put another state in the place of what is here."""
        followed = self._followed.get(number)
        return followed is not None and followed.epoch == epoch

    def replaced(self, number: int) -> None:
        """Another state, perhaps none at all, is in the place of what was here."""
        shard = self._shard(number)
        last = 0 if shard.unproven else shard.last
        self._followed[number].installed(last, shard.epochs.at(last))

    # --- the journal -----------------------------------------------------------------------

    def appended(self, entry: Entry, now_us: int) -> None:
        """The core logged an entry, and the journal has it."""
        if entry.local:
            return
        self._line.append(entry)
        owned = self._owned.get(entry.shard)
        if entry.kind == Kind.BARRIER:
            self._begin_barrier(entry)
        elif owned is not None:
            owned.appended(entry, now_us)
        elif entry.shard != CONTROL:
            raise AssertionError(f"shard {entry.shard} was written to, and is not owned here")

    def _begin_barrier(self, entry: Entry) -> None:
        owners = list(self._owned.values())
        self._needs[id(entry)] = len(owners) + 1  # and the journal
        for owned in owners:
            owned.barrier(entry)

    def finished(self, entries: list[Entry], now_us: int) -> None:
        """The journal has these as safe as was asked; see `take_committed`."""
        last: dict[int, int] = {}
        for entry in entries:
            if entry.local:
                self.out.committed.append(entry)
            elif entry.kind == Kind.BARRIER:
                self._confirmed(entry)
            elif entry.shard in self._owned:
                last[entry.shard] = entry.number
            elif entry.shard == CONTROL:
                self._ready.add(id(entry))
            else:
                self._stored(entry, now_us)
        for number, through in last.items():
            self._owned[number].local(through)
        self._advance()

    def _stored(self, entry: Entry, now_us: int) -> None:
        """A follower's record, or one that this node logged before it lost the shard."""
        payload = None if entry.payload is None else memoryview(entry.payload)
        self._fabric.replay(
            Replayed(
                entry.shard, entry.kind, entry.number, entry.meta, payload, entry.location,
                entry.length, entry.epoch,
            ),
            now_us,
        )  # fmt: skip
        followed = self._followed.get(entry.shard)
        if followed is not None:
            followed.stored(entry.number, entry.epoch)
            place = self._rising.get(entry.shard)
            if place is not None and followed.synced == followed.received:
                del self._rising[entry.shard]
                self._rise(entry.shard, place, now_us)

    def _confirmed(self, entry: Entry) -> None:
        if id(entry) not in self._needs:
            return  # it was given up
        self._needs[id(entry)] -= 1
        if not self._needs[id(entry)]:
            del self._needs[id(entry)]
            self._ready.add(id(entry))

    def _advance(self) -> None:
        """Moves what the in-sync sets have into the line, and what is in turn out of it."""
        committed, self.out.committed = self.out.committed, []
        for entry in committed:
            if entry.local:
                self._taken.append(entry)
            elif entry.kind == Kind.BARRIER:
                self._confirmed(entry)
            else:
                self._ready.add(id(entry))
        while self._line and id(self._line[0]) in self._ready:
            entry = self._line.popleft()
            self._ready.discard(id(entry))
            self._taken.append(entry)

    def take_committed(self) -> list[Entry]:
        """What is committed since the last time, in the order in which it was logged."""
        self._advance()
        taken, self._taken = self._taken, []
        return taken

    # --- other nodes -----------------------------------------------------------------------

    def linked(self, node: int, now_us: int) -> None:
        """There is a new connection to a node."""
        self._linked.add(node)
        for owned in self._owned.values():
            owned.linked(node, now_us)

    def unlinked(self, node: int, now_us: int) -> None:
        """The connection to a node is gone."""
        self._linked.discard(node)
        self._held.pop(node, None)
        for owned in self._owned.values():
            owned.unlinked(node, now_us)

    def receive(self, node: int, message: Message, now_us: int) -> None:
        """A message of another node."""
        number = message.shard
        if number >= len(self._fabric.kernel.shards):
            return
        owned = self._owned.get(number)
        if owned is not None and message.epoch > owned.epoch:
            self._follow(number, message.epoch, now_us)
            owned = None
        if isinstance(message, Position | Accepted | Confirmed):
            if owned is not None:
                self._heard(owned, node, message, now_us)
        elif isinstance(message, Probe | Records | Confirm) and owned is not None:
            self.out.messages.append((node, Stale(number, owned.epoch)))
        elif isinstance(message, Probe | Records | Confirm):
            if isinstance(message, Probe) and number not in self._followed:
                self._follow(number, message.epoch, now_us)  # the map is on its way
            held = self._held.get(node)
            if held or (isinstance(message, Records) and message.version > self.out.version):
                self._held.setdefault(node, deque()).append(message)
            else:
                self._told(node, message)
        self._advance()

    def defined(self, version: int) -> None:
        """All definitions of streams up to this version are known here. Records that came before
        them are folded now: without its definition a stream's data would be dropped."""
        self.out.version = version
        for node, held in list(self._held.items()):
            while held:
                message = held[0]
                if isinstance(message, Records) and message.version > version:
                    break
                self._told(node, held.popleft())
            if not held:
                del self._held[node]
        self._advance()

    def _heard(
        self, owned: Owned, node: int, message: Position | Accepted | Confirmed, now_us: int
    ) -> None:
        if isinstance(message, Accepted):
            owned.accepted(node, message, now_us)
        elif isinstance(message, Position):
            owned.positioned(node, message, now_us)
        else:
            owned.confirmed(node, message)

    def _told(self, node: int, message: Probe | Records | Confirm) -> None:
        followed = self._followed.get(message.shard)
        if followed is None:
            return
        if isinstance(message, Records):
            for record in followed.offered(node, message):
                self._append(_entry(message.shard, record))
        elif isinstance(message, Probe):
            followed.probed(node, message)
        else:
            followed.asked(node, message)

    # --- the control plane, and time -------------------------------------------------------

    def answered(self, command: Command) -> None:
        """The control plane answered a command, and `placed` has been given the map after it."""
        owned = self._owned.get(getattr(command, "shard", -1))
        if owned is not None:
            owned.answered(command)
            self._advance()

    def tick(self, now_us: int) -> None:
        """Time has passed."""
        for owned in self._owned.values():
            owned.tick(now_us)

    def next_due(self) -> int | None:
        """When `tick` should be called although nothing happens."""
        dues = (owned.next_due() for owned in self._owned.values())
        return min((due_us for due_us in dues if due_us is not None), default=None)


def _entry(shard: int, record: Record) -> Entry:
    return Entry(
        shard, record.kind, record.epoch, record.number, record.meta, record.payload,
        Durability.SYNCED,
    )  # fmt: skip


