"""How fast sessions are assembled, against a plain loop over the same fragments."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from penstock.consumers.assembler import Assembler
from penstock.consumers.fragments import Fragments
from penstock.consumers.generator import CLOSING_KEY, Clicks, is_end
from penstock.consumers.sessions import Sessionizer, SessionRecord, text

Clock = Callable[[], float]


class SessionRates(NamedTuple):
    """Fragments a second. The plain loop knows neither disorder, nor silence, nor resuming."""

    fragments: int
    sessions: int
    plain_loop: float
    one_by_one: float
    in_bulk: float

    def __str__(self) -> str:
        return (
            f"{self.fragments:,} fragments, {self.sessions:,} sessions:"
            f" plain loop {self.plain_loop:,.0f}/s,"
            f" assembler one by one {self.one_by_one:,.0f}/s"
            f" ({self.one_by_one / self.plain_loop:.2f}),"
            f" in bulk {self.in_bulk:,.0f}/s ({self.in_bulk / self.plain_loop:.2f})"
        )


def measure_sessions(clicks: Clicks, clock: Clock, *, batch: int = 20_000) -> SessionRates:
    """Runs all three over the same batches, which are made beforehand; `clock` in seconds."""
    batches = list(clicks.batches(batch))
    count = sum(map(len, batches))

    started = clock()
    plain_loop(batches, clicks.timeout_us)
    plain = count / (clock() - started)

    rates = []
    found = 0
    for bulk in (False, True):
        started = clock()
        found = _assembled(clicks, batches, bulk)
        rates.append(count / (clock() - started))
    return SessionRates(count, found, plain, *rates)


def _assembled(clicks: Clicks, batches: list[Fragments], bulk: bool) -> int:
    stateful = Sessionizer(end=is_end, timeout=clicks.timeout, delay=clicks.delay)
    assembler = Assembler(stateful, bulk=bulk)
    found = 0
    for batch in batches:
        step = assembler.take(batch, now_us=0)
        found += len(step.results)
        if step.wants_snapshot:
            assembler.snapshot(b"bench")
        assembler.progress()
    return found


def plain_loop(batches: list[Fragments], timeout_us: int) -> list[bytes]:
    """Sessions as one would write it down: a dictionary of lists, in the order of arrival."""
    sessions: dict[bytes, list[tuple[int, bytes]]] = {}
    results: list[bytes] = []
    for batch in batches:
        rows = zip(batch.keys, batch.values, batch.times_us.tolist(), strict=True)
        for key, value, time_us in rows:
            session = sessions.get(key)
            if session is None:
                session = sessions[key] = []
            elif time_us - session[-1][0] > timeout_us:
                results.append(_record(key, session, "timeout"))
                session = sessions[key] = []
            session.append((time_us, value))
            if is_end(value):
                results.append(_record(key, sessions.pop(key), "end"))
    left = [(key, session) for key, session in sessions.items() if key != CLOSING_KEY]
    results += [_record(key, session, "timeout") for key, session in left]
    return results


def _record(key: bytes, session: list[tuple[int, bytes]], reason: str) -> bytes:
    pieces = sorted(session)
    return msgspec.json.encode(
        SessionRecord(
            text(key),
            pieces[0][0],
            pieces[-1][0],
            len(pieces),
            reason,
            [(time_us, text(value)) for time_us, value in pieces],
        )
    )
