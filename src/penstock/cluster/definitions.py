"""Definitions of streams: opaque here, versioned, so that those who create one at once agree."""

from __future__ import annotations

from penstock.cluster.commands import Define, Undefine
from penstock.cluster.tables import Definition, RefusedError, Tables

MAX_DEFINITIONS = 100_000
MAX_DEFINITION_TOTAL = 256 << 20  # bytes of all names and data


def define(tables: Tables, command: Define) -> int:
    """Value: the version of the definition, that of the state. No version is ever used twice."""
    before = _expect(tables, command.name, command.expected_version)
    grown = _size(command.name, command.data) - (_size(command.name, before.data) if before else 0)
    if before is None and len(tables.definitions) >= MAX_DEFINITIONS:
        raise RefusedError("limit", f"there are {MAX_DEFINITIONS} definitions")
    if grown > 0 and tables.definition_bytes + grown > MAX_DEFINITION_TOTAL:
        raise RefusedError("limit", f"the definitions fill {MAX_DEFINITION_TOTAL >> 20} MiB")
    version = tables.next_version()
    tables.definitions[command.name] = Definition(version, command.data)
    tables.definition_bytes += grown
    return version


def undefine(tables: Tables, command: Undefine) -> int:
    """Value: the version in which it went."""
    before = _expect(tables, command.name, command.expected_version)
    if before is None:
        raise RefusedError("unknown", f"{command.name!r} is not defined")
    version = tables.next_version()
    del tables.definitions[command.name]
    tables.definition_bytes -= _size(command.name, before.data)
    return version


def total_bytes(definitions: dict[str, Definition]) -> int:
    """What the definitions take of their bound."""
    return sum(_size(name, definition.data) for name, definition in definitions.items())


def _expect(tables: Tables, name: str, version: int) -> Definition | None:
    before = tables.definitions.get(name)
    if (before.version if before else 0) == version:
        return before
    if before is None:
        raise RefusedError("stale", f"{name!r} is not defined")
    raise RefusedError(
        "stale" if version else "exists", f"{name!r} has version {before.version}, not {version}"
    )


def _size(name: str, data: bytes) -> int:
    return len(name.encode()) + len(data)
