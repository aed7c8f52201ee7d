"""Workers that count in a table: each reads a counter and writes the next number, unless somebody
else did in between."""

from __future__ import annotations

import random
import time
from pathlib import Path

from penstock import Fabric, Table
from penstock.cli.faulting.ledgers import ACCEPTED, READ, REFUSED, UNKNOWN, Ledger
from penstock.cli.faulting.pace import Orders, Pace
from penstock.errors import ConflictError, UnavailableError

TABLE = "faults"
KEYS = 16
RATE = 40  # counts each second


def count(fabric: Fabric, number: int, folder: Path, orders: Orders) -> None:
    """Counts until it is told to rest; every read and every write is noted."""
    table = fabric.table(TABLE)
    chance = random.Random(number)
    pace = Pace(RATE)
    with Ledger(folder / f"counter-{number}.written") as ledger:
        while pace.wait(1, orders.rest):
            key = chance.randrange(KEYS)
            try:
                value, version = _read(table, key, ledger)
            except UnavailableError:
                continue
            _write(table, key, value + 1, version, ledger)


def _read(table: Table, key: int, ledger: Ledger) -> tuple[int, int]:
    """The counter and its version; both 0 if it does not exist."""
    started_ns = time.monotonic_ns()
    found = table.entry(name_of(key))
    value, version = (int(found.value), found.version) if found is not None else (0, 0)
    ledger.note(key, value, READ, started_ns, time.monotonic_ns())
    return value, version


def _write(table: Table, key: int, value: int, version: int, ledger: Ledger) -> None:
    started_ns = time.monotonic_ns()
    verdict = ACCEPTED
    try:
        table.put(name_of(key), b"%d" % value, if_version=version)
    except ConflictError:
        verdict = REFUSED
    except UnavailableError:
        verdict = UNKNOWN
    ledger.note(key, value, verdict, started_ns, time.monotonic_ns())


def name_of(key: int) -> str:
    """The key of a counter."""
    return f"counter-{key}"


def read_all(table: Table, folder: Path) -> None:
    """Notes what every counter is in the end."""
    with Ledger(folder / "last.written") as ledger:
        for key in range(KEYS):
            _read(table, key, ledger)
