"""A node of a cluster without its I/O: an engine, its part of the control plane, its replicas.

A shell connects the nodes: it hands in what arrives over a link and sends what is in `peers`. After
every event, of the engine too, it calls `pump`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import msgspec

from penstock.cluster.commands import Command, Outcome
from penstock.cluster.consensus.membership import Membership
from penstock.cluster.consensus.raft import Raft
from penstock.cluster.plane.plane import ControlPlane
from penstock.cluster.plane.plane import Out as PlaneOut
from penstock.cluster.replication.messages import pack, unpack
from penstock.cluster.state import ClusterState
from penstock.cluster.view import Limits
from penstock.core.effects import Append
from penstock.engine.copies import Copies
from penstock.engine.copy_messages import CopyMessage, pack_copy, unpack_copy
from penstock.engine.engine import BUSY_BYTES, Engine
from penstock.engine.replicas import Replicas
from penstock.errors import LimitError, ProtocolError
from penstock.wire import messages as m
from penstock.wire.buffers import Buffer
from penstock.wire.entry import Entry

_PLANE, _REPLICAS, _COPIES = b"p", b"r", b"k"
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
        now_us: int, limits: Limits | None = None,
    ) -> None:  # fmt: skip
        self.engine = engine
        self.node = node
        self.peers: list[tuple[int, list[Buffer]]] = []
        stored = engine.consensus
        raft = Raft.restore(
            node, first, hard_state=stored.hard_state, snapshot=stored.base,
            entries=stored.entries, seed=seed, now_us=now_us,
        )  # fmt: skip
        state = ClusterState()
        if stored.base is not None and stored.base.data:
            state = ClusterState.restore(stored.base.data)
            raft.applied(stored.base.index)
        self.plane = ControlPlane(raft, state, incarnation, now_us, limits)
        for shard in engine.fabric.kernel.shards:  # until the map says what this node owns
            engine.fabric.end_shard(shard)
        engine.fabric.kernel.shared = True
        engine.replicas = self.replicas = Replicas(
            node, engine.fabric, engine.journal.append, self._has_room
        )
        self.copies = Copies(engine, self.replicas, self._send_copy)
        self.founding = False  # streams that the cluster does not know will be defined
        self._incarnation = incarnation
        self._asked: dict[int, Asked | None] = {}
        self._owners_asked: set[Command] = set()  # what owners of shards wait for
        # Streams, by the version of their definition; None before the first look.
        self._defined: dict[str, int] | None = None

    # --- events ----------------------------------------------------------------------------

    def receive(self, source: int, data: memoryview, now_us: int) -> None:
        """What arrived over a link; ProtocolError if it makes no sense: close the link."""
        if not data:
            raise ProtocolError("an empty message between nodes")
        kind, body = bytes(data[:1]), data[1:]
        if kind == _PLANE:
            self.plane.receive(source, bytes(body), now_us)
        elif kind == _REPLICAS:
            self.replicas.receive(source, unpack(body), now_us)
        elif kind == _COPIES:
            self.copies.receive(source, unpack_copy(body), now_us)
        else:
            raise ProtocolError(f"message {kind!r} between nodes is not known")
        self.pump(now_us)

    def linked(self, node: int, now_us: int) -> None:
        """There is a new connection to a node; nothing sent over an older one arrives any more."""
        self.replicas.linked(node, now_us)
        self.pump(now_us)

    def unlinked(self, node: int, now_us: int) -> None:
        """The connection to a node is gone."""
        self.replicas.unlinked(node, now_us)
        self.copies.unlinked(node, now_us)
        self.plane.suspect(node, now_us)
        self.pump(now_us)

    def tick(self, now_us: int) -> None:
        """Time has passed."""
        self.plane.tick(now_us)
        self.replicas.tick(now_us)
        self.copies.tick(now_us)
        self.engine.tick(now_us)
        self.pump(now_us)

    def next_due(self) -> int:
        """When `tick` should be called although nothing happens."""
        dues = (self.plane.next_due(), self.replicas.next_due(), self.engine.next_due())
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

    # --- what follows ----------------------------------------------------------------------

    def pump(self, now_us: int) -> None:
        """Carries messages between the parts, until none has anything to say."""
        while self._plane_out(now_us) or self._replicas_out(now_us):
            pass

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
            self._define(now_us)
            self.replicas.placed(self.plane.state.map(), now_us)
        for token, command, outcome in out.outcomes:
            self._owners_asked.discard(command)
            self.replicas.answered(command)
            if (then := self._asked.pop(token, None)) is not None:
                then(outcome)
        if out.writes or out.snapshots:
            self.engine.settle(now_us)
        return bool(out.messages or out.writes or out.changed or out.outcomes)

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

    def _store(self, entry: Entry) -> None:
        self.engine.fabric.kernel.effects.append(Append(entry))

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

    def _send_copy(self, node: int, message: CopyMessage) -> None:
        self.peers.append((node, [_COPIES + pack_copy(message)]))
