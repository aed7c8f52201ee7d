"""The shards of a node in a cluster: which it owns and serves, which it follows.

Between the journal and the core: what the core logs is sent to the followers, and the core gets it
back as committed once the in-sync sets have it. Entries come back in the order in which this node
logged them, whatever their shard: the core may rely on that, as on a single node.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from penstock.cluster.commands import Command
from penstock.cluster.map import STRONG, ClusterMap, ShardPlace
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
from penstock.core.liveness import Liveness
from penstock.core.records import Kind
from penstock.core.shard import CONTROL, Replayed, Shard
from penstock.engine.record_checks import check_records
from penstock.errors import MovedError
from penstock.wire.durability import Durability
from penstock.wire.entry import Entry

EPOCH_GRANT_BITS = 40  # an epoch gives out fewer grants than these can count
LOOK_US = 100_000  # between two looks at what the shards wait for
MAX_HELD = 10_000  # messages of one node that wait for definitions; it repeats what is dropped


class Replicas:
    """See the module. `append` puts a follower's record into the journal, if it `has_room`."""

    def __init__(
        self, node: int, fabric: Fabric, append: Callable[[Entry], None],
        has_room: Callable[[], bool],
    ) -> None:  # fmt: skip
        self.node = node
        self.out = Out()
        self._fabric = fabric
        self._append = append
        self._has_room = has_room
        self._now_us = 0
        self._look_us = 0
        self._present = False  # whether a map of this start of the node has come
        # The last questions of owners that came before it, by node, shard and kind.
        self._early: dict[tuple[int, int, type[Message]], Probe | Confirm] = {}
        self._owned: dict[int, Owned] = {}
        self._followed: dict[int, Followed] = {}
        self._rising: dict[int, ShardPlace] = {}  # to be owned once all that was received is synced
        self._beginning: dict[Entry, Owned] = {}  # to be served once the in-sync set has its log
        # Records in the journal that are folded when they are stored: those of another owner, and
        # those that this node logged before it lost the shard.
        self._storing: dict[int, dict[Entry, None]] = {}
        self._linked: set[int] = set()
        self.withheld: set[int] = set()  # shards that are neither served nor followed for now
        self._replication = 1  # as the map says
        self._draining: set[int] = set()
        self._down: set[int] = set()
        # What a node sent that must wait for definitions.
        self._held: dict[int, deque[Probe | Records | Confirm]] = {}
        self._line: deque[Entry] = deque()  # what this node logged, until it is committed
        self.waiting_bytes = 0  # of those in line
        self._ready: set[Entry] = set()  # of those in line: committed, not in turn yet
        self._taken: list[Entry] = []  # committed and in turn
        self._needs: dict[Entry, int] = {}  # barriers in line: how many shards have to confirm

    # --- the cluster map -------------------------------------------------------------------

    def placed(self, known: ClusterMap, now_us: int) -> None:
        """The control plane has a new map, which knows of this start of the node: what was agreed
        on before, it knows as well. Nobody is answered earlier: who asked meanwhile is now."""
        self._present, self._now_us = True, now_us
        self._replication = known.replication
        self._draining = {node.id for node in known.nodes if node.status == "draining"}
        self._down = {node.id for node in known.nodes if node.status == "down"}
        for number, place in enumerate(known.shards):
            if number in self.withheld:
                continue
            if place.owner == self.node:
                self._rise(number, place, now_us)
            else:  # also if another node has the shard: what is under way here must be finished
                self._follow(number, place.epoch, now_us)
        early, self._early = self._early, {}
        for (node, _, _), message in early.items():
            self.receive(node, message, now_us)
        self._advance()

    def _strong(self, number: int, place: ShardPlace) -> tuple[int, ...]:
        """Who should be in sync: two that stay, so chosen that every node is for its part of the
        shards and may own them; all, while there is one too many, so that whichever is to go can.
        """
        if len(place.replicas) > self._replication:
            return place.replicas
        staying = sorted(node for node in place.replicas[1:] if node not in self._draining)
        first = number % max(1, len(staying))
        return (place.owner, *(staying[first:] + staying[:first])[: STRONG - 1])

    def _rise(self, number: int, place: ShardPlace, now_us: int) -> None:
        owned = self._owned.get(number)
        if owned is not None and owned.epoch == place.epoch:
            owned.placed(place, now_us, self._strong(number, place), self._down)
            return
        followed = self._follow(number, place.epoch, now_us)
        if followed.epoch > place.epoch:
            return  # somebody knows better: a later map is on its way
        if self._storing.get(number):
            self._rising[number] = place
        else:
            self._own(number, place, now_us)

    def _own(self, number: int, place: ShardPlace, now_us: int) -> None:
        """Begins to own a shard. It is served once all of the in-sync set have what is in its log:
        until then another of them, that has less, might be promoted."""
        del self._followed[number]
        shard = self._shard(number)
        owned = Owned(number, place.epoch, self.node, shard.last, shard.epochs, self.out)
        self._owned[number] = owned
        shard.epoch = place.epoch
        for node in self._linked:
            owned.linked(node, now_us)
        owned.placed(place, now_us, self._strong(number, place), self._down)
        begun = Entry(number, Kind.BARRIER, place.epoch, 0, b"", None, Durability.REPLICATED)
        self._beginning[begun] = owned
        owned.barrier(begun, now_us)

    def _begin(self, owned: Owned) -> None:
        first_grant = owned.epoch << EPOCH_GRANT_BITS
        self._fabric.begin_shard(self._shard(owned.shard), self._now_us, first_grant)

    def _lose(self, number: int) -> None:
        """Whoever waits is told. The records stay in the log, and are folded as a follower folds
        them, before anything that the new owner says; it is the new owner who decides on them."""
        owned = self._owned.pop(number)
        self._beginning = {e: each for e, each in self._beginning.items() if each is not owned}
        self._fabric.end_shard(self._shard(number))
        error = MovedError(f"shard {number} has another owner now")
        for entry in self._taken:  # they hold, and whoever waits will hear it; but all is folded
            if entry.shard == number and entry.kind != Kind.BARRIER:  # in the order of the log
                self._storing.setdefault(number, {})[entry] = None
                entry.done = None
                if entry.answer is None and entry.failed is not None:
                    entry.failed(error)
        given_up = [entry for entry in owned.abandon() if entry in self._needs]
        for entry in [*given_up, *(each for each in self._line if each.shard == number)]:
            if entry.kind != Kind.BARRIER:
                self._storing.setdefault(number, {})[entry] = None
            entry.answer = entry.done = None
            self._needs.pop(entry, None)
            self._ready.add(entry)
            if entry.failed is not None:
                entry.failed(error)
                entry.failed = None

    def _follow(self, number: int, epoch: int, now_us: int) -> Followed:
        self._rising.pop(number, None)
        owned = self._owned.get(number)
        if owned is not None:
            self._lose(number)
        followed = self._followed.get(number)
        if followed is None:
            shard = self._shard(number)
            last = 0 if shard.unproven else shard.last
            followed = Followed(number, epoch, last, shard.epochs.at(last), self.out)
            self._followed[number] = followed
            if owned is not None:
                self._store_rest(owned, followed, now_us)
        followed.promoted(epoch)
        return followed

    def _store_rest(self, owned: Owned, followed: Followed, now_us: int) -> None:
        """What this node logged as the owner: part of it the journal has not stored yet, and does
        say so; of the other part it has said so."""
        followed.synced = min(followed.synced, owned.local_done)
        followed.synced_epoch = self._shard(owned.shard).epochs.at(followed.synced)
        for entry in list(self._storing.get(owned.shard, ())):
            if entry.number <= owned.local_done:
                self._stored(entry, now_us)

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
        self._storing.pop(number, None)
        last = 0 if shard.unproven else shard.last
        self._followed[number].installed(last, shard.epochs.at(last))

    # --- the journal -----------------------------------------------------------------------

    def appended(self, entry: Entry, now_us: int) -> None:
        """The core logged an entry, and the journal has it."""
        if entry.local:
            return
        self._line.append(entry)
        self.waiting_bytes += entry.length
        owned = self._owned.get(entry.shard)
        if entry.kind == Kind.BARRIER:
            self._begin_barrier(entry, now_us)
        elif owned is not None:
            owned.appended(entry, now_us)
        elif entry.shard != CONTROL:
            raise AssertionError(f"shard {entry.shard} was written to, and is not owned here")

    def _begin_barrier(self, entry: Entry, now_us: int) -> None:
        """One about no shard in particular is about all of this node's. One of level MEMORY only
        asks whether they still are, and is not in the journal."""
        owners = list(self._owned.values())
        if entry.shard != CONTROL:
            owners = [owned for owned in owners if owned.shard == entry.shard]
        needs = len(owners) + (entry.level > Durability.MEMORY)
        if not needs:
            self._ready.add(entry)
            return
        self._needs[entry] = needs
        for owned in owners:
            owned.barrier(entry, now_us)

    def finished(self, entries: list[Entry], now_us: int) -> None:
        """The journal has these as safe as was asked; see `take_committed`."""
        self._now_us = now_us
        last: dict[int, int] = {}
        for entry in entries:
            if entry.local:
                self._taken.append(entry)
            elif entry.kind == Kind.BARRIER:
                self._confirmed(entry)
            elif entry in self._storing.get(entry.shard, ()):
                self._stored(entry, now_us)
            elif entry.shard == CONTROL:
                self._ready.add(entry)
            else:
                last[entry.shard] = entry.number
                if entry.shard not in self._owned:
                    self._free_unless_kept(entry)
        for number, through in last.items():
            if (owned := self._owned.get(number)) is not None:
                owned.local(through)  # if not, a copy has taken the place of all
        self._advance()

    def _stored(self, entry: Entry, now_us: int) -> None:
        """A follower's record, or one that this node logged before it lost the shard."""
        storing = self._storing[entry.shard]
        del storing[entry]
        payload = None if entry.payload is None else memoryview(entry.payload)
        self._fabric.replay(
            Replayed(
                entry.shard, entry.kind, entry.number, entry.meta, payload, entry.location,
                entry.length, entry.epoch,
            ),
            now_us,
        )  # fmt: skip
        self._free_unless_kept(entry)
        followed = self._followed.get(entry.shard)
        if followed is not None:
            followed.stored(entry.number, entry.epoch)
        if not storing:
            del self._storing[entry.shard]
            if (place := self._rising.pop(entry.shard, None)) is not None:
                self._rise(entry.shard, place, now_us)

    def _free_unless_kept(self, entry: Entry) -> None:
        """A batch that is in the journal, and that nothing refers to: a copy has taken the place of
        all, its stream is gone, or it was there before."""
        if entry.payload is None or entry.kind & ~Kind.FORWARDED != Kind.PUSH:
            return
        stored = Liveness(self._fabric.kernel).at(entry.shard, entry.kind, entry.meta)
        if stored is None or stored.location != entry.location:
            self._fabric.kernel.free([(entry.location, entry.length)])

    def _confirmed(self, entry: Entry) -> None:
        if entry not in self._needs:
            return  # it was given up
        self._needs[entry] -= 1
        if not self._needs[entry]:
            del self._needs[entry]
            self._ready.add(entry)

    def _advance(self) -> None:
        """Moves what the in-sync sets have into the line, and what is in turn out of it."""
        committed, self.out.committed = self.out.committed, []
        for entry in committed:
            if entry in self._beginning:
                self._begin(self._beginning.pop(entry))
            elif entry.kind == Kind.BARRIER:
                self._confirmed(entry)
            elif entry not in self._storing.get(entry.shard, ()):
                self._ready.add(entry)
        while self._line and self._line[0] in self._ready:
            entry = self._line.popleft()
            self.waiting_bytes -= entry.length
            self._ready.discard(entry)
            self._taken.append(entry)

    def is_committed(self, position: int) -> bool:
        """Whether nothing in line is in the journal before a position."""
        first = next((entry.location for entry in self._line if entry.location), position)
        return first >= position

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
        self._early = {key: each for key, each in self._early.items() if key[0] != node}
        for owned in self._owned.values():
            owned.unlinked(node, now_us)

    def is_linked(self, node: int) -> bool:
        """Whether there is a connection to a node."""
        return node in self._linked

    def receive(self, node: int, message: Message, now_us: int) -> None:
        """A message of another node. ProtocolError if it cannot be one: nothing is taken of it."""
        number, self._now_us = message.shard, now_us
        if isinstance(message, Records):
            check_records(message)
        if number >= len(self._fabric.kernel.shards):
            return
        if not self._present:
            if isinstance(message, Probe | Confirm):
                self._early[node, number, type(message)] = message
            return
        if number in self.withheld:
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
            held = self._held.get(node)
            if held or (isinstance(message, Records) and message.version > self.out.version):
                held = self._held.setdefault(node, deque())
                if len(held) < MAX_HELD:
                    held.append(message)
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
            owned.confirmed(node, message, now_us)

    def _told(self, node: int, message: Probe | Records | Confirm) -> None:
        followed = self._followed.get(message.shard)
        if followed is None:
            return
        if isinstance(message, Records):
            if self._has_room():  # if not, the owner asks again where this copy ends
                for record in followed.offered(node, message):
                    entry = _entry(message.shard, record)
                    self._append(entry)
                    self._storing.setdefault(message.shard, {})[entry] = None
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
        """Time has passed. It looks at all shards, and so not at every call."""
        if now_us < self._look_us:
            return
        self._look_us = now_us + LOOK_US
        for owned in self._owned.values():
            owned.tick(now_us)

    def next_due(self) -> int:
        """When `tick` should be called although nothing happens."""
        return self._look_us


def _entry(shard: int, record: Record) -> Entry:
    return Entry(
        shard, record.kind, record.epoch, record.number, record.meta, record.payload,
        Durability.SYNCED,
    )  # fmt: skip


