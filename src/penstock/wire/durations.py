"""Durations as people write them, on the command line and in files."""

from __future__ import annotations

import re

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_NUMBER = r"\d+(?:\.\d+)?"
_PART = re.compile(rf"({_NUMBER})\s*(ms|[smhdw])")
_WHOLE = re.compile(rf"(?:{_PART.pattern}\s*)+")
EXAMPLES = "30s, 5m, 1h30m, 250ms or 7d"


def seconds_of(text: str) -> float | None:
    """What a text says, in seconds: `30s`, `5m`, `1h30m`, `250ms`, `7d`; None if it says none."""
    given = text.strip().lower()
    if not _WHOLE.fullmatch(given):
        return None
    return sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(given))


def duration_text(seconds: float) -> str:
    """A duration for people: `250 ms`, `30 s`, `5 m`, `1 h 30 m`, `7 d`."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10 and seconds != int(seconds):
        return f"{seconds:.1f} s"
    parts: list[str] = []
    rest = round(seconds)
    for name, length in (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)):
        count, rest = divmod(rest, length)
        if count:
            parts.append(f"{count} {name}")
    return " ".join(parts[:2])


def span_text(us: int) -> str:
    """A time that may be short, for people: `85 µs`, `1.3 ms`, from a second on as others."""
    if us < 1000:
        return f"{us} µs"
    return f"{us / 1000:.1f} ms" if us < 1_000_000 else duration_text(us / 1e6)
