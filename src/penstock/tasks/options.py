"""The terms that a task is declared or submitted with, checked when they are given."""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

from penstock.client.inputs import milliseconds
from penstock.errors import InvalidError
from penstock.tasks.envelope import MAX_BACKOFF_MS, MAX_RETRIES

DEFAULT_BACKOFF_S = 1.0
_RATE = re.compile(r"(\d+(?:\.\d+)?)/(\d*)(s|m|h|d)")
_UNIT_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class Rate(NamedTuple):
    """At most so many starts within so many seconds, on all workers together."""

    starts: float
    seconds: float

    @classmethod
    def parse(cls, text: str) -> Rate:
        """`"100/s"`, `"10/m"`, `"1/5s"`, `"1000/h"`, `"1/d"`."""
        found = _RATE.fullmatch(text) if isinstance(text, str) else None
        if found is None or not float(found[1]) or found[2].strip("0") == "" != found[2]:
            raise InvalidError(f"rate {text!r}: use a number per time, like 100/s, 10/m or 1/5s")
        return cls(float(found[1]), int(found[2] or 1) * _UNIT_S[found[3]])


class TaskOptions(msgspec.Struct, frozen=True):
    """How a function is run as a task, unless the submission says otherwise."""

    retries: int = 0
    """Further attempts after the first."""
    backoff_ms: int = round(DEFAULT_BACKOFF_S * 1000)
    """Before the first retry; it doubles with each."""
    timeout_ms: int = 0
    """Of one attempt; 0: none."""
    keep_ms: int | None = None
    """How long the outcome is kept for others; None: as the submission has it; 0: not at all."""
    rate: Rate | None = None


def checked_options(
    retries: int = 0,
    timeout: float | None = None,
    backoff: float = DEFAULT_BACKOFF_S,
    rate: str | None = None,
    keep: float | None = None,
) -> TaskOptions:
    """The options as they travel; InvalidError names the one that is wrong."""
    return TaskOptions(
        retries=checked_retries(retries),
        backoff_ms=milliseconds("backoff", backoff, MAX_BACKOFF_MS),
        timeout_ms=0 if timeout is None else checked_timeout(timeout),
        keep_ms=None if keep is None else milliseconds("keep", keep),
        rate=None if rate is None else Rate.parse(rate),
    )


def checked_retries(retries: int) -> int:
    """How many further attempts there may be."""
    if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
        raise InvalidError(f"retries must be a number, 0 or more, not {retries!r}")
    if retries > MAX_RETRIES:
        raise InvalidError(f"{retries:,} retries; the limit is {MAX_RETRIES:,}")
    return retries


def checked_timeout(timeout: float) -> int:
    """The time limit of an attempt, in milliseconds; none is said by None, never by 0."""
    limit_ms = milliseconds("timeout", timeout)
    if not limit_ms:
        raise InvalidError("a timeout of 0 s is over before it starts", advice="Leave it out.")
    return limit_ms
