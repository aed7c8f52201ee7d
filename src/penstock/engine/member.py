"""A node of a cluster without its I/O: an engine, its part of the control plane, its replicas.

A shell connects the nodes: it hands in what arrives over a link and sends what is in `peers`. After
every event, of the engine too, it calls `pump`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress

import msgspec

from penstock.cluster.commands import Command, Outcome
from penstock.cluster.consensus.membership import Membership
from penstock.cluster.consensus.raft import Raft
from penstock.cluster.levels import GROWTH_AND_STAGES, REPAIRS, TASKS, UNDELIVERED
from penstock.cluster.map import Speaks, Stated
from penstock.cluster.plane.plane import CONSENSUS, SPEAKS, ControlPlane
from penstock.cluster.plane.plane import Out as PlaneOut
from penstock.cluster.replication.messages import pack, unpack
from penstock.cluster.state import ClusterState
from penstock.cluster.view import Limits
from penstock.engine.copies import Copies
from penstock.engine.copy_messages import CopyMessage, pack_copy, unpack_copy
from penstock.engine.engine import BUSY_BYTES, Engine
from penstock.engine.outbox import Outboxes
from penstock.engine.outbox_messages import OutboxMessage, pack_outbox, unpack_outbox
from penstock.engine.queue_lists import QueueLists, QueueNews, pack_news, unpack_news
from penstock.engine.repair_messages import RepairMessage, pack_repair, unpack_repair
from penstock.engine.repairs import Repairs
from penstock.engine.replicas import Replicas
from penstock.engine.steal_messages import StealMessage, pack_steal, unpack_steal
from penstock.engine.stealing import Stealing
from penstock.engine.undelivered import (
    UndeliveredLeases,
    Unheard,
    pack_unheard,
    unpack_unheard,
)
from penstock.engine.withdrawal import Withdrawal
from penstock.errors import LimitError, ProtocolError
from penstock.wire import messages as m
from penstock.wire.buffers import Buffer
from penstock.wire.entry import Entry

_PLANE, _REPLICAS, _COPIES, _LISTS, _REPAIRS = b"p", b"r", b"k", b"q", b"d"
_OUTBOX, _STEALING, _UNDELIVERED = b"o", b"s", b"u"
_pack = msgspec.msgpack.Encoder().encode
_read_info = msgspec.msgpack.Decoder(m.StreamInfo).decode

Asked = Callable[[Outcome], None]


def definition_of(info: m.StreamInfo) -> tuple[str, bytes]:
    """Name and data of a stream's definition. Its id is 0 while it is new: it gets the version in
    which it was defined, which no other has."""
    return f"{info.kind}/{info.namespace}/{info.name}", _pack(info)


def read_definition(data: bytes, version: int) -> m.StreamInfo:
    """The stream of a definition."""
    info = _read_info(data)
    return info if info.id else msgspec.structs.replace(info, id=version)


class Member:
    """See the module. `first` is the membership of the consensus that the cluster began with: the
    founder's own id, and for others none."""

    def __init__(
        self, engine: Engine, node: int, incarnation: int, first: Membership, seed: int,
        now_us: int, limits: Limits | None = None, speaks: Speaks = SPEAKS,
    ) -> None:  # fmt: skip
        self.engine = engine
        self.node = node
        self.peers: list[tuple[int, list[Buffer]]] = []
        stored = engine.consensus
        raft = Raft.restore(
            node, first, hard_state=stored.hard_state, snapshot=stored.base,
            entries=stored.entries, seed=seed, now_us=now_us, settings=CONSENSUS,
        )  # fmt: skip
        state = ClusterState()
        if stored.base is not None and stored.base.data:
            state = ClusterState.restore(stored.base.data)
            raft.applied(stored.base.index)
        self.plane = ControlPlane(raft, state, incarnation, now_us, limits, speaks)
        self.speaks = speaks
        for shard in engine.fabric.kernel.shards:  # until the map says what this node owns
            engine.fabric.end_shard(shard)
        engine.fabric.kernel.shared = True
        engine.replicas = self.replicas = Replicas(
            node, engine.fabric, engine.journal.append, self._has_room
        )
        self.copies = Copies(engine, self.replicas, self._send_copy)
        engine.mender = self.repairs = Repairs(engine, self._send_repair, self._holders)
        self.outboxes = Outboxes(
            node, engine.fabric, self._send_outbox, self._has_room, self._version
        )
        self.lists = QueueLists(node, incarnation, engine.fabric, self._send_news)
        self.stealing = Stealing(node, engine, self.lists, self._send_steal)
        self.undelivered = UndeliveredLeases(
            node, engine.fabric, self._send_unheard, self.replicas.is_linked
        )
        self.withdrawal = Withdrawal(engine, self.replicas, node, incarnation)
        self.founding = False  # streams that the cluster does not know will be defined
        self._incarnation = incarnation
        self._asked: dict[int, Asked | None] = {}
        self._owners_asked: set[Command] = set()  # what owners of shards wait for
        # Streams, by the version of their definition; None before the first look.
        self._defined: dict[str, int] | None = None

    # --- events ----------------------------------------------------------------------------

    def receive(self, source: int, messages: Iterable[memoryview], now_us: int) -> None:
        """What arrived over a link, all that came together: what follows from it goes out together
        as well. ProtocolError if one makes no sense, after what came before it: close the link."""
        try:
            for message in messages:
                # What the one before had logged is in line: this one may take the shard away.
                self.engine.settle(now_us)
                self._receive_one(source, message, now_us)
        finally:
            self.pump(now_us)

    def _receive_one(self, source: int, data: memoryview, now_us: int) -> None:
        if not data:
            raise ProtocolError("an empty message between nodes")
        kind, body = bytes(data[:1]), data[1:]
        if kind == _PLANE:
            self.plane.receive(source, bytes(body), now_us)
        elif kind == _REPLICAS:
            self.replicas.receive(source, unpack(body), now_us)
        elif kind == _COPIES:
            self.copies.receive(source, unpack_copy(body), now_us)
        elif kind == _REPAIRS:
            self.repairs.receive(source, unpack_repair(body))
        elif kind == _OUTBOX:
            self.outboxes.receive(source, unpack_outbox(body), now_us)
        elif kind == _LISTS:
            self.lists.receive(source, unpack_news(body), now_us)
        elif kind == _STEALING:
            self.stealing.receive(source, unpack_steal(body), now_us)
        elif kind == _UNDELIVERED:
            self.undelivered.receive(unpack_unheard(body))
        else:
            raise ProtocolError(f"message {kind!r} between nodes is not known")

    def linked(self, node: int, now_us: int, stated: Stated | None = None) -> None:
        """There is a new connection to a node; nothing sent over an older one arrives any more.
        `stated` is what the node says that it speaks: the level does not rise without it."""
        if stated is not None:
            self.plane.stated[node] = stated
        self.replicas.linked(node, now_us)
        self.lists.linked(node)
        self.outboxes.linked(node)
        self.pump(now_us)

    def unlinked(self, node: int, now_us: int) -> None:
        """The connection to a node is gone."""
        self.replicas.unlinked(node, now_us)
        self.copies.unlinked(node, now_us)
        self.repairs.unlinked(node)
        self.outboxes.unlinked(node, now_us)
        self.plane.suspect(node, now_us)
        self.pump(now_us)

    def tick(self, now_us: int) -> None:
        """Time has passed."""
        self.plane.tick(now_us)
        self.replicas.tick(now_us)
        self.copies.tick(now_us)
        self.repairs.tick(now_us)
        self.outboxes.tick(now_us)
        self.engine.tick(now_us)
        self.pump(now_us)

    def next_due(self) -> int:
        """When `tick` should be called although nothing happens."""
        dues = (
            self.plane.next_due(), self.replicas.next_due(), self.engine.next_due(),
            self.repairs.next_due(), self.outboxes.next_due(),
        )  # fmt: skip
        return min(due_us for due_us in dues if due_us is not None)

    def ask(self, command: Command, now_us: int, then: Asked | None = None) -> int:
        """Asks the cluster for something; `then` is called with what became of it. A token for
        `forget`."""
        token = self.plane.ask(command, now_us)
        self._asked[token] = then
        self.pump(now_us)
        return token

    def forget(self, token: int) -> None:
        """Nobody waits for this any more; it may be carried out all the same."""
        self._asked.pop(token, None)
        self.plane.forget(token)

    @property
    def present(self) -> bool:
        """Whether the cluster knows of this start of the node. Before that the state may be one of
        long ago: what it says of shards and streams is not acted on."""
        node = self.plane.state.nodes.get(self.node)
        return node is not None and node.incarnation >= self._incarnation

    @property
    def level(self) -> int:
        """What all nodes of the cluster speak: nothing newer may be sent or logged."""
        return self.plane.state.level

    # --- what follows ----------------------------------------------------------------------

    def pump(self, now_us: int) -> None:
        """Carries messages between the parts, until none has anything to say."""
        while (
            self._plane_out(now_us) or self._replicas_out(now_us)
            or self.outboxes.advance(self.plane.state.map(), now_us)
        ):  # fmt: skip
            pass
        self.undelivered.advance(self.plane.state.map(), now_us)
        self.lists.advance(now_us)
        self.stealing.advance(now_us)
        self.engine.settle(now_us)

    def _plane_out(self, now_us: int) -> bool:
        out, self.plane.out = self.plane.out, PlaneOut()
        for node, data in out.messages:
            self.peers.append((node, [_PLANE + data]))
        for ready in out.writes:
            number = ready.number
            self._store(self.engine.consensus.store(ready, self._persisted(number)))
        for snapshot in out.snapshots:
            self._store(self.engine.consensus.compact(snapshot))
        if out.changed and self.present:
            self._withdraw(now_us)
            self._define(now_us)
            self.replicas.placed(self.plane.state.map(), now_us)
            if self.level >= REPAIRS:
                self.lists.enable()
                self.engine.fabric.kernel.forwarding = True
            self.engine.fabric.kernel.staging = self.level >= GROWTH_AND_STAGES
            self.engine.fabric.kernel.edges = self.level >= TASKS
            if self.level >= UNDELIVERED:
                self.undelivered.enabled = True
            self.lists.placed(self.plane.state.map(), now_us)
        for token, command, outcome in out.outcomes:
            self._owners_asked.discard(command)
            self.replicas.answered(command)
            if (then := self._asked.pop(token, None)) is not None:
                then(outcome)
        if out.writes or out.snapshots:
            self.engine.settle(now_us)
        return bool(out.messages or out.writes or out.changed or out.outcomes)

    def _withdraw(self, now_us: int) -> None:
        """Asks to be left out of shards that this start of the node found damaged."""
        if self.level < REPAIRS:
            self.withdrawal.give_in()
            return

        def decided(outcome: Outcome) -> None:
            self.withdrawal.answered(outcome, self.plane.state.shards)
            self.replicas.placed(self.plane.state.map(), self.engine.fabric.kernel.now_us)

        if (command := self.withdrawal.command()) is not None:
            with suppress(LimitError):  # it is asked again at the next change
                self._asked[self.plane.ask(command, now_us)] = decided
                self.withdrawal.asked = True

    def _define(self, now_us: int) -> None:
        """Streams as the cluster has them. They are noted in the own log as well: a restart folds
        the shards before it hears of the cluster."""
        control, state = self.engine.fabric.control, self.plane.state
        known = self._known_streams()
        for name in known.keys() - state.definitions.keys():
            del known[name]
            kind, namespace, rest = name.split("/", 2)
            control.delete(m.Delete(kind, rest, namespace))
        for name, definition in state.definitions.items():
            if known.get(name) != definition.version:
                known[name] = definition.version
                control.adopt(read_definition(definition.data, definition.version))
        self.engine.settle(now_us)
        self.replicas.defined(state.version)

    def _known_streams(self) -> dict[str, int]:
        """At first those of the own log: the cluster may have deleted some meanwhile."""
        if self._defined is None:
            streams = self.engine.fabric.kernel.streams.values() if not self.founding else ()
            self._defined = {definition_of(stream.info)[0]: 0 for stream in streams}
        return self._defined

    def _has_room(self) -> bool:
        """Whether the journal can take what other nodes send."""
        return self.engine.journal.pending_bytes <= BUSY_BYTES

    def _version(self) -> int:
        """Of the definitions of streams that are known here."""
        return self.replicas.out.version

    def _store(self, entry: Entry) -> None:
        self.engine.fabric.kernel.effects.append(entry)

    def _persisted(self, number: int) -> Callable[[Entry], None]:
        def done(_: Entry) -> None:
            self.plane.persisted(number, self.engine.fabric.kernel.now_us)

        return done

    def _replicas_out(self, now_us: int) -> bool:
        self.engine.replicated(now_us)
        out = self.replicas.out
        messages, out.messages = out.messages, []
        commands, out.commands = out.commands, []
        for node, message in messages:
            self.peers.append((node, [_REPLICAS, *pack(message)]))
        for command in commands:
            self._ask_once(command, now_us)
        copies, out.copies = out.copies, []
        for shard, node in copies:
            self.copies.want(shard, node, now_us)
        installed = self.copies.advance(now_us)
        return bool(messages or commands or copies or installed)

    def _ask_once(self, command: Command, now_us: int) -> None:
        """An owner repeats itself while it has no answer; the control plane does that as well."""
        if command not in self._owners_asked:
            with suppress(LimitError):  # the owner asks again
                self.plane.ask(command, now_us)
                self._owners_asked.add(command)

    def _send_steal(self, node: int, message: StealMessage) -> None:
        self.peers.append((node, [_STEALING + pack_steal(message)]))

    def _send_unheard(self, node: int, message: Unheard) -> None:
        self.peers.append((node, [_UNDELIVERED + pack_unheard(message)]))

    def _send_news(self, node: int, news: QueueNews) -> None:
        self.peers.append((node, [_LISTS + pack_news(news)]))

    def _holders(self, shard: int) -> list[int]:
        """Other nodes with a copy of a shard: the owner first, then those in sync, then others,
        who may have lost what all the rest have, and have kept what these lost."""
        if not self.present or self.level < REPAIRS:
            return []
        place = self.plane.state.shards[shard]
        members = dict.fromkeys((place.owner, *place.in_sync, *place.replicas))
        return [node for node in members if node != self.node and self.replicas.is_linked(node)]

    def _send_repair(self, node: int, message: RepairMessage) -> None:
        self.peers.append((node, [_REPAIRS + pack_repair(message)]))

    def _send_outbox(self, node: int, message: OutboxMessage) -> None:
        self.peers.append((node, [_OUTBOX + pack_outbox(message)]))

    def _send_copy(self, node: int, message: CopyMessage) -> None:
        self.peers.append((node, [_COPIES + pack_copy(message)]))
