"""Sessions of a cluster: each has a home shard, whose owner hears its signs of life.

An entry may be bound to a session from any shard. Before its first one a shard has itself noted in
the session's home; so when the session ends, its home knows whom to tell, and the outbox does so.
Times are durations: a new owner of the home lets all its sessions last their whole length again.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

from penstock.core.forwards import Forwards
from penstock.core.kernel import Kernel
from penstock.core.records import SessionBound, SessionClosed, SessionOpened
from penstock.core.shard import Shard
from penstock.core.tables import EXPIRY_EVERY_US, MAX_SESSION_MS, Tables
from penstock.core.tickets import Tickets
from penstock.errors import InvalidError, LimitError, MovedError, PenstockError, UnavailableError
from penstock.wire import messages as m
from penstock.wire.durability import Durability
from penstock.wire.entry import Entry
from penstock.wire.sessions import home_of, session_id

MAX_SESSIONS = 10_000  # of one home shard
MAX_BINDINGS = 10_000  # writes that wait for the homes of their sessions, on one node
BINDING_US = 2_000_000  # so long; then the client has to try again


class Binding(IntEnum):
    """What the home of a session says to a shard that wants to bind entries to it."""

    BOUND = 0  # the shard will be told when the session ends
    ENDED = 1
    MOVED = 2  # nothing: the home is elsewhere, or cannot be reached now


Bound = Callable[[Binding], None]


class Question(NamedTuple):
    """A shard of this node asks the home of a session; answer with `Sessions.answered`."""

    home: int
    session: int
    shard: int
    ticket: int


class Sessions:
    """The sessions whose home this node serves, and writes that are bound to any."""

    def __init__(self, kernel: Kernel, tables: Tables, forwards: Forwards) -> None:
        self.kernel = kernel
        self.tables = tables
        self.forwards = forwards
        self.questions: list[Question] = []  # for whoever carries them to other nodes
        self._deadlines_us: dict[int, int] = {}
        self._armed_us = 0  # when the next look at them is due; 0: never
        self.tickets: Tickets[tuple[int, int], Binding] = Tickets(
            kernel, Binding.MOVED, BINDING_US, MAX_BINDINGS
        )  # about a session and a shard
        tables.on_unbound = self._unbound

    def __len__(self) -> int:
        return len(self._deadlines_us)

    # --- life ------------------------------------------------------------------------------

    def open(self, call: m.SessionOpen) -> tuple[int, Entry]:
        """A new session in the shard that the client chose; its id, and what to wait for."""
        if not 0 < call.ttl_ms <= MAX_SESSION_MS:
            raise InvalidError(f"a session lasts 1 to {MAX_SESSION_MS:,} ms without a sign of life")
        if not self.kernel.forwarding:
            raise UnavailableError("a cluster has sessions once all its nodes are upgraded")
        if not 0 <= call.shard < len(self.kernel.shards):
            raise InvalidError("a session of a cluster needs a shard to live in")
        shard = self.kernel.served(call.shard)
        if len(shard.sessions) >= MAX_SESSIONS:
            raise LimitError(f"{MAX_SESSIONS:,} sessions exist already in shard {shard.id}")
        session = session_id(shard.id, shard.last + 1)
        note = SessionOpened(session, call.ttl_ms * 1000)
        entry = self.kernel.note(shard, note, Durability.REPLICATED)
        self._keep(session, note.ttl_us)
        return session, entry

    def keep(self, session: int) -> tuple[bool, Shard]:
        """A sign of life; whether the session is there, and its home."""
        shard = self._home(session)
        known = shard.sessions.get(session)
        if known is not None:
            self._keep(session, known.ttl_us)
        return known is not None, shard

    def close(self, session: int) -> tuple[bool, Entry]:
        """Ends a session: whether it was there, and what to wait for. Its entries go soon after."""
        shard = self._home(session)
        if session not in shard.sessions:
            return False, self.kernel.shard_barrier(shard, Durability.REPLICATED)
        return True, self._end(shard, session)

    def _home(self, session: int) -> Shard:
        home = home_of(session)
        if home is None or home >= len(self.kernel.shards):
            raise InvalidError(f"{session} is no session of this cluster")
        return self.kernel.served(home)

    def _end(self, shard: Shard, session: int) -> Entry:
        self._deadlines_us.pop(session, None)
        entry = self.kernel.note(shard, SessionClosed(session), Durability.REPLICATED)
        entry.done = lambda _: self.forwards.wake(shard)
        return self.forwards.carry_out_own(shard, Durability.REPLICATED) or entry

    def _keep(self, session: int, ttl_us: int) -> None:
        self._deadlines_us[session] = self.kernel.now_us + ttl_us
        self._arm(self.kernel.now_us + ttl_us)

    def _arm(self, due_us: int) -> None:
        if not self._armed_us or due_us < self._armed_us:
            self._armed_us = due_us
            self.kernel.timers.at(due_us, lambda: self._expire(due_us))

    def _expire(self, due_us: int) -> None:
        if self._armed_us != due_us:
            return
        self._armed_us = 0
        now_us = self.kernel.now_us
        for session in [each for each, at_us in self._deadlines_us.items() if at_us <= now_us]:
            self._end(self._home(session), session)
        if self._deadlines_us:
            self._arm(max(min(self._deadlines_us.values()), now_us + EXPIRY_EVERY_US))

    # --- shards ----------------------------------------------------------------------------

    def begin(self, shard: Shard) -> None:
        """This node serves a shard from now on. Entries that were bound to a session of a node that
        stood alone go, unless that was this node, and the session is still there."""
        for session, known in shard.sessions.items():
            self._keep(session, known.ttl_us)
        bound = {number for table in shard.tables.values() for number in table.sessions()}
        shard.bound = {number for number in bound if home_of(number) is not None}
        for number in bound - shard.bound - self.tables.sessions.keys():
            for stream, table in shard.tables.items():
                if keys := table.keys_of(number):
                    self.tables.drop(shard, self.kernel.streams[stream], keys)

    def end(self, shard: Shard) -> None:
        """Another node serves a shard from now on: who waits is told."""
        for session in shard.sessions:
            self._deadlines_us.pop(session, None)
        self.tickets.answer_those(lambda about: about[1] == shard.id, Binding.MOVED)

    # --- the home's side of binding --------------------------------------------------------

    def register(self, question: Question, then: Bound) -> None:
        """A shard wants to bind entries to a session; `then` gets the answer once it is safe."""
        home = self.kernel.shards[question.home]
        if not home.owned:
            then(Binding.MOVED)
            return
        known = home.sessions.get(question.session)
        if known is not None and question.shard not in known.shards:
            note = SessionBound(question.session, question.shard)
            entry = self.kernel.note(home, note, Durability.REPLICATED)
        else:
            entry = self.kernel.shard_barrier(home, Durability.REPLICATED)

        def failed(_: PenstockError) -> None:
            then(Binding.MOVED)

        answer = Binding.ENDED if known is None else Binding.BOUND
        entry.answer, entry.failed = lambda: then(answer), failed

    # --- the shard's side ------------------------------------------------------------------

    def must_bind(self, shard: Shard, session: int) -> bool:
        """Whether the home of a session has to hear of a shard before entries are bound to it."""
        if not session or not self.kernel.forwarding or session in shard.bound:
            return False
        home = home_of(session)
        return home is not None and home < len(self.kernel.shards)

    def bind(self, shard: Shard, session: int, then: Bound) -> None:
        """Asks the home of a session; `then` gets the answer, MOVED if there is none in time."""
        home, epoch = home_of(session), shard.epoch
        assert home is not None

        def answered(answer: Binding) -> None:
            if not shard.owned or shard.epoch != epoch:
                answer = Binding.MOVED
            if answer == Binding.BOUND:
                shard.bound.add(session)
            then(answer)

        ticket = self.tickets.add((session, shard.id), answered)
        self.questions.append(Question(home, session, shard.id, ticket))

    def answered(self, ticket: int, answer: Binding) -> None:
        """The home has answered, or will not."""
        self.tickets.answered(ticket, answer)

    def _unbound(self, session: int, shard: int) -> None:
        """A session has ended: an earlier answer of its home does not count any more."""
        self.tickets.answer_those(lambda about: about == (session, shard), Binding.ENDED)


def unreachable(session: int) -> MovedError:
    """What a write is told whose session's home cannot be reached now."""
    return MovedError(f"the home shard of session {session} cannot be reached now")
