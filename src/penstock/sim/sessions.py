"""Actors with sessions, and others that look at their entries."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.client import ops_fabric, ops_table
from penstock.client.state import TableState
from penstock.errors import NotFoundError, PenstockError
from penstock.sim.actors import RETRY_US, Actor
from penstock.sim.client import Script, Sleep
from penstock.sim.history import Look, Session

RECENT = 6


@dataclass(frozen=True)
class SessionId:
    """What binds an entry to its session."""

    id: int


class SessionHolder(Actor):
    """Session after session, each with one entry: kept for a while, then closed or forgotten."""

    def run(self) -> Script[None]:
        """Until the work is over."""
        table = yield from self.open_table()
        while self.busy:
            try:
                yield from self._live(table)
            except PenstockError:
                yield Sleep(RETRY_US)

    def _live(self, table: TableState) -> Script[None]:
        key = f"{self.client.name}/{len(self.history.sessions)}".encode()
        noted = Session(key, self.world.between(800_000, 2_500_000), self.world.now_us)
        number = yield from ops_fabric.open_session(noted.ttl_us / 1e6)
        self.history.sessions.append(noted)
        yield from ops_table.put(table, key, b"here", session=SessionId(number))
        noted.put_us = self.world.now_us
        for _ in range(self.world.between(0, 6)):
            yield Sleep(self.world.between(0, noted.ttl_us * 11 // 20))
            yield from self._keep(noted, number)
        if self.world.chance(0.5):
            noted.closed_us = self.world.now_us
            yield from ops_fabric.close_session(number)
            self._ended(noted)
            yield from self._bind_late(table, noted, number)
        else:
            yield Sleep(self.world.between(0, 2 * noted.ttl_us))
            yield from self._keep(noted, number)

    def _keep(self, noted: Session, number: int) -> Script[None]:
        sent_us = self.world.now_us
        noted.kept.append((sent_us, 0, True))
        alive = yield from ops_fabric.keep_session(number)
        noted.kept[-1] = (sent_us, self.world.now_us, alive)
        if not alive:
            self._ended(noted)

    def _ended(self, noted: Session) -> None:
        noted.ended_us = noted.ended_us or self.world.now_us

    def _bind_late(self, table: TableState, noted: Session, number: int) -> Script[None]:
        """An entry for a session that has ended is refused."""
        try:
            yield from ops_table.put(table, noted.key, b"late", session=SessionId(number))
        except NotFoundError:
            return
        noted.late_put = True


class SessionLooker(Actor):
    """Looks whether the entries of the latest sessions are there."""

    def run(self) -> Script[None]:
        """Until the work is over."""
        table = yield from self.open_table()
        while self.busy:
            yield from self.rest(150_000)
            recent = [each for each in self.history.sessions if each.put_us][-RECENT:]
            if not recent:
                continue
            session, sent_us = self.world.random.choice(recent), self.world.now_us
            try:
                found = yield from ops_table.get(table, session.key)
            except PenstockError:
                yield Sleep(RETRY_US)
            else:
                session.looks.append(Look(sent_us, self.world.now_us, found is not None))
