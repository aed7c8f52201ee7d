"""Producers and consumers at once; every message has a number, and none may be lost or doubled."""

from __future__ import annotations

import mmap
import os
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.system import Body, Client

PARTIES = 2  # producers, and as many consumers
_NUMBER = struct.Struct("<Q")
_NUMBER_BYTES = 4  # that are not zero
_TAIL_SECONDS = 0.5  # in which doubles would show up
_LOST_SECONDS = 15.0  # after which messages that did not come are lost


class Board:
    """Counters in a file that all processes share; each has one writer."""

    SLOTS = 3 * PARTIES

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(8 * self.SLOTS))
        with path.open("r+b") as file:
            self._slots = memoryview(mmap.mmap(file.fileno(), 8 * self.SLOTS)).cast("Q")

    def sent(self, number: int, count: int) -> None:
        """A producer has had all of its messages confirmed."""
        self._slots[number] = count
        self._slots[PARTIES + number] = 1

    def received(self, number: int, count: int) -> None:
        """A consumer has so many by now."""
        self._slots[2 * PARTIES + number] = count

    def all_sent(self) -> bool:
        """Whether all producers have ended."""
        return sum(self._slots[PARTIES : 2 * PARTIES]) == PARTIES

    def all_received(self) -> bool:
        """Whether there are as many deliveries as messages."""
        return sum(self._slots[2 * PARTIES :]) >= sum(self._slots[:PARTIES])


class Patience:
    """When a consumer has seen the end: all have come, or nothing has for a long time."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._since = time.monotonic()

    def lasts(self, came: bool) -> bool:
        """Whether to go on, after a delivery or after nothing came."""
        now = time.monotonic()
        if came or not self._board.all_sent():
            self._since = now
        limit = _TAIL_SECONDS if self._board.all_received() else _LOST_SECONDS
        return now - self._since < limit


async def produce_numbered(client: Client, given: dict[str, Any]) -> dict[str, Any]:
    """Pushes `n` messages, whose numbers start at n times its own. They are there before: to make
    them would be most of what is measured of a system that is fast."""
    number = client.place.number
    first, filler = number * given["n"], os.urandom(given["size"] - _NUMBER.size)
    bodies = [_NUMBER.pack(each) + filler for each in range(first, first + given["n"])]
    begun = time.monotonic_ns()
    sent = await client.push_all(bodies)
    Board(Path(given["board"])).sent(number, sent)
    return {"n": sent, "begun": begun}


async def consume_numbered(client: Client, given: dict[str, Any]) -> dict[str, Any]:
    """Counts how often each number comes, into the file `seen`, once all have come."""
    board = Board(Path(given["board"]))
    patience = Patience(board)
    kept: list[list[bytes]] = []
    size = given["size"]
    count = last = 0
    end = time.monotonic() + given["seconds"] + 2 * _LOST_SECONDS

    def sink(delivered: Sequence[Body]) -> bool:
        nonlocal count, last
        if delivered:
            last = time.monotonic_ns()
            kept.append(_numbers(delivered, size))
            count += len(delivered)
            board.received(client.place.number, count)
        return patience.lasts(bool(delivered)) and time.monotonic() < end

    await client.consume(sink)
    _count(kept, given["n"] * PARTIES, Path(given["seen"]))
    return {"n": count, "last": last}


def _numbers(delivered: Sequence[Body], size: int) -> list[bytes]:
    """Their numbers, byte by byte: little work, and messages are let go as other consumers do. To
    keep them all would need new memory for each."""
    whole = b"".join(delivered)
    return [whole[at::size] for at in range(_NUMBER_BYTES)]


def _count(kept: list[list[bytes]], numbers: int, path: Path) -> None:
    seen = bytearray(numbers)
    for parts in kept:
        for low, second, third, high in zip(*parts, strict=True):
            seen[low | second << 8 | third << 16 | high << 24] += 1
    path.write_bytes(seen)
