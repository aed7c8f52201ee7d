"""One shard on a few nodes: logs, links that break, disks that forget, and a control plane."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

from penstock.cluster.commands import GrowInSync, ShrinkInSync
from penstock.cluster.map import ShardPlace
from penstock.cluster.replication.follower import Followed
from penstock.cluster.replication.messages import (
    Accepted,
    Confirm,
    Confirmed,
    Message,
    Position,
    Probe,
    Record,
    Stale,
    pack,
    unpack,
)
from penstock.cluster.replication.owner import Out, Owned
from penstock.core.epochs import Epochs
from penstock.wire.durability import Durability
from penstock.wire.entry import Entry

SHARD = 7
STEP_US = 20_000
LEVELS = [Durability.WRITTEN, Durability.SYNCED, Durability.REPLICATED]


@dataclass
class Copy:
    """A node's copy of the log. What is not synced is gone after a crash."""

    log: list[Record] = field(default_factory=list)
    synced: int = 0
    out: Out = field(default_factory=Out)
    owned: Owned | None = None
    followed: Followed | None = None
    up: bool = True
    known: ShardPlace | None = None

    def epochs(self) -> Epochs:
        epochs = Epochs()
        for record in self.log:
            epochs.began(record.epoch, record.number)
        return epochs

    @property
    def last_epoch(self) -> int:
        return self.log[-1].epoch if self.log else 0


class World:
    """Runs everything from one seed; `violations` says what went wrong."""

    def __init__(self, seed: int, nodes: int = 3) -> None:
        self.random = random.Random(seed)
        self.now_us = 1
        self.copies = {number: Copy() for number in range(1, nodes + 1)}
        self.links: dict[tuple[int, int], deque[bytes]] = {}
        self.place = ShardPlace(1, tuple(self.copies), (1,), 0, 1)
        self.commands: list[tuple[int, GrowInSync | ShrinkInSync]] = []
        self.acknowledged: dict[int, tuple[int, bytes, Durability]] = {}
        self.owners: dict[int, int] = {}
        self.violations: list[str] = []
        self.forgotten: set[bytes] = set()  # by a disk, because it was not synced
        self.uncopied: list[tuple[int, int]] = []
        self.promotions = 0
        self.deaf = 0  # a node that does not hear of changes for a while
        for number in self.copies:
            self.learn(number)

    # --- nodes -----------------------------------------------------------------------------

    def learn(self, number: int) -> None:
        """A node hears of the place that the control plane has."""
        copy, place = self.copies[number], self.place
        if not copy.up:
            return
        copy.known = place
        if place.owner == number:
            self._own(number, copy, place)
        else:
            self._follow(copy, place)
        self.pump(number)

    def _own(self, number: int, copy: Copy, place: ShardPlace) -> None:
        if copy.owned is None or copy.owned.epoch != place.epoch:
            copy.followed = None
            copy.owned = Owned(
                SHARD, place.epoch, number, len(copy.log), copy.epochs(), copy.out
            )
            self.owners.setdefault(place.epoch, number)
            if self.owners[place.epoch] != number:
                self.violations.append(f"two owners in epoch {place.epoch}")
            # What it has counts from now on, so it must be safe before anything else is.
            copy.synced = len(copy.log)
            copy.owned.placed(place, self.now_us)
            for other in self.copies:
                if (number, other) in self.links:
                    copy.owned.linked(other, self.now_us)
        copy.owned.placed(place, self.now_us)

    def _follow(self, copy: Copy, place: ShardPlace) -> None:
        if copy.followed is None:
            self._step_down(copy, place.epoch)
        assert copy.followed is not None
        copy.followed.promoted(place.epoch)

    def _step_down(self, copy: Copy, epoch: int) -> None:
        """It owns the shard no more, or never did, or does not know it yet."""
        if copy.owned is not None:
            copy.owned.abandon()
            copy.owned = None
        copy.followed = Followed(SHARD, epoch, len(copy.log), copy.last_epoch, copy.out)
        copy.followed.synced = copy.synced

    def append(self, level: Durability) -> None:
        """Whoever thinks that it is the owner logs something."""
        for number, copy in self.copies.items():
            if copy.up and copy.owned is not None:
                meta = self.random.randbytes(4)
                payload = self.random.randbytes(8)
                entry = Entry(
                    SHARD, 1, copy.owned.epoch, len(copy.log) + 1, meta, payload, level
                )
                copy.log.append(
                    Record(entry.kind, entry.epoch, entry.number, entry.meta, entry.payload)
                )
                copy.owned.appended(entry, self.now_us)
                self.pump(number)

    def sync(self, number: int) -> None:
        copy = self.copies[number]
        if not copy.up:
            return
        copy.synced = len(copy.log)
        if copy.owned is not None:
            copy.owned.local(copy.synced)
        elif copy.followed is not None and copy.log:
            copy.followed.stored(copy.synced, copy.last_epoch)
        self.pump(number)

    def crash(self, number: int) -> None:
        copy = self.copies[number]
        for pair in [pair for pair in self.links if number in pair]:
            self.cut(*pair)
        copy.up = False
        copy.owned = copy.followed = None
        copy.out = Out()
        # Of what was not synced the disk keeps as much as it likes.
        kept = self.random.randint(copy.synced, len(copy.log))
        self.forgotten.update(bytes(record.payload or b"") for record in copy.log[kept:])
        copy.log = copy.log[:kept]
        copy.synced = kept

    def restart(self, number: int) -> None:
        copy = self.copies[number]
        if copy.up:
            return
        copy.up = True
        if self.place.owner == number:  # it comes back in a new epoch, as `Rejoin` has it
            self._change(epoch=self.place.epoch + 1)
        self.learn(number)

    # --- links -----------------------------------------------------------------------------

    def link(self, one: int, two: int) -> None:
        if (one, two) in self.links or not (self.copies[one].up and self.copies[two].up):
            return
        self.links[one, two], self.links[two, one] = deque(), deque()
        for here, there in ((one, two), (two, one)):
            owned = self.copies[here].owned
            if owned is not None:
                owned.linked(there, self.now_us)
            self.pump(here)

    def cut(self, one: int, two: int) -> None:
        if self.links.pop((one, two), None) is None:
            return
        del self.links[two, one]
        for here, there in ((one, two), (two, one)):
            owned = self.copies[here].owned
            if owned is not None:
                owned.unlinked(there, self.now_us)

    def deliver(self, one: int, two: int) -> None:
        queue = self.links.get((one, two))
        if queue:
            self.receive(two, one, unpack(memoryview(queue.popleft())))
            self.pump(two)

    def receive(self, number: int, sender: int, message: Message) -> None:
        copy = self.copies[number]
        if copy.owned is not None and message.epoch > copy.owned.epoch:
            self._step_down(copy, message.epoch)
        owned, followed = copy.owned, copy.followed
        if isinstance(message, Stale):
            return
        if isinstance(message, Position | Accepted | Confirmed):
            if owned is None:
                return
            if isinstance(message, Position):
                owned.positioned(sender, message, self.now_us)
            elif isinstance(message, Accepted):
                owned.accepted(sender, message, self.now_us)
            else:
                owned.confirmed(sender, message, self.now_us)
        elif followed is not None:
            if isinstance(message, Probe):
                followed.probed(sender, message)
            elif isinstance(message, Confirm):
                followed.asked(sender, message)
            else:
                copy.log += followed.offered(sender, message)

    def pump(self, number: int) -> None:
        """Carries out what a node wants."""
        copy = self.copies[number]
        out, copy.out = copy.out, Out()
        for machine in (copy.owned, copy.followed):
            if machine is not None:
                machine._out = copy.out
        for node, message in out.messages:
            if (number, node) in self.links:
                self.links[number, node].append(b"".join(pack(message)))
        for entry in out.committed:
            assert entry.payload is not None
            self._acknowledge(number, entry)
        self.commands += [
            (number, command)
            for command in out.commands
            if isinstance(command, GrowInSync | ShrinkInSync)
        ]
        for _, node in out.copies:
            self._copy(number, node)

    def _acknowledge(self, number: int, entry: Entry) -> None:
        said = (entry.epoch, bytes(entry.payload or b""), entry.level)
        before = self.acknowledged.setdefault(entry.number, said)
        if before != said:
            if not self._may_be_lost(*before[1:]):
                self.violations.append(f"number {entry.number} was acknowledged twice")
            self.acknowledged[entry.number] = said
        if entry.number > self.copies[number].synced and entry.level >= Durability.SYNCED:
            self.violations.append(f"number {entry.number} was acknowledged before it was safe")

    def _may_be_lost(self, payload: bytes, level: Durability) -> bool:
        """Less than `replicated` is promised to survive less than everything."""
        return level < Durability.REPLICATED and payload in self.forgotten

    def _copy(self, number: int, node: int) -> None:
        """A copy of the whole state, in one step."""
        source, target = self.copies[number], self.copies[node]
        if source.owned is None or (number, node) not in self.links:
            return
        if target.followed is None or source.owned.epoch < target.followed.epoch:
            self.uncopied.append((number, node))
            return
        target.log = list(source.log)
        target.synced = len(target.log)
        target.followed.promoted(source.owned.epoch)
        target.followed.installed(target.synced, target.last_epoch)
        source.owned.copied(node, self.now_us)
        self.pump(number)

    # --- the control plane -----------------------------------------------------------------

    def decide(self) -> None:
        """Takes the next command, if it holds for what is; some get lost on the way."""
        if not self.commands:
            return
        number, command = self.commands.pop(0)
        place = self.place
        holds = (
            command.epoch == place.epoch
            and command.owner == place.owner
            and command.expected_version == place.version
        )
        if not holds:
            self.learn(number)
            owned = self.copies[number].owned
            if owned is not None:
                owned.answered(command)
                self.pump(number)
            return
        if isinstance(command, GrowInSync):
            self._change(in_sync=(*place.in_sync, command.node))
        else:
            kept = tuple(node for node in place.in_sync if node not in command.removed)
            self._change(in_sync=kept)

    def promote(self) -> None:
        """Another member of the in-sync set becomes the owner, whatever the old one thinks."""
        place = self.place
        able = [node for node in place.in_sync if self.copies[node].up and node != place.owner]
        if able:
            chosen = self.random.choice(able)
            rest = tuple(node for node in place.replicas if node != chosen)
            self._change(
                epoch=place.epoch + 1,
                replicas=(chosen, *rest),
                in_sync=(chosen, *(node for node in place.in_sync if node in rest)),
            )
            self.promotions += 1

    def _change(
        self,
        epoch: int | None = None,
        replicas: tuple[int, ...] | None = None,
        in_sync: tuple[int, ...] | None = None,
    ) -> None:
        place = self.place
        self.place = ShardPlace(
            epoch or place.epoch,
            replicas or place.replicas,
            in_sync or place.in_sync,
            0,
            place.version + 1,
        )

    # --- a run -----------------------------------------------------------------------------

    def step(self) -> None:
        """One random event."""
        chance = self.random.random()
        numbers = list(self.copies)
        one, two = self.random.sample(numbers, 2)
        self.now_us += self.random.randrange(STEP_US)
        if chance < 0.3:
            self.deliver(one, two)
        elif chance < 0.45:
            self.append(self.random.choice(LEVELS))
        elif chance < 0.65:
            self.sync(one)
        elif chance < 0.75:
            self.link(one, two)
        elif chance < 0.77:
            self.cut(one, two)
        elif chance < 0.85 and one != self.deaf:
            self.learn(one)
        elif chance < 0.93:
            self.decide()
        elif chance < 0.94 and self.commands:
            self.commands.pop(self.random.randrange(len(self.commands)))  # lost on its way
        elif chance < 0.945:
            self.crash(one)
        elif chance < 0.96:
            self.restart(one)
        elif chance < 0.98:
            self.promote()
        elif chance < 0.985:
            self.deaf = self.random.choice([0, *numbers])
        else:
            self.tick(one)

    def tick(self, number: int) -> None:
        owned = self.copies[number].owned
        if owned is not None:
            again = [node for here, node in self.uncopied if here == number]
            self.uncopied = [pair for pair in self.uncopied if pair[0] != number]
            for node in again:
                owned.copied(node, self.now_us)
            owned.tick(self.now_us)
            self.pump(number)

    def heal(self) -> None:
        """Everything works again, for long enough."""
        numbers = list(self.copies)
        for number in numbers:
            self.restart(number)
        for _ in range(60):
            self.now_us += 100_000
            for one in numbers:
                for two in numbers:
                    if one != two:
                        self.link(one, two)
                        while self.links.get((one, two)):
                            self.deliver(one, two)
                self.learn(one)
                self.sync(one)
                self.tick(one)
            self.decide()

    def check(self) -> list[str]:
        """What is wrong in the end; call after `heal`."""
        wrong = list(self.violations)
        owner = self.copies[self.place.owner]
        for number, (epoch, payload, level) in self.acknowledged.items():
            held = owner.log[number - 1] if number <= len(owner.log) else None
            kept = held is not None and held.epoch == epoch and held.payload == payload
            if not kept and not self._may_be_lost(payload, level):
                wrong.append(f"number {number} ({level.label}, epoch {epoch}) was lost")
        for number, copy in self.copies.items():
            if copy.log != owner.log:
                wrong.append(f"node {number} has another log than its owner")
        if len(self.place.in_sync) < 2:
            wrong.append("nobody is in sync with the owner")
        return wrong


