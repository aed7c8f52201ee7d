"""The cold verbs: one small method each, found by the type of the request."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.core.sessions import Binding, unreachable
from penstock.errors import ConflictError, InvalidError, NotFoundError, PenstockError
from penstock.wire import messages as m
from penstock.wire.durability import Durability
from penstock.wire.entry import Entry
from penstock.wire.frames import Verb
from penstock.wire.sessions import home_of

if TYPE_CHECKING:
    from penstock.core.fabric import Fabric
    from penstock.core.shard import Shard

_READS = (m.Streams, m.Stats, m.StreamStats, m.Offsets, m.OffsetAt, m.Family, m.Committed,
          m.Renew, m.Claims, m.Get, m.Scan, m.Watch, m.SessionKeep, m.ClusterMap, m.ClusterStatus,
          m.WhereIs, m.Publications, m.ReadReserved, m.Reservations, m.Held)  # fmt: skip
_OF_A_CLUSTER = (m.ClusterMap, m.ClusterStatus, m.ClusterChange, m.ClusterJoin, m.WhereIs)
Handler = Callable[[int, int, Any], None]


class Calls:
    """Answers CALL frames. A change is answered when it is safe, a look at once."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self.kernel = fabric.kernel
        self._handlers: dict[type, Handler] = {
            m.Open: self._open,
            m.Configure: self._configure,
            m.Grow: self._grow,
            m.Delete: self._delete,
            m.Streams: self._look(fabric.control.streams),
            m.Stats: self._stats,
            m.StreamStats: self._stream_stats,
            m.Purge: self._changed_queue(fabric.control.purge),
            m.Redrive: self._changed_queue(fabric.control.redrive),
            m.Release: self._changed_queue(fabric.control.release),
            m.Park: self._park,
            m.Producer: self._producer,
            m.Offsets: self._look_at_topic(fabric.topics.offsets),
            m.OffsetAt: self._look_at_topic(fabric.topics.offset_at),
            m.Family: self._look_at_group(fabric.topics.family),
            m.Commit: self._commit,
            m.Committed: self._look_at_group(fabric.groups.committed),
            m.Claim: self._claim,
            m.Unclaim: self._unclaim,
            m.Renew: self._renew,
            m.Claims: self._look_at_group(fabric.groups.claims),
            m.Put: self._put,
            m.Get: self._get,
            m.Remove: self._remove,
            m.Scan: self._scan,
            m.Watch: self._watch,
            m.SessionOpen: self._session_open,
            m.SessionKeep: self._session_keep,
            m.SessionClose: self._session_close,
            m.Transact: fabric.transactions.run,
            m.PublishStaged: fabric.publishing.publish,
            m.DiscardStages: self._entered(fabric.stages.discard),
            m.Publications: self._look(fabric.publishing.known),
            m.ForgetPublication: self._entered(fabric.publishing.forget),
            m.Reserve: self._entered(fabric.reservations.reserve),
            m.SealReservation: self._entered(fabric.reservations.seal),
            m.ReadReserved: fabric.reservations.read,
            m.FinishReservations: self._entered(fabric.reservations.finish),
            m.Unreserve: self._entered(fabric.reservations.unreserve),
            m.Reservations: self._look(fabric.reservations.open),
            m.Held: self._held,
            **dict.fromkeys(_OF_A_CLUSTER, _alone),
        }

    def hand_over(self, handlers: dict[type, Handler]) -> None:
        """Calls of these types are answered elsewhere from now on: by the cluster. A handler gets
        connection, request and call; what it raises is the answer."""
        self._handlers.update(handlers)

    def run(self, connection: int, request: int, call: m.Request) -> None:
        """Answers one call, now or later."""
        if self.kernel.refusing is not None and not self._only_reads(call):
            raise self.kernel.refusing
        self._handlers[type(call)](connection, request, call)

    def _only_reads(self, call: m.Request) -> bool:
        """Whether nothing is written for it. Whoever wants to read a stream opens it before."""
        if isinstance(call, m.Open):
            return (call.namespace, call.kind, call.name) in self.kernel.names
        return isinstance(call, _READS)

    # --- how to answer ---------------------------------------------------------------------

    def _now(self, connection: int, request: int, value: Any) -> None:
        self.kernel.answer(connection, Verb.CALL, request, value)

    def _when_safe(self, connection: int, request: int, entry: Entry | None, value: Any) -> None:
        if entry is None:
            self._now(connection, request, value)
            return
        self.kernel.reply_when_safe(entry, connection, Verb.CALL, request, m.pack(value))

    def _refuse_when_safe(
        self, connection: int, request: int, entry: Entry | None, refusal: PenstockError
    ) -> None:
        if entry is None:
            raise refusal
        self.kernel.answer_when_safe(
            entry, connection, Verb.CALL, request,
            lambda: self.kernel.fail(connection, Verb.CALL, request, refusal),
        )  # fmt: skip

    def _look(self, answer: Callable[[Any], Any]) -> Handler:
        def look(connection: int, request: int, call: Any) -> None:
            self._now(connection, request, answer(call))

        return look

    def _entered(self, act: Callable[[Any], tuple[Any, Entry]]) -> Handler:
        """What was done is told when it is safe."""

        def enter(connection: int, request: int, call: Any) -> None:
            value, entry = act(call)
            self._when_safe(connection, request, entry, value)

        return enter

    def _look_at_topic(self, answer: Callable[[Any], Any]) -> Handler:
        """What is said of a partition's ends must not go back: only an owner that is sure to be
        one tells."""

        def look(connection: int, request: int, call: Any) -> None:
            value = answer(call)
            entry = self.kernel.confirmation(self._shards_of(call.stream, call.partitions))
            self._when_safe(connection, request, entry, value)

        return look

    def _look_at_group(self, answer: Callable[[Any], Any]) -> Handler:
        """The same for what a group committed or claimed, which must be safe, too."""

        def look(connection: int, request: int, call: Any) -> None:
            value = answer(call)
            entry = self._unsafe_group(call.stream, call.partitions)
            self._when_safe(connection, request, entry, value)

        return look

    def _unsafe_group(self, stream: int, partitions: list[int] | None) -> Entry | None:
        shards = self._shards_of(stream, partitions)
        if any(shard.last > shard.safe for shard in shards):
            return self.kernel.unsafe(self.kernel.streams[stream].level)
        return self.kernel.confirmation(shards)

    def _shards_of(self, stream: int, partitions: list[int] | None) -> list[Shard]:
        topic = self.kernel.stream(stream, "topic")
        wanted = self.fabric.topics.wanted(topic, partitions)
        return [self.kernel.shards[topic.info.placement[number]] for number in wanted]

    def _changed_queue(self, act: Callable[[Any], Any]) -> Handler:
        def change(connection: int, request: int, call: Any) -> None:
            value = act(call)
            level = self.kernel.stream(call.stream, "queue").level
            entry = self.kernel.barrier(level)
            self._when_safe(connection, request, entry, value)

        return change

    # --- definitions and figures -----------------------------------------------------------

    def _open(self, connection: int, request: int, call: m.Open) -> None:
        info, entry = self.fabric.control.open(call)
        if entry is None:  # another client may have just created it
            entry = self._unsafe_control()
        self._when_safe(connection, request, entry, info)

    def _configure(self, connection: int, request: int, call: m.Configure) -> None:
        info, entry = self.fabric.control.configure(call)
        self._when_safe(connection, request, entry, info)

    def _grow(self, connection: int, request: int, call: m.Grow) -> None:
        info = self.fabric.control.grow(call)
        safe = self.kernel.barrier(Durability.SYNCED)  # of all that was sealed and opened, too
        self._when_safe(connection, request, safe, info)

    def _delete(self, connection: int, request: int, call: m.Delete) -> None:
        entry = self.fabric.control.delete(call)
        self._when_safe(connection, request, entry, entry is not None)

    def _producer(self, connection: int, request: int, call: m.Producer) -> None:
        info, entry = self.fabric.control.producer(call)
        self._when_safe(connection, request, entry, info)

    def _stats(self, connection: int, request: int, call: m.Stats) -> None:
        self._now(connection, request, self.fabric.figures())

    def _stream_stats(self, connection: int, request: int, call: m.StreamStats) -> None:
        figures = self.fabric.stream_figures(call.stream, call.partitions)
        self._now(connection, request, figures)

    def _park(self, connection: int, request: int, call: m.Park) -> None:
        parked = self.fabric.gangs.park(connection, request, call)
        self.fabric.park(connection, request, parked)
        self.fabric.queues.serve(self.fabric.queues.view(call.stream))

    def _held(self, connection: int, request: int, call: m.Held) -> None:
        found = self.fabric.edges.held(call)
        entry = self.kernel.confirmation([self.kernel.shard_of(call.id)])
        self._when_safe(connection, request, entry, found)

    # --- topics ----------------------------------------------------------------------------

    def _commit(self, connection: int, request: int, call: m.Commit) -> None:
        self._when_safe(connection, request, self.fabric.groups.commit(call), None)

    def _renew(self, connection: int, request: int, call: m.Renew) -> None:
        value = self.fabric.groups.renew(call)
        entry = self._unsafe_group(call.stream, [number for number, _ in call.claims])
        self._when_safe(connection, request, entry, value)

    def _claim(self, connection: int, request: int, call: m.Claim) -> None:
        info, entry = self.fabric.groups.claim(call)
        self._when_safe(connection, request, entry, info)

    def _unclaim(self, connection: int, request: int, call: m.Unclaim) -> None:
        entry = self.fabric.groups.unclaim(call)
        self._when_safe(connection, request, entry, entry is not None)

    # --- tables ----------------------------------------------------------------------------

    def _put(self, connection: int, request: int, call: m.Put) -> None:
        """A shard whose first entry of a session this is asks the session's home before."""
        sessions, shard = self.fabric.sessions, self.kernel.shard_of(call.key)
        self.fabric.edges.check_mark(call.mark)
        if not sessions.must_bind(shard, call.session):
            self._write(connection, request, call, self.fabric.tables.put)
            return

        def bound(answer: Binding) -> None:
            try:
                if answer == Binding.MOVED:
                    raise unreachable(call.session)
                self._write(connection, request, call, self.fabric.tables.put)
            except PenstockError as error:
                self.kernel.fail(connection, Verb.CALL, request, error)

        sessions.bind(shard, call.session, bound)

    def _remove(self, connection: int, request: int, call: m.Remove) -> None:
        self._write(connection, request, call, self.fabric.tables.remove)

    def _write(
        self, connection: int, request: int, call: Any,
        act: Callable[[Any], tuple[Entry | None, Any]],
    ) -> None:  # fmt: skip
        """An answer that tells what the entry was waits, like any look, until that is committed."""
        shards = [self.kernel.shard_of(call.key)]
        try:
            entry, value = act(call)
        except ConflictError as refusal:
            unsafe = self._unsafe_table(call.stream, shards)
            self._refuse_when_safe(connection, request, unsafe, refusal)
        except NotFoundError as refusal:  # its session has ended
            self._refuse_when_safe(connection, request, self._unsafe_control(), refusal)
        else:
            entry = entry or self._unsafe_table(call.stream, shards)
            self._when_safe(connection, request, entry, value)

    def _get(self, connection: int, request: int, call: m.Get) -> None:
        value = self.fabric.tables.get(call)
        entry = self._unsafe_table(call.stream, [self.kernel.shard_of(call.key)])
        self._when_safe(connection, request, entry, value)

    def _unsafe_table(self, stream: int, shards: list[Any]) -> Entry | None:
        """What to wait for before a look at the table may be answered: nobody sees what is not
        committed."""
        if not self.fabric.tables.unsafe(stream, shards):
            return self.kernel.confirmation(shards)
        level: Durability = self.kernel.streams[stream].level
        return self.kernel.unsafe(level)

    def _scan(self, connection: int, request: int, call: m.Scan) -> None:
        found = self.fabric.tables.scan(call)
        entry = self._unsafe_table(call.stream, self.kernel.shards)
        self._when_safe(connection, request, entry, found)

    def _watch(self, connection: int, request: int, call: m.Watch) -> None:
        watcher = self.fabric.watches.add(connection, request, call)
        self.fabric.park(connection, request, watcher)
        self._now(connection, request, 0)

    # --- sessions --------------------------------------------------------------------------

    def _session_open(self, connection: int, request: int, call: m.SessionOpen) -> None:
        opens = self.fabric.sessions.open if self.kernel.shared else self.fabric.tables.begin
        number, entry = opens(call)
        self._when_safe(connection, request, entry, number)

    def _session_keep(self, connection: int, request: int, call: m.SessionKeep) -> None:
        if home_of(call.session) is not None:
            there, home = self.fabric.sessions.keep(call.session)
            if there:
                safe = self.kernel.confirmation([home])
            else:  # what ended it may not be committed yet
                safe = self.kernel.unsafe(Durability.REPLICATED, home)
            self._when_safe(connection, request, safe, there)
            return
        alive = self.fabric.tables.keep(call)
        entry = None if alive else self._unsafe_control()
        self._when_safe(connection, request, entry, alive)

    def _session_close(self, connection: int, request: int, call: m.SessionClose) -> None:
        if home_of(call.session) is not None:
            there, safe = self.fabric.sessions.close(call.session)
            self._when_safe(connection, request, safe, there)
            return
        entry = self.fabric.tables.end(call.session)
        waited = self._unsafe_control() if entry is None else entry
        self._when_safe(connection, request, waited, entry is not None)

    def _unsafe_control(self) -> Entry | None:
        """What to wait for before anybody hears that a session has ended, or a stream exists."""
        control = self.kernel.control
        return self.kernel.unsafe(Durability.SYNCED) if control.last > control.safe else None


def _alone(connection: int, request: int, call: Any) -> None:
    raise InvalidError(
        "this node is not part of a cluster",
        advice="Start it with --cluster or --join, or ask a node of the cluster.",
    )
