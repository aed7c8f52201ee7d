"""Promises of sessions: their entries stay as long as they do, and go with them."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.sim.actors import Stream
from penstock.sim.history import History, Session, Trouble

SWEEP_US = 1_000_000  # how late an end may be noticed; a node that is down or paused comes on top
PAUSE_US = 6_000_000


def check_sessions(history: History, table: Stream) -> list[str]:
    """Everything that is wrong with sessions and the entries that are bound to them."""
    found = [problem for each in history.sessions for problem in _check_one(each, history.trouble)]
    final = history.final_tables.get(table.name)
    if history.drained and final is not None:
        found += [
            f"left behind: {each.key!r} is still there, and its session is over"
            for each in history.sessions
            if each.key in final.entries
        ]
    return found


def _check_one(session: Session, trouble: Trouble) -> Iterator[str]:
    if session.late_put:
        yield f"bound to nothing: {session.key!r} was written under a session that had ended"
    for look in session.looks:
        if look.there and session.ended_us and look.sent_us > session.ended_us:
            yield (
                f"left behind: {session.key!r} was there at {look.sent_us}, and its session had "
                f"ended at {session.ended_us}"
            )
        if look.there and look.sent_us > _latest_end(session, look.sent_us, trouble):
            yield f"left behind: {session.key!r} was there at {look.sent_us}, long after its end"
        if not look.there and _was_alive(session, look.sent_us, look.done_us):
            yield f"gone too early: {session.key!r} was not there at {look.done_us}"
    for sent_us, done_us, alive in session.kept:
        if done_us and not alive and _was_alive(session, sent_us, done_us):
            yield f"gone too early: the session of {session.key!r} was over at {done_us}"


def _was_alive(session: Session, start_us: int, end_us: int) -> bool:
    """Whether a session certainly lived, with its entry, in all of this time."""
    if not session.put_us or start_us < session.put_us:
        return False
    if session.closed_us and session.closed_us <= end_us:
        return False
    signs = [
        session.opened_us,
        *(sent for sent, done_us, alive in session.kept if done_us and alive),
    ]
    last_us = max(sent_us for sent_us in signs if sent_us <= start_us)
    return end_us < last_us + session.ttl_us


def _latest_end(session: Session, before_us: int, trouble: Trouble) -> int:
    """When a session has ended for certain: a restart lets it begin anew."""
    signs = [session.put_us or before_us]
    signs += [done_us or before_us for sent_us, done_us, _ in session.kept if sent_us < before_us]
    signs += [at for at in (*trouble.starts, *trouble.crashes) if at <= before_us]
    return max(signs) + session.ttl_us + SWEEP_US + PAUSE_US
