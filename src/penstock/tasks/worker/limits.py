"""The rate of a function, shared by all workers: who may start how many, and when. Pure.

The control table holds, for every function with a rate, the moment from which starts are free. A
worker claims the next few moments for itself by moving it on; whoever loses the race looks again.
Moments are spaced evenly, so that no window of time holds more than the rate allows, and one.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec

from penstock.errors import ProtocolError
from penstock.tasks.options import Rate
from penstock.wire.buffers import Buffer

RATE_PREFIX = b"rate/"
HORIZON_US = 1_000_000  # so far ahead a worker claims; what does not fit in is given back
MAX_CLAIM = 1_000  # starts at a time
MAX_DELAY_US = 60_000_000  # then it is looked at again
_decode = msgspec.msgpack.Decoder(int).decode


class Claim(NamedTuple):
    """What a worker would get: its starts, and from when on starts are free after that."""

    starts_us: list[int]
    free_us: int


def rate_key(function: str) -> bytes:
    """The entry of the control table."""
    return RATE_PREFIX + function.encode()


def pack_free(free_us: int) -> bytes:
    """The value of the entry."""
    return msgspec.msgpack.encode(free_us)


def read_free(value: Buffer) -> int:
    """From when on starts are free."""
    try:
        return _decode(value)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"a rate's entry that cannot be read: {error}") from error


def claim(rate: Rate, free_us: int, now_us: int, wanted: int) -> Claim:
    """The next starts, at most so many, as far as they are not too far ahead."""
    interval_us = rate.seconds * 1e6 / rate.starts
    begin_us = max(free_us, now_us)
    ahead_us = now_us + HORIZON_US - begin_us
    room = int(ahead_us / interval_us) + 1 if ahead_us >= 0 else 0
    count = min(wanted, room, MAX_CLAIM)
    starts = [begin_us + round(each * interval_us) for each in range(count)]
    return Claim(starts, begin_us + round(count * interval_us))


def delays_ms(rate: Rate, free_us: int, now_us: int, jobs: int) -> list[int]:
    """When each of so many tasks that got no start should come back: when it may be its turn, if
    starts are free from then on. A long line stands in the queue, not at a worker's door."""
    interval_us = rate.seconds * 1e6 / rate.starts
    waits = [free_us - now_us + each * interval_us for each in range(jobs)]
    return [max(math.ceil(min(each, MAX_DELAY_US) / 1000), 1) for each in waits]
