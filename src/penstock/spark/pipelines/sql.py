"""Which tables a text of SQL reads, as far as that can be told without Spark."""

from __future__ import annotations

import re
from collections.abc import Collection

_SILENT = re.compile(r"'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"|--[^\n]*|/\*.*?\*/", re.DOTALL)
_NAMED = r"`?[A-Za-z_][\w.]*\b`?(?!\s*\()"
_FROM = re.compile(
    rf"\b(?:from|join)\s+({_NAMED}(?:\s+(?:as\s+)?(?!on\b|where\b|group\b|join\b)\w+)?"
    rf"(?:\s*,\s*{_NAMED})*)",
    re.IGNORECASE,
)
_WITH = re.compile(r"\b(\w+)\s+as\s*\(", re.IGNORECASE)
_NOT_TABLES = {"lateral", "values", "unnest", "stream", "select"}


def tables_in(
    sql: str, known: Collection[str]
) -> tuple[tuple[str, ...], list[tuple[str, str]]]:
    """The known tables that it reads; and names that are neither known nor made in it, each with
    the text before it."""
    blank = _SILENT.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), sql)
    by_lower = {name.lower(): name for name in known}
    made = {name.lower() for name in _WITH.findall(blank)}
    inputs: dict[str, None] = {}
    unknown: list[tuple[str, str]] = []
    for found in _FROM.finditer(blank):
        if re.search(r"\b(?:extract|trim|substring|overlay)\s*\([^()]*$", blank[: found.start()],
                     re.IGNORECASE):  # fmt: skip
            continue  # extract(hour from ts)
        at = found.start(1)
        for part in found[1].split(","):
            name = part.strip().split()[0].strip("`")
            if name.lower() in by_lower:
                inputs[by_lower[name.lower()]] = None
            elif name.lower() not in made | _NOT_TABLES and "." not in name:
                unknown.append((name, sql[: at + len(part) - len(part.lstrip())]))
            at += len(part) + 1
    return tuple(inputs), unknown
