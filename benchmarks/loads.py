"""What client processes do: the same for every system. Each returns what becomes one line of JSON.

Arguments: `n` messages of `size` bytes, in at most `seconds`; times are those of CLOCK_MONOTONIC,
which all processes of a machine share.
"""

from __future__ import annotations

import asyncio
import os
import struct
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

from benchmarks.mixed import consume_numbered, produce_numbered
from benchmarks.paced import consume_paced, produce_paced
from benchmarks.system import Body, Client

Arguments = dict[str, Any]
Outcome = dict[str, Any]

_NUMBER = struct.Struct("<QQ")
_SMALL = 4096  # below, every message is another; above, making them would be what is measured
_DISTINCT_BYTES = 32 << 20  # of messages to push: no cache of a processor holds them all
WARM_UP = 50  # single pushes or pops that are not counted
_RETRY_SECONDS = 0.02


def bodies(count: int, size: int, seconds: float) -> Iterator[bytes]:
    """So many, or as many as are taken in time. Random bytes: nothing can be compressed."""
    filler = os.urandom(size - _NUMBER.size)
    same = _NUMBER.pack(0, 0) + filler
    end = time.monotonic() + seconds
    for number in range(count):
        if number & 63 == 0 and time.monotonic() > end:
            return
        yield same if size > _SMALL else _NUMBER.pack(number, 0) + filler


def again_and_again(distinct: list[bytes], count: int) -> list[bytes]:
    """So many messages that are there before the clock runs: to make them, or only to go through
    them one by one, would be most of what is measured of a system that is fast."""
    return (distinct * -(-count // len(distinct)))[:count]


async def push(client: Client, given: Arguments) -> Outcome:
    """As fast as the library can, all confirmed."""
    size, most = given["size"], given["n"]
    distinct = list(bodies(min(most, max(_DISTINCT_BYTES // size, 1)), size, given["seconds"]))
    every = again_and_again(distinct, most)
    started = time.perf_counter()
    count = await client.push_all(every)
    return _rate(count, started)


async def pop(client: Client, given: Arguments) -> Outcome:
    """As fast as the library can, all acknowledged."""
    left = given["n"]
    end = time.monotonic() + given["seconds"]

    def sink(delivered: Sequence[Body]) -> bool:
        nonlocal left
        left -= len(delivered)
        return bool(left > 0 and time.monotonic() < end)

    started = time.perf_counter()
    await client.consume(sink)
    return _rate(given["n"] - left, started)


async def single_pushes(client: Client, given: Arguments) -> Outcome:
    """One after the other, each confirmed before the next."""
    every = list(bodies(given["n"] + WARM_UP, given["size"], given["seconds"]))
    for body in every[:WARM_UP]:
        await client.push_one(body)
    taken: list[int] = []
    end = time.monotonic() + given["seconds"]
    for body in every[WARM_UP:]:
        started = time.perf_counter_ns()
        await client.push_one(body)
        taken.append(time.perf_counter_ns() - started)
        if time.monotonic() > end:
            break
    return {"ns": taken}


async def single_pops(client: Client, given: Arguments) -> Outcome:
    """One after the other, each acknowledged before the next."""
    count = await client.push_all(bodies(given["n"] + WARM_UP, given["size"], given["seconds"]))
    for _ in range(WARM_UP):
        await client.pop_one()
    taken: list[int] = []
    end = time.monotonic() + given["seconds"]
    for _ in range(count - WARM_UP):
        started = time.perf_counter_ns()
        await client.pop_one()
        taken.append(time.perf_counter_ns() - started)
        if time.monotonic() > end:
            break
    return {"ns": taken}


async def many_queues(client: Client, given: Arguments) -> Outcome:
    """Makes `queues` of them, then pushes `n` messages one by one, to one after the other."""
    names = [f"many-{number}" for number in range(given["queues"])]
    started = time.perf_counter()
    for made, name in enumerate(names):
        await client.make_queue(name)
        if time.perf_counter() - started > given["seconds"]:
            return {"made": made + 1, "make_seconds": time.perf_counter() - started, "ns": []}
    made_seconds = time.perf_counter() - started
    body = os.urandom(given["size"])
    taken: list[int] = []
    end = time.monotonic() + given["seconds"]
    for number in range(given["n"]):
        began = time.perf_counter_ns()
        await client.push_to(names[number * len(names) // given["n"] % len(names)], body)
        taken.append(time.perf_counter_ns() - began)
        if time.monotonic() > end:
            break
    return {"made": len(names), "make_seconds": made_seconds, "ns": taken}


async def first_pop(client: Client, given: Arguments) -> Outcome:
    """How long it takes until a server that is being started gives a message."""
    started = time.perf_counter()
    while True:
        try:
            await client.open()
            await client.pop_one()
            return {"seconds": time.perf_counter() - started}
        except Exception:
            if time.perf_counter() - started > given["seconds"]:
                raise
        try:
            await client.close()
        except Exception as error:  # of a connection that was never there
            given["last"] = str(error)
        await asyncio.sleep(_RETRY_SECONDS)


def _rate(count: int, started: float) -> Outcome:
    return {"n": count, "seconds": time.perf_counter() - started}


AWAITED = frozenset({"first_pop"})  # these connect by themselves
CONSUMING = frozenset({"pop", "consume_paced", "consume_numbered"})
LOADS: dict[str, Callable[[Client, Arguments], Awaitable[Outcome]]] = {
    load.__name__: load
    for load in (
        push, pop, single_pushes, single_pops, many_queues, first_pop,
        produce_paced, consume_paced, produce_numbered, consume_numbered,
    )
}  # fmt: skip
