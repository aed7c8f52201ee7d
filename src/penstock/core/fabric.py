"""The node's core: frames in, effects out. All services, put together.

`handle` takes one frame of one connection; `committed` takes entries back when they are safe;
`tick` lets time pass. What they want done is left in `effects`, in order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from penstock.core.bodies import read_extra, unpack
from penstock.core.calls import Calls
from penstock.core.clients import Clients
from penstock.core.control import Control
from penstock.core.control_log import ControlLog
from penstock.core.edges import Edges
from penstock.core.effects import Close, Effect, Read
from penstock.core.figures import figures_of
from penstock.core.forwards import Forwards
from penstock.core.gangs import Gangs
from penstock.core.groups import Groups
from penstock.core.growing import Growing
from penstock.core.kernel import Kernel
from penstock.core.parking import Asker
from penstock.core.publishing import Publishing
from penstock.core.pushes import NO_EXTRA, Pushes
from penstock.core.queues import Queues
from penstock.core.records import Kind, read_transaction
from penstock.core.reservations import Reservations
from penstock.core.securing import Securing
from penstock.core.sessions import Sessions
from penstock.core.shard import CONTROL, PLANE, Replayed, Shard
from penstock.core.staging import Stages
from penstock.core.tables import Tables
from penstock.core.topics import Reader, Topics
from penstock.core.transactions import Transactions
from penstock.core.views import Subscription, Waiter
from penstock.core.watches import Watcher, Watches
from penstock.errors import (
    DamagedError,
    LimitError,
    NotFoundError,
    PenstockError,
    ProtocolError,
    UnavailableError,
)
from penstock.wire import frames
from penstock.wire import messages as m
from penstock.wire.batch import Batch
from penstock.wire.buffers import Buffer
from penstock.wire.durability import Durability
from penstock.wire.entry import Entry
from penstock.wire.frames import Verb
from penstock.wire.limits import MAX_FRAME_BYTES, MAX_IN_FLIGHT
from penstock.wire.plain import read_push

MAX_PARKED = 4096  # pops, fetches, subscriptions and watches of one connection
Parked = Waiter | Subscription | Reader | Watcher | Asker
_HOT_WRITES = {Verb.PUSH, Verb.SETTLE}  # and pops, unless they only look
_decode_hello = msgspec.msgpack.Decoder(m.Hello).decode


class Fabric:
    """The state machine of one node."""

    def __init__(self, shards: int, now_us: int, node: str = "", cluster: int = 0) -> None:
        self.node, self.cluster = node, cluster
        self.cluster_map = 0  # the version of the map; 0: not in a cluster
        self.number = 0  # the node's id there
        self.features = [frames.MERGED]  # what clients may make use of
        self.kernel = kernel = Kernel(shards, now_us)
        self.queues = Queues(kernel)
        self.gangs = Gangs(kernel, self.queues)
        self.topics = Topics(kernel)
        self.groups = Groups(kernel, self.topics)
        self.watches = Watches(kernel)
        self.tables = Tables(kernel, self.watches)
        self.control = Control(kernel, self.queues, self.topics)
        self.control.on_deleted = self.watches.closed
        self.control_log = ControlLog(kernel, self.control, self.tables)
        self.pushes = Pushes(kernel, self.queues, self.topics)
        self.forwards = Forwards(kernel, self.queues, self.tables, self.pushes)
        self.growing = Growing(kernel, self.topics, self.forwards)
        self.control.on_defined = self.growing.defined
        self.securing = Securing(kernel, self.queues)
        self.edges = Edges(kernel, self.queues, self.tables, self.pushes, self.forwards)
        self.sessions = Sessions(kernel, self.tables, self.forwards)
        self.transactions = Transactions(
            kernel, self.topics, self.groups, self.tables, self.pushes, self.forwards,
            self.securing, self.edges,
        )  # fmt: skip
        self.stages = Stages(kernel, self.queues, self.topics, self.pushes, self.forwards)
        self.publishing = Publishing(kernel, self.stages, self.forwards)
        self.reservations = Reservations(kernel, self.queues, self.forwards, self.stages)
        self.calls = Calls(self)
        self.connections: dict[int, dict[int, Parked]] = {}
        self.clients = Clients()
        self.extra_figures: Callable[[], dict[str, Any]] = dict  # the shell's
        self._unfinished: list[tuple[Shard, int, m.Transact]] | None = []  # of a journal's replay
        self._verbs: dict[int, Callable[[int, int, int, memoryview], None]] = {
            Verb.PUSH: self._push,
            Verb.POP: self._pop,
            Verb.SETTLE: self._settle,
            Verb.FETCH: self._fetch,
            Verb.SUBSCRIBE: self._subscribe,
            Verb.CREDIT: self._credit,
            Verb.CANCEL: self._cancel,
            Verb.CALL: self._call,
        }

    # --- events ----------------------------------------------------------------------------

    def handle(self, connection: int, frame: Buffer, now_us: int) -> None:
        """One frame from a connection. A frame that is none closes the connection."""
        due_us = self.kernel.timers.next_due()
        if due_us is not None and due_us <= now_us:
            self.tick(now_us)  # a look at the state must not see what time has ended
        self.kernel.now_us = now_us
        _, verb, flags, _, request = frames.FRAME.unpack_from(frame)
        body = memoryview(frame)[frames.FRAME_BYTES :]
        try:
            self._dispatch(connection, verb, flags, request, body)
        except PenstockError as error:
            self.kernel.fail(connection, verb, request, error)
            # What a client sends damaged may be anything; what is damaged here is not its fault.
            damaged = isinstance(error, DamagedError) and verb == Verb.PUSH
            if damaged or isinstance(error, ProtocolError):
                self.kernel.effects.append(Close(connection))
        self.forwards.carry_out_owed()

    def _dispatch(
        self, connection: int, verb: int, flags: int, request: int, body: memoryview
    ) -> None:
        if connection not in self.connections:
            self._hello(connection, verb, request, body)
            return
        handler = self._verbs.get(verb)
        if handler is None:
            raise ProtocolError(f"unknown verb {verb}")
        if self.kernel.refusing is not None and verb in _HOT_WRITES:
            raise self.kernel.refusing
        handler(connection, request, flags, body)

    def committed(
        self, entries: list[Entry], now_us: int, answered: Callable[[], None] | None = None
    ) -> None:
        """Entries are as safe as they were asked to be, in the order in which they were logged.

        First all who wait are answered, and `answered` may send that; then what follows is done,
        before any other event: who waits can tell it only by how soon the answer comes. What is
        answered `in_turn` comes after all that follows.
        """
        self.kernel.now_us = now_us
        shards, control = self.kernel.shards, self.kernel.control
        for entry in entries:
            shard = shards[entry.shard] if entry.shard < len(shards) else control
            # What is kept in memory only is committed at once, out of turn.
            if entry.number > shard.safe and entry.level and entry.shard != PLANE:
                shard.safe = entry.number
            if entry.answer is not None and not (entry.refused or entry.in_turn or entry.answered):
                entry.answer()
        if answered is not None:
            answered()
        for entry in entries:
            if entry.done is not None:
                entry.done(entry)
        for entry in entries:
            if entry.in_turn and entry.answer and not (entry.refused or entry.answered):
                entry.answer()
            # The journal may keep it for a second: not all that was needed to get here, too.
            entry.done = entry.answer = entry.failed = entry.reply = entry.reader = None
        if self.kernel.shared:  # transactions may have waited for leases elsewhere
            self.forwards.carry_out_owed()

    def was_read(self, wanted: Read, data: Buffer | None) -> None:
        """What was to be read is there; None if nobody has it whole."""
        wanted.then(data)
        self.forwards.carry_out_owed()

    def tick(self, now_us: int) -> None:
        """Time passes."""
        if self.kernel.refusing is None:
            self.kernel.now_us = now_us
            self.kernel.timers.run(now_us)
            self.forwards.carry_out_owed()

    def next_due(self) -> int | None:
        """When `tick` should be called."""
        return None if self.kernel.refusing is not None else self.kernel.timers.next_due()

    def refuse(self, error: PenstockError | None) -> None:
        """The disk takes nothing (or, with None, takes writes again)."""
        self.kernel.refusing = error
        if error is None:
            for view in list(self.queues.views.values()):
                self.queues.serve(view)

    def take_effects(self) -> list[Effect]:
        """What is to be done since the last time, in order."""
        effects, self.kernel.effects = self.kernel.effects, []
        return effects

    # --- connections -----------------------------------------------------------------------

    def _hello(self, connection: int, verb: int, request: int, body: memoryview) -> None:
        if verb != Verb.HELLO:
            raise ProtocolError("the first frame of a connection must be HELLO")
        try:
            hello = _decode_hello(body)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ProtocolError(f"a HELLO that cannot be read: {error}") from error
        if hello.version != frames.PROTOCOL_VERSION:
            raise ProtocolError(
                f"the client speaks version {hello.version}, this node {frames.PROTOCOL_VERSION}"
            )
        if hello.peer is not None:
            raise ProtocolError("this node is not part of a cluster")
        before = self.clients.connected(connection, hello.origin, hello.attempt)
        if before is not None:
            self.disconnect(before)
            self.kernel.effects.append(Close(before))
        self.connections[connection] = {}
        if frames.MERGED in hello.features:
            self.queues.merging.add(connection)
        if frames.COMING in hello.features:
            self.pushes.promises.waking.add(connection)
        welcome = m.Welcome(
            frames.PROTOCOL_VERSION, self.node, self.cluster, len(self.kernel.shards),
            MAX_FRAME_BYTES, MAX_IN_FLIGHT, self.features, self.cluster_map, number=self.number,
        )  # fmt: skip
        self.kernel.answer(connection, Verb.HELLO, request, welcome)

    def disconnect(self, connection: int) -> None:
        """A connection is gone: what it had parked is over. Its leases last."""
        self.clients.gone(connection)
        self.queues.merging.discard(connection)
        self.pushes.promises.waking.discard(connection)
        for parked in self.connections.pop(connection, {}).values():
            parked.over = True

    def pause(self, connection: int, paused: bool, now_us: int) -> None:
        """A connection takes no more (or takes more again): nothing is pushed to it meanwhile."""
        self.kernel.now_us = now_us
        for parked in list(self.connections.get(connection, {}).values()):
            if isinstance(parked, Subscription):
                parked.paused = paused
                if not paused:
                    self.queues.serve(self.queues.view(parked.body.stream))
            elif isinstance(parked, Watcher):
                self.watches.pause(parked, paused)

    def not_delivered(self, connection: int, request: int, messages: int) -> None:
        """Granted messages cannot be read: a subscription has credit for as many others."""
        if isinstance(parked := self.connections.get(connection, {}).get(request), Subscription):
            self.queues.refund(parked, messages)

    def park(self, connection: int, request: int, parked: Parked) -> None:
        """Remembers what a connection waits for."""
        waiting = self.connections[connection]
        if len(waiting) >= MAX_IN_FLIGHT:
            waiting = {number: item for number, item in waiting.items() if not item.over}
            self.connections[connection] = waiting
        if len(waiting) >= MAX_PARKED:
            parked.over = True
            raise LimitError(f"this connection waits for {MAX_PARKED:,} things already")
        if (before := waiting.get(request)) is not None:
            before.over = True  # a number that is used again: only the later one counts
        waiting[request] = parked

    # --- hot verbs -------------------------------------------------------------------------

    def _push(self, connection: int, request: int, flags: int, body: memoryview) -> None:
        if (plain := read_push(body)) is not None:
            self.pushes.push_plain(connection, request, *plain)
            return
        head = frames.PushBody(*unpack(frames.PUSH, body))
        at = frames.PUSH.size
        extra = read_extra(body[at : at + head.extra]) if head.extra else NO_EXTRA
        batch = Batch.parse(body[at + head.extra :])
        self.pushes.push(connection, request, head, extra, batch)

    def _pop(self, connection: int, request: int, flags: int, body: memoryview) -> None:
        head = frames.PopBody(*unpack(frames.POP, body))
        if self.kernel.refusing is not None and head.mode == frames.PopMode.LEASE:
            raise self.kernel.refusing
        waiter = self.queues.pop(connection, request, head)
        if waiter is not None:
            self.park(connection, request, waiter)

    def _settle(self, connection: int, request: int, flags: int, body: memoryview) -> None:
        stream, items = frames.read_settle(body)
        patient, behind = bool(flags & frames.Flag.PATIENT), bool(flags & frames.Flag.BEHIND)
        self.queues.settle(connection, request, stream, items, patient, behind)

    def _fetch(self, connection: int, request: int, flags: int, body: memoryview) -> None:
        head = frames.FetchBody(*unpack(frames.FETCH, body))
        reader = self.topics.fetch(connection, request, head)
        if reader is not None:
            self.park(connection, request, reader)

    def _subscribe(self, connection: int, request: int, flags: int, body: memoryview) -> None:
        head = frames.PopBody(*unpack(frames.POP, body))
        subscription = self.queues.subscribe(connection, request, head)
        self.park(connection, request, subscription)
        self.queues.serve(self.queues.view(head.stream))

    def _credit(self, connection: int, request: int, flags: int, body: memoryview) -> None:
        (messages,) = unpack(frames.CREDIT, body)
        parked = self.connections[connection].get(request)
        if isinstance(parked, Subscription):
            parked.credit = min(parked.credit + messages, 1 << 31)
            self.queues.serve(self.queues.view(parked.body.stream))

    def _cancel(self, connection: int, request: int, flags: int, body: memoryview) -> None:
        parked = self.connections[connection].pop(request, None)
        if parked is None or parked.over:
            return
        parked.over = True
        # They are answered too: they count as in flight until then.
        if isinstance(parked, Waiter | Reader | Asker):
            if parked.timer is not None:
                self.kernel.timers.cancel(parked.timer)
            asked = Verb.FETCH if isinstance(parked, Reader) else parked.verb
            self.kernel.fail(connection, asked, request, UnavailableError("cancelled"))

    def _call(self, connection: int, request: int, flags: int, body: memoryview) -> None:
        self.calls.run(connection, request, m.read_request(body))

    # --- recovery --------------------------------------------------------------------------

    def replay(self, record: Replayed, now_us: int) -> None:
        """Folds one record of the journal. Call in order, then `restart`."""
        self.kernel.now_us = now_us
        if record.kind in (Kind.BARRIER, Kind.COPY):
            return
        if record.shard == CONTROL:
            self.control_log.replay(record)
            return
        shard = self.kernel.shards[record.shard]
        if record.kind == Kind.RESET:
            shard.reset()  # what a checkpoint does not have of the copy is copied again
            return
        new = record.number > shard.last
        if record.kind == Kind.TRANSACTION and new and self._unfinished is not None:
            self._unfinished.append((shard, record.number, read_transaction(record.meta)))
        shard.replay(record, now_us)

    def restart(self, now_us: int, first_grant: int = 1, owns: bool = True) -> None:
        """After the last record: time starts anew, and cut-off transactions are carried out, unless
        others say who owns the shards (`begin_shard`): then nothing is logged.

        `first_grant` is above all grants that were ever given, also those that are lost.
        """
        kernel = self.kernel
        kernel.now_us = now_us
        kernel.effects.clear()  # what was freed meanwhile is not counted as live either
        for stream in kernel.streams.values():
            if stream.info.kind == "table":
                parts = (s.tables.get(stream.info.id) for s in kernel.shards)
                stream.totals.bytes = sum(table.bytes for table in parts if table is not None)
        for shard in (*kernel.shards, kernel.control):
            shard.restart(now_us, first_grant)
            shard.safe = shard.last
        unfinished, self._unfinished = self._unfinished or [], None
        if not owns:
            return
        self.tables.restart()
        for shard in kernel.shards:
            self.queues.begin(shard)
        level = max((stream.level for stream in kernel.streams.values()), default=Durability.MEMORY)
        for shard, number, txn in unfinished:
            self.transactions.carry_out_missing(txn, shard, number, level)
        for shard in kernel.shards:
            self.forwards.carry_out_all(shard, self.forwards.level)
        self.forwards.carry_out_owed()
        self.growing.restart()

    def begin_shard(self, shard: Shard, now_us: int, first_grant: int) -> None:
        """This node owns a shard from now on, in the epoch that the shard has: leases last their
        whole length again, and all grants that it gives are above those of others."""
        self.kernel.now_us = now_us
        shard.owned = True
        shard.restart(now_us, max(shard.first_grant, first_grant))
        shard.safe = shard.last
        self.queues.begin(shard)
        self.watches.taken_over(shard.tables)
        self.tables.arm_next()
        self.sessions.begin(shard)
        self.forwards.begin(shard)
        self.growing.begin(shard)

    def end_shard(self, shard: Shard) -> None:
        """Another node owns a shard, or nobody does."""
        shard.owned = False
        for stream, messages in shard.coming.items():
            if (definition := self.kernel.streams.get(stream)) is not None:
                definition.totals.coming -= messages
        shard.coming.clear()
        self.queues.end(shard)
        self.gangs.end(shard)
        self.topics.moved(shard.id)
        self.sessions.end(shard)

    def newest_us(self) -> int:
        """When the last of the stored batches arrived: time must not go on before that."""
        return max((shard.newest_us() for shard in self.kernel.shards), default=0)

    # --- figures ---------------------------------------------------------------------------

    def stream_figures(
        self, number: int, partitions: list[int] | None = None
    ) -> dict[str, Any]:
        """Figures of one stream; of a topic, those of some partitions or of all."""
        stream = self.kernel.streams.get(number)
        if stream is None:
            raise NotFoundError(f"there is no stream with id {number}")
        if stream.info.kind == "topic":
            figures = self.topics.figures(stream, partitions)
        elif stream.info.kind == "queue":
            figures = self.queues.figures(stream)
        else:
            figures = self.tables.figures(stream)
        return {"name": stream.info.name, "kind": stream.info.kind, **figures}

    def figures(self) -> dict[str, Any]:
        """Figures of the node."""
        return figures_of(self)
