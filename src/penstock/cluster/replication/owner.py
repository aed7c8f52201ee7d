"""The owner's side of one shard: when is a record safe, and what must a follower be sent?

A record is committed when this node and every member of the in-sync set have it as safe as was
asked. The set changes only by the control plane's word; from the moment that this node asks for a
new member, that member is waited for, so that whoever is in the set has all that was acknowledged.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from penstock.cluster.commands import Command, GrowInSync, ShrinkInSync
from penstock.cluster.map import STRONG, ShardPlace
from penstock.cluster.replication.messages import (
    Accepted,
    Confirm,
    Confirmed,
    Message,
    Position,
    Probe,
    Record,
    Records,
)
from penstock.cluster.replication.tail import Tail
from penstock.core.epochs import Epochs
from penstock.wire.durability import Durability
from penstock.wire.entry import Entry

PATIENCE_US = 800_000  # a member of the in-sync set that accepts nothing for so long is left out
WINDOW_BYTES = 4 << 20  # on the way to one follower of one shard


class Link(Enum):
    """How a follower is served."""

    DOWN = "down"  # there is no connection to it
    PROBED = "probed"  # it was asked where it is
    STREAMED = "streamed"  # it gets what is logged
    COPIED = "copied"  # it is so far behind, or on such a wrong way, that it gets the whole state


@dataclass(slots=True)
class Follower:
    """What the owner knows of another replica."""

    link: Link = Link.DOWN
    round: int = 0  # of questions where it is: earlier answers do not count
    sent: int = 0
    received: int = 0
    synced: int = 0
    probed_us: int = 0
    copying: bool = False
    way: deque[tuple[int, int]] = field(default_factory=deque)  # (last number, bytes) of packets
    way_bytes: int = 0
    waited_since_us: int | None = None  # it owes an answer since then
    asked: int = 0  # the last question whether this node is the owner, and the last answer
    confirmed: int = 0


@dataclass(slots=True)
class Out:
    """What an owner or follower wants done; the caller takes it and empties the lists."""

    messages: list[tuple[int, Message]] = field(default_factory=list)
    committed: list[Entry] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)
    version: int = 0  # of the definitions that this node knows
    copies: list[tuple[int, int]] = field(default_factory=list)  # (shard, node) that need a copy


class _Waiting(NamedTuple):
    """What is handed over once all up to `number` is safe, and this node is sure to be the owner if
    that was asked for."""

    number: int
    entry: Entry
    confirm: int = 0


class Owned:
    """A shard that this node owns, in one epoch. It ends with the epoch; see `abandon`."""

    def __init__(
        self, shard: int, epoch: int, node: int, last: int, epochs: Epochs, out: Out
    ) -> None:
        self.shard, self.epoch, self.node = shard, epoch, node
        self.committed = last  # what an in-sync member has when it is promoted counts
        self._out = out
        self._epochs = epochs
        epochs.began(epoch, last + 1)
        self._tail = Tail(last)
        self._waiting: deque[_Waiting] = deque()  # logged, and not committed
        self.local_done = last  # as safe on this node as was asked, up to here
        self.followers: dict[int, Follower] = {}
        self._linked: set[int] = set()
        self.in_sync: tuple[int, ...] = (node,)
        self._strong: tuple[int, ...] = ()  # those that should be in sync, if they can
        self._version = 0  # of the shard's place in the map
        self._asked: GrowInSync | ShrinkInSync | None = None  # of the control plane; one at a time
        self._asked_us = 0
        self._confirms = 0
        self._down: Collection[int] = ()

    # --- the cluster map -------------------------------------------------------------------

    def placed(
        self, place: ShardPlace, now_us: int, strong: tuple[int, ...] = (),
        down: Collection[int] = (),
    ) -> None:  # fmt: skip
        """The control plane says who holds the shard and who is in sync, in this epoch. `strong`
        are those that should be in sync, the owner among them; else the first replicas. Nodes that
        it takes for `down` it would not take into the set: they are not proposed."""
        self._down = down
        others = {node for node in (*place.replicas, place.joining) if node not in (0, self.node)}
        for node in self.followers.keys() - others:
            del self.followers[node]
        for node in sorted(others - self.followers.keys()):
            self.followers[node] = Follower(waited_since_us=now_us)
            if node in self._linked:
                self._probe(node, self.followers[node], now_us)
        self.in_sync = place.in_sync
        self._strong = (*(strong or place.replicas[:STRONG]), place.joining)
        if place.version != self._version:
            # What was asked for held for the version before: it was done, or never will be.
            self._version, self._asked = place.version, None
        self._commit()
        for node, follower in self.followers.items():
            if follower.link is Link.COPIED and not follower.copying:
                self._copy(node, follower)
            self._consider(node, follower, now_us)
        self.tick(now_us)

    # --- the log ---------------------------------------------------------------------------

    def appended(self, entry: Entry, now_us: int) -> None:
        """This node logged a record: followers get it at once."""
        record = Record(entry.kind, entry.epoch, entry.number, entry.meta, entry.payload)
        self._tail.append(record, self.committed)
        self._waiting.append(_Waiting(entry.number, entry))
        for node, follower in self.followers.items():
            if follower.link is Link.STREAMED:
                self._stream(node, follower, now_us)

    def local(self, number: int) -> None:
        """All up to this number is as safe on this node as was asked."""
        self.local_done = max(self.local_done, number)
        self._commit()

    def _commit(self) -> None:
        """Hands over what is committed, in order."""
        waiting = self._waiting
        if not waiting:
            return
        others = [self.followers[node] for node in self._waited_for()]
        received = min([each.received for each in others] + [self.local_done])
        synced = min([each.synced for each in others] + [self.local_done])
        confirmed = min((each.confirmed for each in others), default=self._confirms)
        while waiting:
            number, entry, confirm = waiting[0]
            safe = synced if entry.level >= Durability.REPLICATED else received
            if number > safe or confirm > confirmed:
                return
            self.committed = max(self.committed, number)
            self._out.committed.append(waiting.popleft().entry)

    def _waited_for(self) -> list[int]:
        """Those without whom nothing is committed: the others in sync, and who is about to be."""
        members = {*self.in_sync} - {self.node}
        if isinstance(self._asked, GrowInSync):
            members.add(self._asked.node)
        return sorted(members)

    def barrier(self, entry: Entry, now_us: int = 0) -> None:
        """Hands an entry that is no record over when all that was logged before is as safe as it
        asks for, and the in-sync set has confirmed since now that this node is the owner."""
        self._confirms += 1
        for node in self._waited_for():
            self._ask_confirmation(node, self.followers[node])
            if self.followers[node].waited_since_us is None:
                self.followers[node].waited_since_us = now_us
        self._waiting.append(_Waiting(self._tail.last, entry, self._confirms))
        self._commit()

    def uncommitted(self) -> list[Record]:
        """Records that may not be handed over yet, in order: those that are committed may have to
        wait for other shards of the node before their turn comes."""
        return self._tail.after(self._tail.first - 1, 1 << 62) or []

    def abandon(self) -> list[Entry]:
        """Another node owns the shard, or it is not known who: what was not committed."""
        waiting, self._waiting = [each.entry for each in self._waiting], deque()
        return waiting

    # --- followers -------------------------------------------------------------------------

    def linked(self, node: int, now_us: int) -> None:
        """There is a new connection to a node: nothing that was on the way counts."""
        self._linked.add(node)
        follower = self.followers.get(node)
        if follower is not None:
            self._probe(node, follower, now_us)

    def _probe(self, node: int, follower: Follower, now_us: int) -> None:
        follower.link = Link.PROBED
        follower.round += 1
        follower.copying = False
        follower.probed_us = now_us
        follower.way.clear()
        follower.way_bytes = 0
        follower.waited_since_us = follower.waited_since_us or now_us
        self._out.messages.append((node, Probe(self.shard, self.epoch, follower.round)))
        self._ask_confirmation(node, follower)  # the question, or its answer, may be lost

    def _ask_confirmation(self, node: int, follower: Follower) -> None:
        """What barriers wait for, of a follower that was not asked or has not answered."""
        if self._confirms > follower.confirmed:
            message = Confirm(self.shard, self.epoch, self._confirms)
            self._out.messages.append((node, message))
            follower.asked = self._confirms

    def unlinked(self, node: int, now_us: int) -> None:
        """The connection to a node is gone."""
        self._linked.discard(node)
        follower = self.followers.get(node)
        if follower is not None:
            follower.link = Link.DOWN
            follower.waited_since_us = follower.waited_since_us or now_us

    def positioned(self, node: int, position: Position, now_us: int) -> None:
        """A follower says where it is: it is streamed to from there, or gets a copy."""
        follower = self.followers.get(node)
        if (
            follower is None
            or follower.link is not Link.PROBED
            or (position.epoch, position.round) != (self.epoch, follower.round)
        ):
            return
        agrees = self._epochs.agrees(position.last, position.last_epoch)
        agrees = agrees and position.last <= self._tail.last
        if not agrees or self._tail.after(position.last, 0) is None:
            self._copy(node, follower)
            return
        self._resume(node, follower, position.last, now_us)

    def _copy(self, node: int, follower: Follower) -> None:
        """A copy begins with forgetting: not while the node might be promoted for what it has."""
        follower.link = Link.COPIED
        if node not in self.in_sync and not self._is_asked_for(node):
            follower.copying = True
            self._out.copies.append((self.shard, node))
        else:
            follower.waited_since_us = follower.waited_since_us or 1  # it is left out at once

    def _is_asked_for(self, node: int) -> bool:
        return isinstance(self._asked, GrowInSync) and self._asked.node == node

    def awaits_copy(self, node: int) -> bool:
        """Whether a copy that was asked for is still to be sent: not if the link is gone, nor if
        the node was asked anew where it is, in another epoch perhaps."""
        follower = self.followers.get(node)
        return follower is not None and follower.link is Link.COPIED and follower.copying

    def copied(self, node: int, now_us: int) -> None:
        """A copy of the state was sent to a follower, or could not be: it is asked where it is."""
        follower = self.followers.get(node)
        if follower is not None and follower.link is Link.COPIED:
            self._probe(node, follower, now_us)

    def _resume(self, node: int, follower: Follower, last: int, now_us: int) -> None:
        follower.link = Link.STREAMED
        follower.sent = follower.received = last
        follower.synced = 0  # it says so itself right after its position
        self._answers(follower, now_us)
        self._stream(node, follower, now_us)
        self._consider(node, follower, now_us)
        self._commit()

    def _stream(self, node: int, follower: Follower, now_us: int) -> None:
        while follower.sent < self._tail.last and follower.way_bytes < WINDOW_BYTES:
            records = self._tail.after(follower.sent, WINDOW_BYTES - follower.way_bytes)
            if records is None:  # the window is smaller than the tail, but so may the tail be
                self._copy(node, follower)
                return
            size = sum(record.size for record in records)
            follower.sent = records[-1].number
            follower.way.append((follower.sent, size))
            follower.way_bytes += size
            if follower.waited_since_us is None:
                follower.waited_since_us = now_us
            message = Records(self.shard, self.epoch, self._out.version, records)
            self._out.messages.append((node, message))

    def _answers(self, follower: Follower, now_us: int) -> None:
        """A follower has said something: it may owe more, but has time again."""
        owes = follower.synced != follower.sent or follower.asked > follower.confirmed
        follower.waited_since_us = now_us if owes else None

    def accepted(self, node: int, message: Accepted, now_us: int) -> None:
        """A follower has more than before."""
        follower = self.followers.get(node)
        if (
            follower is None
            or follower.link is not Link.STREAMED
            or (message.epoch, message.round) != (self.epoch, follower.round)
            or not message.synced <= message.received <= follower.sent
        ):
            return
        follower.received = max(follower.received, message.received)
        follower.synced = max(follower.synced, message.synced)
        while follower.way and follower.way[0][0] <= follower.received:
            follower.way_bytes -= follower.way.popleft()[1]
        self._answers(follower, now_us)
        self._stream(node, follower, now_us)
        self._consider(node, follower, now_us)
        self._commit()

    def _consider(self, node: int, follower: Follower, now_us: int) -> None:
        """A follower that has all that is committed may be counted on, if one more is wanted."""
        wanted = len(self.in_sync) < STRONG or node in self._strong
        if (
            self._asked is None
            and wanted
            and node not in self.in_sync
            and node not in self._down
            and follower.link is Link.STREAMED
            and follower.synced >= self.committed
        ):
            grow = GrowInSync(self.shard, self.epoch, self.node, node, self._version)
            self._ask(grow, now_us)
            self._ask_confirmation(node, follower)  # barriers wait for it from now on

    # --- the control plane -----------------------------------------------------------------

    def _ask(self, command: GrowInSync | ShrinkInSync, now_us: int) -> None:
        self._asked, self._asked_us = command, now_us
        self._out.commands.append(command)

    def answered(self, command: Command) -> None:
        """The control plane has answered a command, and `placed` was given a place at least as new
        as the answer. Only then a command that changed nothing is known to have been refused: the
        refusal of a repetition says nothing about the first."""
        if command == self._asked:
            self._asked = None
            self._commit()

    def tick(self, now_us: int) -> None:
        """Whoever keeps the others waiting is to leave the in-sync set; what got no answer is
        asked again: until it is answered nobody knows whether it holds."""
        for node, follower in self.followers.items():
            if self._is_silent(follower) and now_us - follower.probed_us >= PATIENCE_US:
                self._probe(node, follower, now_us)
        if self._asked is not None:
            if now_us - self._asked_us >= PATIENCE_US:
                self._ask(self._asked, now_us)
            return
        late = tuple(node for due_us, node in self._deadlines() if due_us <= now_us)
        late = late or self._surplus()
        if late:
            self._ask(ShrinkInSync(self.shard, self.epoch, self.node, late, self._version), now_us)

    def _is_silent(self, follower: Follower) -> bool:
        """A question without an answer, or records that nobody has accepted: something got lost."""
        owes = follower.link is Link.STREAMED and follower.waited_since_us is not None
        return owes or follower.link is Link.PROBED

    def _surplus(self) -> tuple[int, ...]:
        """Members that stood in for one of the strong set: once all of that are there, they follow
        as they can, and nobody waits for them."""
        if not all(node in self.in_sync for node in self._strong if node):
            return ()
        return tuple(node for node in self.in_sync if node not in self._strong)

    def _deadlines(self) -> list[tuple[int, int]]:
        """Members of the in-sync set that are waited for, and when their time is up."""
        members = ((node, self.followers.get(node)) for node in self.in_sync)
        return [
            (follower.waited_since_us + PATIENCE_US, node)
            for node, follower in members
            if follower is not None and follower.waited_since_us is not None
        ]

    def confirmed(self, node: int, message: Confirmed, now_us: int = 0) -> None:
        """A follower knows of no other owner."""
        follower = self.followers.get(node)
        if follower is None or message.epoch != self.epoch or message.number > follower.asked:
            return
        follower.confirmed = max(follower.confirmed, message.number)
        if follower.link is Link.STREAMED:
            self._answers(follower, now_us)
        self._commit()
