"""What a schedule is, and which of its runs are due. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from itertools import islice, takewhile
from typing import NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from penstock.client.inputs import check_name, milliseconds, moment_of, moment_us
from penstock.errors import InvalidError, ProtocolError
from penstock.tasks.names import named_task_id
from penstock.tasks.schedules.cron import Cron
from penstock.wire.buffers import Buffer

SCHEDULE_PREFIX = b"schedule/"
LAST_PREFIX = b"scheduled/"
MAX_MISSED = 1_000  # runs that are made up for, at most
MIN_EVERY_MS = 100
_FIRST_LOOK_US = 60_000_000


class Missed(StrEnum):
    """What is done about runs that fell into a time without workers."""

    SKIP = "skip"
    """Nothing: the next one is run on time."""
    ONCE = "once"
    """One run, for the last of them."""
    ALL = "all"
    """All of them, up to MAX_MISSED, the last ones."""


class Schedule(msgspec.Struct, array_like=True, frozen=True):
    """An entry of the control table: when, and what."""

    call: bytes
    """A packed TaskCall; every run gets an id of its own."""
    cron: str = ""
    every_ms: int = 0
    """One of these two. `every_ms` counts from `begins_us`."""
    zone: str = ""
    """Of the wall clock that `cron` goes by; empty: UTC."""
    missed: Missed = Missed.ONCE
    begins_us: int = 0
    ends_us: int = 0
    """0: it never ends."""

    def moments(self, after_us: int) -> Iterator[int]:
        """When it is to run, after a moment."""
        after_us = max(after_us, self.begins_us - 1)
        found = self._every(after_us) if self.every_ms else self._by_cron(after_us)
        return takewhile(lambda each: not self.ends_us or each <= self.ends_us, found)

    def _every(self, after_us: int) -> Iterator[int]:
        every_us = self.every_ms * 1000
        number = (after_us - self.begins_us) // every_us + 1
        while True:
            yield self.begins_us + number * every_us
            number += 1

    def _by_cron(self, after_us: int) -> Iterator[int]:
        zone = zone_of(self.zone) if self.zone else None
        moments = _parsed(self.cron).moments(moment_of(after_us), zone)
        return map(moment_us, moments)


_parsed = lru_cache(maxsize=1_000)(Cron.parse)
_decode = msgspec.msgpack.Decoder(Schedule).decode
_encode = msgspec.msgpack.Encoder().encode


class Due(NamedTuple):
    """Runs to submit now, and when to look again (None: never)."""

    runs_us: list[int]
    next_us: int | None


def due(schedule: Schedule, last_us: int, now_us: int, late_us: int) -> Due:
    """The runs after the last one that was submitted. A run is missed if it is later than `late_us`
    by now: that is a time without workers, not a busy moment."""
    recent_us = max(last_us, now_us - late_us)
    on_time: list[int] = []
    next_us = None
    for moment in schedule.moments(recent_us):
        if moment > now_us:
            next_us = moment
            break
        on_time.append(moment)
    missed: list[int] = []
    if schedule.missed is Missed.ALL:
        missed = _last_missed(schedule, last_us, recent_us, MAX_MISSED)
    elif schedule.missed is Missed.ONCE and not on_time:
        missed = _last_missed(schedule, last_us, recent_us, 1)
    return Due([*missed, *on_time], next_us)


def _last_missed(schedule: Schedule, last_us: int, until_us: int, most: int) -> list[int]:
    """The last runs in (last, until], looked for further and further back: most of a long time
    need not be counted."""
    back_us = _FIRST_LOOK_US
    while True:
        begin_us = max(last_us, until_us - back_us)
        found = list(takewhile(lambda each: each <= until_us, schedule.moments(begin_us)))
        if len(found) >= most or begin_us == last_us:
            return found[-most:]
        back_us *= 4


def new_schedule(
    call: bytes,
    now_us: int,
    cron: str | None = None,
    every: float | None = None,
    zone: str = "",
    missed: str = "once",
    until: datetime | float | None = None,
) -> Schedule:
    """A schedule that begins now; InvalidError says what is wrong with it."""
    if (cron is None) == (every is None):
        raise InvalidError("a schedule needs either `cron` or `every`")
    if missed not in set(Missed):
        raise InvalidError(f"missed {missed!r}: use {', '.join(Missed)}")
    if cron is not None:
        _parsed(cron)
    if zone:
        zone_of(zone)
    every_ms = 0 if every is None else milliseconds("every", every, 1 << 50)
    if every is not None and every_ms < MIN_EVERY_MS:
        raise InvalidError(f"every {every} s: use {MIN_EVERY_MS / 1000} s or more")
    ends_us = 0 if until is None else moment_us(until)
    return Schedule(call, cron or "", every_ms, zone, Missed(missed), now_us, ends_us)


def zone_of(name: str) -> ZoneInfo:
    """A time zone by its name, as in `Europe/Vienna`."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise InvalidError(f"there is no time zone {name!r} here") from error


def pack_schedule(schedule: Schedule) -> bytes:
    """The value of its entry."""
    return _encode(schedule)


def read_schedule(value: Buffer) -> Schedule:
    """The schedule of an entry."""
    try:
        return _decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ProtocolError(f"a schedule that cannot be read: {error}") from error


def schedule_key(name: str) -> bytes:
    """The entry of a schedule in the control table."""
    return SCHEDULE_PREFIX + check_name(name).encode()


def last_key(name: str) -> bytes:
    """The entry that tells which run was submitted last."""
    return LAST_PREFIX + name.encode()


def run_id(name: str, run_us: int) -> bytes:
    """The id of one run's task: whoever submits it, it is the same task."""
    moment = datetime.fromtimestamp(run_us / 1e6, UTC).isoformat()
    return named_task_id(f"{name}@{moment}")


def upcoming(schedule: Schedule, after_us: int, count: int) -> list[int]:
    """The next runs, for people to look at."""
    return list(islice(schedule.moments(after_us), count))
