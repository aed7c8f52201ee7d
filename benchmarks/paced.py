"""Latency from end to end at a fixed rate, free of coordinated omission.

The loop is open: message i is due at a time that was fixed before, and carries that time. A
producer that falls behind sends all that is due together, and what it is late counts as latency.
"""

from __future__ import annotations

import asyncio
import os
import struct
import time
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.system import Body, Client
from penstock.cli.benchmarks.waking import wake_on_time

_DUE = struct.Struct("<Q")
_LEAD_NS = 1_000_000_000  # before the first message: consumers listen by then
_TAIL_SECONDS = 10.0  # after the last one is due
_WARM_UP, _WARM_UPS = 0, 20  # messages that are due at no time: they open what opens late
_TURNS = 4  # of the event loop, in which an asyncio library writes what it holds


def due_bodies(count: int, size: int, rate: int, begin: int) -> Iterator[list[bytes]]:
    """Lists of all messages that are due; sleeps until there is one. Ends 10 s after the last."""
    filler = os.urandom(size - _DUE.size)
    sent = 0
    end = begin + count * 1_000_000_000 // rate + int(_TAIL_SECONDS * 1e9)
    while sent < count and (now := time.monotonic_ns()) < end:
        due = min(count, max(0, (now - begin) * rate // 1_000_000_000 + 1))
        if due <= sent:
            wait = begin + sent * 1_000_000_000 // rate - now
            time.sleep(max(wait, 0) / 1e9)
            continue
        yield [
            _DUE.pack(begin + number * 1_000_000_000 // rate) + filler
            for number in range(sent, due)
        ]
        sent = due


async def produce_paced(client: Client, given: dict[str, Any]) -> dict[str, Any]:
    """Sends `n` messages at `rate`; how many were sent."""
    wake_on_time()
    await client.push_due([_DUE.pack(_WARM_UP) + bytes(given["size"] - _DUE.size)] * _WARM_UPS)
    await client.push_all([])
    begin = time.monotonic_ns() + _LEAD_NS
    sent = 0
    for group in due_bodies(given["n"], given["size"], given["rate"], begin):
        await client.push_due(group)
        sent += len(group)
        for _ in range(_TURNS):
            await asyncio.sleep(0)
    seconds = (time.monotonic_ns() - begin) / 1e9
    await client.push_all([])  # what is still under way
    return {"n": sent, "seconds": seconds}


async def consume_paced(client: Client, given: dict[str, Any]) -> dict[str, Any]:
    """Takes `n` messages; by how much each came after it was due."""
    taken: list[int] = []
    end = time.monotonic() + given["n"] / given["rate"] + 2 * _TAIL_SECONDS

    def sink(delivered: Sequence[Body]) -> bool:
        now = time.monotonic_ns()
        due = [_DUE.unpack_from(body)[0] for body in delivered]
        taken.extend(now - each for each in due if each != _WARM_UP)
        return bool(len(taken) < given["n"] and time.monotonic() < end)

    await client.consume(sink)
    return {"ns": taken}
