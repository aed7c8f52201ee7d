"""Tables: entries, sessions that entries live with, and watches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import merge
from itertools import islice
from typing import Any

from penstock.core.kernel import Kernel
from penstock.core.records import (
    Forward,
    Kind,
    Note,
    Removed,
    SessionBegun,
    SessionEnded,
    Unbound,
    Written,
    pack_forward,
    pack_note,
)
from penstock.core.shard import Shard, Stream
from penstock.core.table import ENTRY_OVERHEAD, Cell
from penstock.core.watches import Watches
from penstock.errors import (
    ForgottenError,
    InvalidError,
    LimitError,
    NotFoundError,
    TooLargeError,
)
from penstock.wire import messages as m
from penstock.wire.durability import Durability
from penstock.wire.entry import Entry
from penstock.wire.limits import MAX_TABLE_KEY_BYTES, MAX_TABLE_VALUE_BYTES, MAX_TTL_MS
from penstock.wire.sessions import home_of

MAX_SCAN = 10_000
MAX_SCAN_BYTES = 8 << 20
MAX_SESSIONS = 100_000
MAX_SESSION_MS = 3_600_000
EXPIRY_EVERY_US = 50_000  # at most so often


@dataclass(slots=True)
class SessionState:
    """A session and when it ends unless it is kept."""

    ttl_us: int
    deadline_us: int
    places: set[tuple[int, int]] = field(default_factory=set)  # shard and table of its entries


@dataclass(slots=True)
class Tables:
    """The tables and sessions of a node."""

    kernel: Kernel
    watches: Watches
    sessions: dict[int, SessionState] = field(default_factory=dict)
    last_session: int = 0
    armed_us: int = 0  # when the next look at what ends is due; 0: never
    # Whoever is about to write entries of a session: it has ended, in a shard.
    on_unbound: Callable[[int, int], None] = field(default=lambda session, shard: None)
    # Whoever carries out what a record has put into the outbox of its shard.
    on_told: Callable[[Shard, Entry], None] = field(default=lambda shard, entry: None)

    def _arm(self, due_us: int) -> None:
        """An entry or a session may end then."""
        if not self.armed_us or due_us < self.armed_us:
            self.armed_us = due_us
            self.kernel.timers.at(due_us, lambda: self._expire(due_us))

    # --- entries ---------------------------------------------------------------------------

    def get(self, call: m.Get) -> m.Entry | None:
        """The entry, or None."""
        self.kernel.stream(call.stream, "table")
        table = self.kernel.shard_of(call.key).tables.get(call.stream)
        cell = None if table is None else table.get(call.key, self.kernel.now_us)
        return None if cell is None else m.Entry(call.key, cell.value, cell.version, cell.mark)

    def check_entry(self, key: bytes, value: bytes | None, ttl_ms: int = 0) -> None:
        """Raises what is wrong with a write, whatever the table holds."""
        if not 0 <= ttl_ms <= MAX_TTL_MS:
            raise InvalidError(f"a time-to-live is 0 to {MAX_TTL_MS:,} ms")
        if not 0 < len(key) <= MAX_TABLE_KEY_BYTES:
            raise TooLargeError(f"a key has 1 to {MAX_TABLE_KEY_BYTES} bytes, not {len(key):,}")
        if value is not None and len(value) > MAX_TABLE_VALUE_BYTES:
            raise TooLargeError(f"a value has at most {MAX_TABLE_VALUE_BYTES:,} bytes")

    def check_room(
        self, stream: Stream, key: bytes, value: bytes | None, if_version: int | None
    ) -> None:
        """ConflictError if the entry has another version, LimitError if the table is full."""
        table = self.kernel.shard_of(key).table(stream.info.id)
        table.check(key, if_version, self.kernel.now_us)
        if value is not None:
            size = stream.totals.bytes + len(value)
            before = table.cells.get(key)
            size += len(key) + ENTRY_OVERHEAD if before is None else -len(before.value)
            if size > stream.options.max_bytes:
                raise LimitError(f"table {stream.info.name!r} is full: {size:,} bytes")

    def _answered(self, shard: Shard, call: m.Put | m.Remove) -> int | None:
        """None: new, carry it out. Otherwise what it was answered when it came first: the log
        number, or 0 for a removal that found nothing.

        ForgottenError if that is not known any more; LimitError if a new producer has no room.
        """
        if not call.producer:
            return None
        known = shard.producers.check(call.producer, 0, call.sequence)
        if known is None and call.producer not in shard.producers.windows:
            shard.producers.has_room(self.kernel.now_us)
        if known == -1:
            raise ForgottenError("this write was carried out; its answer is not known any more")
        return known

    def put(self, call: m.Put) -> tuple[Entry, int]:
        """Writes an entry: what to wait for, and its version, the log number of the record."""
        shard = self.kernel.shard_of(call.key)
        if (version := self._answered(shard, call)) is not None:
            return self.kernel.barrier(Durability.SYNCED), version
        stream = self.kernel.stream(call.stream, "table")
        value = call.value
        if call.append:
            cell = shard.table(call.stream).get(call.key, self.kernel.now_us)
            value = value if cell is None else cell.value + value
        self.check_entry(call.key, value, call.ttl_ms)
        self.check_room(stream, call.key, value, call.if_version)
        if call.session and not self._is_bound(shard, call.session):
            raise NotFoundError(f"session {call.session} has ended")
        expires_us = self.kernel.now_us + call.ttl_ms * 1000 if call.ttl_ms else 0
        note = Written(
            call.stream, call.key, value, expires_us, call.session, call.producer, call.sequence,
            call.mark,
        )  # fmt: skip
        entry = self._note(shard, stream, note)
        return entry, entry.number

    def _is_bound(self, shard: Shard, session: int) -> bool:
        """Whether the end of a session will find entries of this shard."""
        return session in (self.sessions if home_of(session) is None else shard.bound)

    def remove(self, call: m.Remove) -> tuple[Entry | None, bool]:
        """Deletes an entry: what to wait for, and whether it was there.

        A producer's removal that finds nothing is logged, too: a late copy of it must not delete
        what was written since.
        """
        shard = self.kernel.shard_of(call.key)
        if (number := self._answered(shard, call)) is not None:
            return self.kernel.barrier(Durability.SYNCED), number > 0
        stream = self.kernel.stream(call.stream, "table")
        self.check_entry(call.key, None)
        self.check_room(stream, call.key, None, call.if_version)
        there = shard.table(call.stream).get(call.key, self.kernel.now_us) is not None
        if not there and not call.producer:
            return None, False
        keys = [call.key] if there else []
        note = Removed(call.stream, keys, call.producer, call.sequence)
        return self._note(shard, stream, note), there

    def drop(self, shard: Shard, stream: Stream, keys: list[bytes]) -> Entry:
        """Logs and folds a checked removal, and tells watchers once it is safe."""
        return self._note(shard, stream, Removed(stream.info.id, keys))

    def _note(self, shard: Shard, stream: Stream, note: Written | Removed) -> Entry:
        """Logs and folds a checked change, and tells watchers once it is safe."""
        level = self.level(shard, note, stream.level)
        entry = self.kernel.log(shard, Kind.NOTE, pack_note(note), level)
        self.fold(shard, stream, note, entry)
        return entry

    def level(self, shard: Shard, note: Note, level: Durability) -> Durability:
        """The level of a note that would have this one, if nobody waited for what it writes."""
        if isinstance(note, Written) and shard.watchers.count(note.stream, note.key):
            return self.kernel.told_level(level)
        return level

    def fold(self, shard: Shard, stream: Stream, note: Note, entry: Entry) -> None:
        """Folds a logged note; a change to a table is counted and told once it is safe."""
        if not isinstance(note, Written | Removed):
            shard.noted(note, entry.number, self.kernel.now_us)
            return
        table = shard.table(stream.info.id)
        before, parts = table.bytes, shard.outbox.parts
        shard.noted(note, entry.number, self.kernel.now_us)
        table.changed = entry.number
        stream.totals.bytes += table.bytes - before
        if isinstance(note, Written):
            if note.expires_us:
                self._arm(note.expires_us)
            if (session := self.sessions.get(note.session)) is not None:
                session.places.add((shard.id, stream.info.id))
            events = [m.Entry(note.key, note.value, entry.number, note.mark)]
        else:
            events = [m.Entry(key, b"", 0) for key in note.keys]
        entry.done = lambda _: self.watches.tell(stream.info.id, events)
        if shard.outbox.parts > parts:
            self.on_told(shard, entry)

    def unbind(self, shard: Shard, session: int, forward: Forward) -> Entry:
        """A session of the cluster has ended: its entries in this shard go, and watchers are told
        once that is safe."""
        note = Unbound(session)
        meta = pack_forward(forward, pack_note(note))
        entry = self.kernel.log(shard, Kind.NOTE | Kind.FORWARDED, meta, Durability.REPLICATED)
        gone = [
            (stream, table, table.bytes, keys)
            for stream, table in shard.tables.items()
            if (keys := table.keys_of(session))
        ]
        shard.noted(note, entry.number, self.kernel.now_us)
        for stream, table, before, _ in gone:
            table.changed = entry.number
            self.kernel.streams[stream].totals.bytes += table.bytes - before

        def done(_: Entry) -> None:
            for stream, _table, _before, keys in gone:
                self.watches.tell(stream, [m.Entry(key, b"", 0) for key in keys])

        entry.done = done
        self.on_unbound(session, shard.id)
        return entry

    def unsafe(self, stream: int, shards: list[Shard]) -> bool:
        """Whether a change to the table here is not as safe yet as it was asked to be."""
        tables = ((shard, shard.tables.get(stream)) for shard in shards)
        return any(table is not None and table.changed > shard.safe for shard, table in tables)

    def scan(self, call: m.Scan) -> list[m.Entry]:
        """Entries by prefix, in key order over all shards; the answer is bounded in bytes too."""
        self.kernel.stream(call.stream, "table")
        limit, now_us = max(1, min(call.limit, MAX_SCAN)), self.kernel.now_us
        owned = [shard for shard in self.kernel.shards if shard.owned]
        tables = [shard.tables[call.stream] for shard in owned if call.stream in shard.tables]
        parts = [
            [(key, table) for key in table.scan(call.prefix, call.after, limit, now_us)]
            for table in tables
        ]
        found: list[m.Entry] = []
        room = MAX_SCAN_BYTES
        for key, table in islice(merge(*parts, key=lambda item: item[0]), limit):
            cell: Cell = table.cells[key]
            value = cell.value if call.values else b""
            room -= len(key) + len(value)
            if room < 0 and found:
                break
            found.append(m.Entry(key, value, cell.version, cell.mark))
        return found

    # --- sessions --------------------------------------------------------------------------

    def begin(self, call: m.SessionOpen) -> tuple[int, Entry]:
        """A new session."""
        if not 0 < call.ttl_ms <= MAX_SESSION_MS:
            raise InvalidError(f"a session lasts 1 to {MAX_SESSION_MS:,} ms without a sign of life")
        if len(self.sessions) >= MAX_SESSIONS:
            raise LimitError(f"{MAX_SESSIONS:,} sessions exist already")
        number = self.last_session + 1
        note = SessionBegun(number, call.ttl_ms * 1000)
        entry = self.kernel.note(self.kernel.control, note, Durability.SYNCED)
        self.began(number, call.ttl_ms * 1000)
        return number, entry

    def began(self, number: int, ttl_us: int) -> None:
        """Fold: a session exists."""
        self.last_session = max(self.last_session, number)
        self.sessions[number] = SessionState(ttl_us, self.kernel.now_us + ttl_us)
        self._arm(self.kernel.now_us + ttl_us)

    def keep(self, call: m.SessionKeep) -> bool:
        """A sign of life; False if the session has ended."""
        session = self.sessions.get(call.session)
        if session is None:
            return False
        session.deadline_us = self.kernel.now_us + session.ttl_us
        return True

    def end(self, number: int) -> Entry | None:
        """Ends a session, and then its entries: should a crash come in between, `restart` drops
        them. The other way round the session would live on without its entries."""
        session = self.sessions.pop(number, None)
        if session is None:
            return None
        self.kernel.note(self.kernel.control, SessionEnded(number), Durability.SYNCED)
        for at, stream in sorted(session.places):
            shard = self.kernel.shards[at]
            table = shard.tables.get(stream) if shard.owned else None
            if table is not None and (keys := table.keys_of(number)):
                self.drop(self.kernel.shards[at], self.kernel.streams[stream], keys)
        return self.kernel.barrier(Durability.SYNCED)

    def restart(self) -> None:
        """After recovery: sessions last their whole length again. Entries of others go."""
        for session in self.sessions.values():
            session.deadline_us = self.kernel.now_us + session.ttl_us
        for shard in self.kernel.shards:
            for stream, table in shard.tables.items():
                for number in table.sessions():
                    if number in self.sessions:
                        self.sessions[number].places.add((shard.id, stream))
                    else:
                        self.drop(shard, self.kernel.streams[stream], table.keys_of(number))
        self.armed_us = 0
        self.arm_next()

    def arm_next(self) -> None:
        """Looks up what ends next: sessions that were kept end later than it was planned."""
        ends = [session.deadline_us for session in self.sessions.values()]
        owned = (shard for shard in self.kernel.shards if shard.owned)
        tables = (table for shard in owned for table in shard.tables.values())
        ends += [due_us for table in tables if (due_us := table.next_due()) is not None]
        if ends:
            self._arm(max(min(ends), self.kernel.now_us + EXPIRY_EVERY_US))

    def _expire(self, due_us: int) -> None:
        if self.armed_us != due_us:
            return
        self.armed_us = 0
        now_us = self.kernel.now_us
        for number in [n for n, s in self.sessions.items() if s.deadline_us <= now_us]:
            self.end(number)
        for shard in self.kernel.shards:
            for stream, table in list(shard.tables.items()) if shard.owned else ():
                if keys := table.expired(now_us):
                    self.drop(shard, self.kernel.streams[stream], keys)
        self.arm_next()

    def figures(self, stream: Stream) -> dict[str, Any]:
        """What `penstock table show` prints."""
        number = stream.info.id
        owned = [shard for shard in self.kernel.shards if shard.owned]
        tables = [shard.tables[number] for shard in owned if number in shard.tables]
        return {"entries": sum(len(t.cells) for t in tables), "bytes": sum(t.bytes for t in tables)}
