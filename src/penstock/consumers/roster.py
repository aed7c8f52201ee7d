"""The table in which the members of a group find each other, and leave each other notes.

`GROUP/TOPIC/member/ID`: a member, for as long as its session lives. `…/note/TO/FROM`: the last
notes of one member to another. `…/figures/ID`: what a member says of itself; nobody watches that.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from penstock.client.aio import AsyncFabric, AsyncSession
from penstock.client.aio_streams import AsyncTable
from penstock.consumers.claim_events import Event, MembersChanged, Nudged, Offered
from penstock.consumers.membership import Drain, Member
from penstock.consumers.storage import part_of
from penstock.errors import ClosedError, NotFoundError, PenstockError

MEMBERS_TABLE = "penstock.members"
WEIGHT_UNIT = 1000  # weights of members are parts of this
MAX_NOTES = 64  # kept for each recipient: more at once are found out by looking
NOTE_SECONDS = 60.0
WATCH_AGAIN_SECONDS = 0.5
MAX_SESSIONS = 10  # that end, one after the other, before the entry is there


class MemberEntry(msgspec.Struct, omit_defaults=True):
    """What a member's entry says."""

    weight: int = WEIGHT_UNIT
    pins: list[int] = []
    drain: tuple[int, int] | None = None  # since when, for how long; both in microseconds
    host: str = ""
    pid: int = 0
    started_us: int = 0
    name: str = ""

    def member(self, id: str) -> Member:
        """As the claims go by it."""
        drain = None if self.drain is None else Drain(*self.drain)
        return Member(id, self.weight, frozenset(self.pins), drain)


class Note(msgspec.Struct, array_like=True, frozen=True):
    """Something that one member tells another: a partition is free for it (an offer), or (None)
    that it should look."""

    number: int
    partition: int | None = None


_read_entry = msgspec.json.Decoder(MemberEntry).decode
_read_notes = msgspec.json.Decoder(list[Note]).decode


def read_entry(id: str, packed: bytes) -> Member | None:
    """A member; None if this is no entry of one."""
    try:
        return _read_entry(packed).member(id)
    except (msgspec.MsgspecError, PenstockError, TypeError):
        return None


class Keys:
    """Where the entries of a group are."""

    def __init__(self, group: str, topic: str) -> None:
        self.group = part_of(group, topic)
        self.members = f"{self.group}member/"
        self.figures = f"{self.group}figures/"

    def notes_to(self, id: str) -> str:
        """The notes that a member gets."""
        return f"{self.group}note/{part_of(id)}"


class Roster:
    """One member's view of the table. `tell` gets what happens there, as events for the claims."""

    def __init__(
        self, fabric: AsyncFabric, table: AsyncTable, keys: Keys, id: str, entry: MemberEntry,
        session_seconds: float, tell: Callable[[Event], None],
    ) -> None:  # fmt: skip
        self._fabric, self._table, self._keys, self.id = fabric, table, keys, id
        self.entry = entry
        self._session_seconds = session_seconds
        self._tell = tell
        self._session: AsyncSession | None = None
        self._known: dict[str, Member | None] = {}
        self._heard: dict[str, int] = {}  # the number of the last note of each member
        self._sent: dict[str, list[Note]] = {}
        self._number = 0
        self._unsent: set[str] = set()
        self._sending = asyncio.Lock()

    # --- the own entry -----------------------------------------------------------------------

    async def join(self) -> None:
        """Puts the entry there, under a new session if the one before is over."""
        for _ in range(MAX_SESSIONS):
            try:
                return await self._put_entry()
            except NotFoundError as error:  # this process stood still for longer than a session
                over = error
        raise over

    async def _put_entry(self) -> None:
        if self._session is None or not self._session.alive:
            await self._end_session()
            self._session = await self._fabric.session(self._session_seconds)
        packed = msgspec.json.encode(self.entry)
        try:
            await self._table.put(self._keys.members + self.id, packed, session=self._session)
        except PenstockError:
            self._session.alive = False  # it may be over: the next attempt makes another
            raise

    async def publish(self, figures: dict[str, Any]) -> None:
        """Writes what this member says of itself; it goes with the session."""
        if self._session is not None and self._session.alive:
            packed = msgspec.json.encode(figures)
            await self._table.put(self._keys.figures + self.id, packed, session=self._session)

    async def leave(self) -> None:
        """Takes everything of this member out of the table."""
        await self._end_session()

    async def _end_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            with suppress(PenstockError):  # it ends by itself
                await session.close()

    # --- looking -----------------------------------------------------------------------------

    async def members(self) -> dict[str, Member]:
        """Who is there, as the nodes have it."""
        found: dict[str, Member] = {}
        start = len(self._keys.members)
        async for key, packed in self._table.items(self._keys.members):
            id = key.decode(errors="replace")[start:]
            if (member := read_entry(id, packed)) is not None:
                found[id] = member
        return found

    async def figures(self) -> dict[str, dict[str, Any]]:
        """What members say of themselves."""
        start = len(self._keys.figures)
        return {
            key.decode(errors="replace")[start:]: msgspec.json.decode(packed)
            async for key, packed in self._table.items(self._keys.figures)
        }

    # --- watching ----------------------------------------------------------------------------

    async def watch_members(self) -> None:
        """Tells of each change of membership, until it is cancelled."""
        start = len(self._keys.members)
        while True:
            with suppress(PenstockError):
                async with await self._table.watch(self._keys.members) as changes:
                    self._tell(MembersChanged())  # what was missed until now
                    async for entry in changes:
                        id = entry.key.decode(errors="replace")[start:]
                        self._changed(id, read_entry(id, entry.value) if entry.version else None)
            self._check_open()
            await asyncio.sleep(WATCH_AGAIN_SECONDS)

    def _changed(self, id: str, member: Member | None) -> None:
        if id in self._known and self._known[id] == member:
            return
        if member is None:
            self._known.pop(id, None)
            self._heard.pop(id, None)
            self._sent.pop(id, None)
        else:
            self._known[id] = member
        self._tell(MembersChanged())

    async def watch_notes(self) -> None:
        """Tells of each note to this member, until it is cancelled."""
        prefix = self._keys.notes_to(self.id)
        while True:
            with suppress(PenstockError):
                async with await self._table.watch(prefix) as changes:
                    async for key, packed in self._table.items(prefix):
                        self._read_notes(key, packed, prefix)
                    async for entry in changes:
                        if entry.version:
                            self._read_notes(entry.key, entry.value, prefix)
            self._check_open()
            await asyncio.sleep(WATCH_AGAIN_SECONDS)

    def _read_notes(self, key: bytes, packed: bytes, prefix: str) -> None:
        sender = key.decode(errors="replace")[len(prefix) :]
        try:
            notes = _read_notes(packed)
        except msgspec.MsgspecError:
            return
        fresh = [note for note in notes if note.number > self._heard.get(sender, 0)]
        if not fresh:
            return
        self._heard[sender] = fresh[-1].number
        offered = tuple(note.partition for note in fresh if note.partition is not None)
        if offered:
            self._tell(Offered(offered, sender))
        if len(offered) < len(fresh):
            self._tell(Nudged(sender))

    def _check_open(self) -> None:
        if self._fabric._connection.closed:
            raise ClosedError("the fabric is closed")

    # --- notes to others ---------------------------------------------------------------------

    async def send(self, to: str, partition: int | None = None) -> None:
        """Leaves a note for a member; notes that are on their way travel together."""
        self._number += 1
        notes = self._sent.setdefault(to, [])
        notes.append(Note(self._number, partition))
        del notes[:-MAX_NOTES]
        self._unsent.add(to)
        async with self._sending:
            if to not in self._unsent:
                return  # it went with one that was before it in line
            self._unsent.discard(to)
            packed = msgspec.json.encode(notes)
            await self._table.put(self._keys.notes_to(to) + self.id, packed, ttl=NOTE_SECONDS)


def new_entry(weight: float, pins: list[int], name: str, started_us: int) -> MemberEntry:
    """The entry of this process."""
    parts = max(1, round(weight * WEIGHT_UNIT))
    return MemberEntry(
        parts, pins, None, socket.gethostname(), os.getpid(), started_us, name
    )
