"""Cron expressions: minute, hour, day of month, month, day of week. Pure.

The moments are those of a clock on the wall of a time zone. A moment that the clock skips in
spring does not come; one that it shows twice in autumn comes once, the first time.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

from penstock.errors import InvalidError

_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_DAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]
_NICKNAMES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_HORIZON_DAYS = 366 * 8 + 2  # the 29th of February may be eight years away


class Cron(NamedTuple):
    """The values that each field may have."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    either_day: bool
    """Both kinds of day are restricted: then either will do, as cron has always had it."""

    @classmethod
    def parse(cls, text: str) -> Cron:
        """`"*/5 8-18 * * mon-fri"`; names, lists, ranges, steps, `@daily` and the like.
        InvalidError names the field that is wrong, or says that the moment never comes."""
        fields = _NICKNAMES.get(text.strip().lower(), text).lower().split()
        if len(fields) != 5:
            raise InvalidError(
                f"cron {text!r}: {len(fields)} fields instead of 5",
                advice="Use minute, hour, day of month, month, day of week: `30 2 * * mon-fri`.",
            )
        minute, hour, day, month, weekday = fields
        cron = cls(
            _field(minute, "minute", 0, 59),
            _field(hour, "hour", 0, 23),
            _field(day, "day of month", 1, 31),
            _field(month, "month", 1, 12, _MONTHS, 1),
            frozenset(each % 7 for each in _field(weekday, "day of week", 0, 7, _DAYS)),
            not day.startswith("*") and not weekday.startswith("*"),
        )
        if next(cron.moments(datetime(2024, 1, 1, tzinfo=UTC)), None) is None:
            raise InvalidError(f"cron {text!r}: such a day never comes")
        return cron

    def moments(self, after: datetime, zone: ZoneInfo | None = None) -> Iterator[datetime]:
        """The moments after one, in order, in UTC; without a zone, by UTC."""
        local = after.astimezone(zone or UTC).replace(tzinfo=None)
        first_day = local.replace(hour=0, minute=0, second=0, microsecond=0)
        for number in range(_HORIZON_DAYS):
            day = first_day + timedelta(days=number)
            if not self._has_day(day):
                continue
            for hour in sorted(self.hours):
                for minute in sorted(self.minutes):
                    moment = _moment(day.replace(hour=hour, minute=minute), zone)
                    if moment is not None and moment > after:
                        yield moment

    def _has_day(self, day: datetime) -> bool:
        if day.month not in self.months:
            return False
        of_month, of_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return of_month or of_week if self.either_day else of_month and of_week


def _moment(local: datetime, zone: ZoneInfo | None) -> datetime | None:
    """A time of the wall clock in UTC; None if the clock skips it."""
    moment = local.replace(tzinfo=zone or UTC).astimezone(UTC)
    shown = moment.astimezone(zone or UTC).replace(tzinfo=None)
    return moment if shown == local else None


def _field(
    text: str, what: str, least: int, most: int, names: list[str] | None = None, first: int = 0
) -> frozenset[int]:
    values: set[int] = set()
    for part in text.split(","):
        span, _, step = part.partition("/")
        low, dash, high = span.partition("-")
        try:
            if span == "*":
                begin, end = least, most
            else:
                begin = _number(low, names, first)
                end = _number(high, names, first) if dash else (most if step else begin)
            by = int(step) if step else 1
        except ValueError:
            raise InvalidError(f"cron: {part!r} cannot be a {what}") from None
        if not least <= begin <= end <= most or by < 1:
            raise InvalidError(f"cron: {part!r} cannot be a {what}: use {least} to {most}")
        values.update(range(begin, end + 1, by))
    return frozenset(values)


def _number(text: str, names: list[str] | None, first: int) -> int:
    return names.index(text) + first if names is not None and text in names else int(text)
