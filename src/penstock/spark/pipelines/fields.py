"""Settings of one table of a file: taken one by one, checked, the rest refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeVar

from penstock.spark.meant import did_you_mean
from penstock.spark.pipelines.lines import Lines
from penstock.spark.pipelines.problems import Problem
from penstock.wire.durations import EXAMPLES, seconds_of

T = TypeVar("T")
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
IMPORT = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


class Fields:
    """A table. Problems are collected, with their lines; what is wrong counts as not given."""

    def __init__(
        self, table: Mapping[str, Any], path: tuple[str, ...], lines: Lines, found: list[Problem]
    ) -> None:
        self._table = table
        self.path = path
        self._lines = lines
        self._found = found
        self._known: set[str] = set()

    def problem(self, text: str, *names: str) -> None:
        """Something is wrong with the table, or with an entry of it."""
        self.problem_at(self._lines.of(*self.path, *names), text)

    def problem_at(self, line: int, text: str) -> None:
        """Something is wrong on a line."""
        self._found.append(Problem(line, text))

    def has(self, name: str) -> bool:
        """Whether it is given."""
        return name in self._table

    def take(self, name: str, check: Callable[[Any], T], default: T) -> T:
        """An entry; the default if it is not given, or wrong."""
        self._known.add(name)
        if name not in self._table:
            return default
        try:
            return check(self._table[name])
        except ValueError as error:
            self.problem(f"{name} = {self._table[name]!r}: {error}", name)
            return default

    def need(self, name: str, check: Callable[[Any], T], default: T) -> T:
        """As `take`; it is a problem if it is not given."""
        if name not in self._table:
            self.problem(f"{'.'.join(self.path) or 'the file'} needs `{name}`")
        return self.take(name, check, default)

    def sub(self, name: str) -> Fields:
        """A table in it; empty if it is not given, or no table."""
        table: dict[str, Any] = self.take(name, a_table, {})
        return Fields(table, (*self.path, name), self._lines, self._found)

    def tables(self, name: str) -> dict[str, Fields]:
        """The named tables in a table of it."""
        every = self.sub(name)
        return {each: every.sub(each) for each in every._table}

    def one_of(self, names: Collection[str]) -> str | None:
        """Which of these entries is given; a problem if none is, or several are."""
        given = [name for name in names if name in self._table]
        if len(given) != 1:
            said = f"has {' and '.join(given)}" if given else "says neither"
            self.problem(f"{'.'.join(self.path)} {said}: give one of {', '.join(names)}")
            return None
        return given[0]

    def rest(self, known: Collection[str]) -> dict[str, Any]:
        """Entries that are among the known ones and were not taken."""
        found = {k: v for k, v in self._table.items() if k not in self._known and k in known}
        self._known |= found.keys()
        return found

    def refuse_rest(self, others: Iterable[str] = ()) -> None:
        """Everything that was not taken is a problem."""
        known = self._known | set(others)
        for name in self._table.keys() - self._known:
            meant = did_you_mean(name, known)
            told = "" if meant else f"; known are {', '.join(sorted(known))}"
            self.problem(f"unknown setting {name!r}{meant}{told}", name)


# --- checks: the value, or ValueError that says how it should look ---------------------------


def a_text(value: Any) -> str:
    """Not empty."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError("use a text")
    return value


def a_truth(value: Any) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise ValueError("use true or false")
    return value


def a_count(value: Any) -> int:
    """Above 0."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError("use a whole number above 0")
    return value


def a_table(value: Any) -> dict[str, Any]:
    """A table of TOML."""
    if not isinstance(value, dict):
        raise ValueError("this has to be a table")
    return value


def a_duration(value: Any) -> float:
    """In seconds."""
    if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0:
        return float(value)
    if isinstance(value, str) and (seconds := seconds_of(value)) is not None:
        return seconds
    raise ValueError(f"use a number of seconds, or a text as {EXAMPLES}")


def a_name(value: Any) -> str:
    """What SQL takes as the name of a table."""
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise ValueError("use letters, digits and _, not a digit first")
    return value


def an_import(value: Any) -> str:
    """MODULE:NAME."""
    if not isinstance(value, str) or not IMPORT.fullmatch(value):
        raise ValueError("use MODULE:NAME, as app:is_end for is_end in app.py")
    return value


def some_texts(value: Any) -> tuple[str, ...]:
    """One, or a list."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not texts or not all(isinstance(t, str) for t in texts):
        raise ValueError("use a text, or a list of them")
    return tuple(texts)


def one_of(*allowed: str) -> Callable[[Any], Any]:
    """One of these texts."""

    def check(value: Any) -> str:
        if value not in allowed:
            meant = did_you_mean(value, allowed) if isinstance(value, str) else ""
            raise ValueError(f"use {', '.join(allowed)}{meant}")
        return str(value)

    return check


def options_of(value: Any) -> dict[str, str]:
    """Options of Spark, as texts."""
    return {name: option_text(each) for name, each in a_table(value).items()}


def option_text(value: Any) -> str:
    """A value as Spark takes it in an option."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value) if isinstance(value, dict | list) else str(value)
