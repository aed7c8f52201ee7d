"""Durations, sizes and times as people write them, and back."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import typer

from penstock.wire.durations import EXAMPLES, seconds_of
from penstock.wire.durations import duration_text as duration_text

_BYTES = {
    "": 1, "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40,
    "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
}  # fmt: skip
_NUMBER = r"\d+(?:\.\d+)?"
_PLAIN = re.compile(_NUMBER)
_SIZE = re.compile(rf"({_NUMBER})\s*([a-z]*)", re.IGNORECASE)
_SIZE_NAMES = ("B", "KiB", "MiB", "GiB", "TiB")


def duration(text: str | float) -> float:
    """Seconds: `30s`, `5m`, `1h30m`, `250ms`, `7d`, or a plain number of seconds."""
    if not isinstance(text, str):
        return text
    if _PLAIN.fullmatch(text.strip()):
        return float(text)
    if (seconds := seconds_of(text)) is None:
        raise typer.BadParameter(f"{text!r} is no duration: use {EXAMPLES}")
    return seconds


def size(text: str | int) -> int:
    """Bytes: `64MiB`, `10MB`, `1.5GiB`, or a plain number of bytes."""
    if not isinstance(text, str):
        return text
    found = _SIZE.fullmatch(text.strip())
    factor = _BYTES.get(found[2].lower()) if found else None
    if found is None or factor is None:
        raise typer.BadParameter(f"{text!r} is no size: use 64MiB, 10MB, 1.5GiB or bytes")
    return int(float(found[1]) * factor)


def moment(text: str | datetime) -> datetime:
    """A time: `2026-01-31T12:00`, with a zone or in the local one; or `5m`, so long ago."""
    if not isinstance(text, str):
        return text
    if (ago := seconds_of(text)) is not None:
        return datetime.now(UTC) - timedelta(seconds=ago)
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is no time: use 2026-01-31T12:00, 2026-01-31T12:00Z, or 5m for 5 minutes ago"
        ) from None


def due(text: str | datetime) -> datetime:
    """A time to come: `2026-01-31T12:00`, with a zone or in the local one."""
    if isinstance(text, str) and seconds_of(text) is not None:
        raise typer.BadParameter(f"{text!r} is a duration: use --delay {text}")
    return moment(text)


def size_text(count: float) -> str:
    """Bytes for people: `1.5 MiB`."""
    for name in _SIZE_NAMES:
        if count < 1024 or name == _SIZE_NAMES[-1]:
            break
        count /= 1024
    return f"{count:.0f} {name}" if name == "B" or count >= 100 else f"{count:.1f} {name}"
