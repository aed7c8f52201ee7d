"""On which line of a TOML file something stands; the parser of Python does not tell."""

from __future__ import annotations

import re
from typing import NamedTuple

_PART = r"(?:[A-Za-z0-9_-]+|\"(?:\\.|[^\"\\\n])*\"|'[^'\n]*')"
_KEYS = rf"{_PART}(?:[ \t]*\.[ \t]*{_PART})*"
_HEADER = re.compile(rf"\[\[?[ \t]*({_KEYS})[ \t]*\]\]?")
_ENTRY = re.compile(rf"({_KEYS})[ \t]*=[ \t]*")
_TOKEN = re.compile(
    r'"""(?:\\.|[^\\])*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\'|#[^\n]*|.',
    re.DOTALL,
)
_MULTI = ('"""', "'''")

Path = tuple[str, ...]


class _Entry(NamedTuple):
    line: int
    first: int  # line of the first character, if it is a text


class Lines:
    """The lines of a text that is valid TOML."""

    def __init__(self, text: str) -> None:
        self._entries: dict[Path, _Entry] = {}
        self._scan(text)

    def of(self, *path: str) -> int:
        """Where a table or an entry stands; if it is not named itself, what it is in. 1 if none."""
        for length in range(len(path), 0, -1):
            if (found := self._entries.get(path[:length])) is not None:
                return found.line
        return 1

    def within(self, path: Path, before: str) -> int:
        """Where a place in a text stands, by the part of the text before it."""
        found = self._entries.get(path)
        return self.of(*path) if found is None else found.first + before.count("\n")

    def _scan(self, text: str) -> None:
        at = 0
        prefix: Path = ()
        while at < len(text):
            line = text.count("\n", 0, at) + 1
            if (header := _HEADER.match(text, at)) is not None:
                prefix = _parts(header[1])
                self._entries.setdefault(prefix, _Entry(line, line))
                at = header.end()
            elif (entry := _ENTRY.match(text, at)) is not None:
                opened = text[entry.end() : entry.end() + 4]
                first = line + (opened[:3] in _MULTI and opened[3:] == "\n")
                self._entries.setdefault((*prefix, *_parts(entry[1])), _Entry(line, first))
                at = _end_of_value(text, entry.end())
            elif text[at] == "#":
                at = _end_of_value(text, at)
            else:
                at += 1


def _parts(keys: str) -> Path:
    return tuple(part.strip("\"'") for part in re.findall(_PART, keys))


def _end_of_value(text: str, at: int) -> int:
    """The end of the line on which a value ends."""
    depth = 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        assert token is not None
        if token[0] in "[{":
            depth += 1
        elif token[0] in "]}":
            depth -= 1
        elif token[0] == "\n" and depth <= 0:
            return at
        at = token.end()
    return at
