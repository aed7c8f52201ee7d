"""All copies of shards that a node sends or takes at the moment."""

from __future__ import annotations

from typing import NamedTuple

from penstock.engine.copy_messages import Batches, Begin, CopyMessage, Installed, Part, Taken
from penstock.engine.copying import PATIENCE_US, WINDOW, Receiving, Send, Sending
from penstock.engine.engine import Engine
from penstock.engine.record_checks import check_copied
from penstock.engine.replicas import Replicas

MAX_SENDING = 4  # at a time; the rest waits
MAX_HELD = 4 * MAX_SENDING  # of one owner: it may have given some up, and nobody says which
TICK_US = 1_000_000


class _Held(NamedTuple):
    """A copy that begins with definitions which are not known yet, as far as it has come."""

    begin: Begin
    rest: list[Part]


class Copies:
    """Owner's and follower's side. `send` gets what is to be said."""

    def __init__(self, engine: Engine, replicas: Replicas, send: Send) -> None:
        self._engine = engine
        self._replicas = replicas
        self._send = send
        self._wanted: dict[tuple[int, int], None] = {}  # (shard, node), in order
        self._sending: dict[tuple[int, int], Sending] = {}
        self._receiving: dict[int, Receiving] = {}
        self._held: dict[tuple[int, int], _Held] = {}  # by (source, shard), in order
        self._number = 0

    # --- the owner's side ------------------------------------------------------------------

    def want(self, shard: int, node: int, now_us: int) -> None:
        """A follower needs a copy."""
        if (shard, node) not in self._sending:
            self._wanted[shard, node] = None
            self._begin_next(now_us)

    def _begin_next(self, now_us: int) -> None:
        while self._wanted and len(self._sending) < MAX_SENDING:
            shard, node = next(iter(self._wanted))
            del self._wanted[shard, node]
            owned = self._replicas.owned(shard)
            if owned is None or not owned.awaits_copy(node):
                continue  # it is asked again where it is when there is a link to it
            invisible = self._engine.fabric.kernel.shards[shard].invisible
            records = [each for each in owned.uncommitted() if each.number in invisible]
            self._number += 1
            sending = self._sending[shard, node] = Sending(
                self._engine, shard, node, owned.epoch, self._number,
                self._replicas.out.version, records, now_us,
            )  # fmt: skip
            sending.pump(self._send)

    def _over(self, sending: Sending, now_us: int) -> None:
        """Done, or given up: the follower is asked where it is, and may need another."""
        sending.end()
        self._sending.pop((sending.shard, sending.node), None)
        owned = self._replicas.owned(sending.shard)
        if owned is not None and owned.epoch == sending.epoch:
            owned.copied(sending.node, now_us)
        self._begin_next(now_us)

    # --- messages --------------------------------------------------------------------------

    def receive(self, source: int, message: CopyMessage, now_us: int) -> None:
        """Part of a copy, or the answer to one. ProtocolError if it cannot be one."""
        if isinstance(message, Taken | Installed):
            sending = self._sending.get((message.shard, source))
            if sending is not None and sending.number == message.copy:
                if isinstance(message, Taken):
                    sending.taken(self._send, now_us)
                else:
                    self._over(sending, now_us)
            return
        if isinstance(message, Batches):  # before it waits: later nobody could be told
            for _, meta, payload in message.batches:
                check_copied(meta, payload)
        if not self._hold(source, message):
            self._take(source, message, now_us)

    def _hold(self, source: int, part: Part) -> bool:
        """Whether a part has to wait: for the definitions that its copy begins with, or for those
        before it. To drop it would cost its sender, who hears nothing, a slot until its patience
        is at an end."""
        key = source, part.shard
        if isinstance(part, Begin):
            self._held.pop(key, None)  # the copy before was given up
            if part.version <= self._replicas.out.version:
                return False
            self._hold_first(key, part)
        elif (held := self._held.get(key)) is None:
            return False
        elif 1 + len(held.rest) < WINDOW:
            held.rest.append(part)
        else:  # no owner has more on the way; and a copy with a gap is none
            del self._held[key]
        return True

    def _hold_first(self, key: tuple[int, int], begin: Begin) -> None:
        same = [other for other in self._held if other[0] == key[0]]
        if len(same) >= MAX_HELD:
            del self._held[same[0]]
        self._held[key] = _Held(begin, [])

    def _take_held(self, now_us: int) -> None:
        """What waited for definitions that are known now. If its owner has given it up meanwhile,
        it does no harm: where a follower needs a copy, it does until the epoch ends."""
        version = self._replicas.out.version
        ready = [key for key, held in self._held.items() if held.begin.version <= version]
        for source, shard in ready:
            held = self._held.pop((source, shard))
            for part in (held.begin, *held.rest):
                self._take(source, part, now_us)

    def _take(self, source: int, part: Part, now_us: int) -> None:
        if isinstance(part, Begin):
            self._receive_first(source, part)
        receiving = self._receiving.get(part.shard)
        key = (part.shard, part.epoch, part.copy)
        if receiving is None or receiving.source != source or receiving.key != key:
            return
        if not isinstance(part, Begin):
            receiving.take(part, now_us)
        self._send(source, Taken(*key))

    def _receive_first(self, source: int, begin: Begin) -> None:
        if self._replicas.may_copy(begin.shard, begin.epoch):
            self._drop(begin.shard)
            self._receiving[begin.shard] = Receiving(self._engine, source, begin)
            self._replicas.replaced(begin.shard)

    def _drop(self, shard: int) -> None:
        receiving = self._receiving.pop(shard, None)
        if receiving is not None:
            receiving.give_up()

    # --- what follows ----------------------------------------------------------------------

    def advance(self, now_us: int) -> bool:
        """Goes on with copies that wait for definitions, or for the disk; whether one is in place
        now."""
        self._take_held(now_us)
        for shard, epoch, _ in [each.key for each in self._receiving.values()]:
            if not self._replicas.may_copy(shard, epoch):  # there is another owner
                self._drop(shard)
                self._replicas.replaced(shard)
        done = [each for each in self._receiving.values() if each.advance(now_us)]
        for receiving in done:
            shard, epoch, _ = receiving.key
            del self._receiving[shard]
            self._engine.fabric.kernel.shards[shard].unproven = False
            if self._replicas.may_copy(shard, epoch):
                self._replicas.replaced(shard)
                self._send(receiving.source, Installed(*receiving.key))
        return bool(done)

    def unlinked(self, node: int, now_us: int) -> None:
        """What was on the way to or from a node is lost."""
        for sending in [each for each in self._sending.values() if each.node == node]:
            self._over(sending, now_us)
        self._held = {key: held for key, held in self._held.items() if key[0] != node}
        for receiving in list(self._receiving.values()):
            if receiving.source == node and not receiving.installed:
                self._drop(receiving.key[0])

    def tick(self, now_us: int) -> None:
        """Gives up what makes no progress, or what this node has no right to send any more."""
        for sending in list(self._sending.values()):
            owned = self._replicas.owned(sending.shard)
            lost = owned is None or owned.epoch != sending.epoch
            if lost or now_us - sending.progress_us >= PATIENCE_US:
                self._over(sending, now_us)

    @property
    def busy(self) -> bool:
        """Whether `tick` is wanted."""
        return bool(self._sending)
