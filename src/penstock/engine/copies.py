"""All copies of shards that a node sends or takes at the moment."""

from __future__ import annotations

from penstock.engine.copy_messages import Begin, CopyMessage, Installed, Taken
from penstock.engine.copying import PATIENCE_US, Receiving, Send, Sending
from penstock.engine.engine import Engine
from penstock.engine.replicas import Replicas

MAX_SENDING = 4  # at a time; the rest waits
TICK_US = 1_000_000


class Copies:
    """Owner's and follower's side. `send` gets what is to be said."""

    def __init__(self, engine: Engine, replicas: Replicas, send: Send) -> None:
        self._engine = engine
        self._replicas = replicas
        self._send = send
        self._wanted: dict[tuple[int, int], None] = {}  # (shard, node), in order
        self._sending: dict[tuple[int, int], Sending] = {}
        self._receiving: dict[int, Receiving] = {}
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
            if owned is None or node not in owned.followers:
                continue
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
        """Part of a copy, or the answer to one."""
        if isinstance(message, Taken | Installed):
            sending = self._sending.get((message.shard, source))
            if sending is not None and sending.number == message.copy:
                if isinstance(message, Taken):
                    sending.taken(self._send, now_us)
                else:
                    self._over(sending, now_us)
            return
        if isinstance(message, Begin):
            self._receive_first(source, message)
        receiving = self._receiving.get(message.shard)
        key = (message.shard, message.epoch, message.copy)
        if receiving is None or receiving.source != source or receiving.key != key:
            return
        if not isinstance(message, Begin):
            receiving.take(message, now_us)
        self._send(source, Taken(*key))

    def _receive_first(self, source: int, begin: Begin) -> None:
        ready = begin.version <= self._replicas.out.version
        if ready and self._replicas.may_copy(begin.shard, begin.epoch):
            self._drop(begin.shard)
            self._receiving[begin.shard] = Receiving(self._engine, source, begin)
            self._replicas.replaced(begin.shard)

    def _drop(self, shard: int) -> None:
        receiving = self._receiving.pop(shard, None)
        if receiving is not None:
            receiving.give_up()

    # --- what follows ----------------------------------------------------------------------

    def advance(self, now_us: int) -> bool:
        """Goes on with copies that wait for the disk; whether one is in place now."""
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
