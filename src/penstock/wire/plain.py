"""What most small messages are, in one step each: pushes of values about which nothing is said, and
parts of such batches.

A step of Python costs twice as much in a process that has just been woken, and a message that comes
alone goes through two hundred of them. So the compiled module (`_plain.c`, if it was built and the
environment does not set `PENSTOCK_PURE`) does what can be told from the bytes alone. It knows only
the plain case: None means that the code for all cases has to look, and to say what is wrong.
"""

from __future__ import annotations

from contextlib import suppress

import xxhash

from penstock.wire.batch import Batch, Header
from penstock.wire.buffers import Buffer
from penstock.wire.frames import PUSH, PushBody
from penstock.wire.packing import PURE
from penstock.wire.tuples import new_tuple

COMPILED = False  # whether the compiled module is used
if not PURE:
    with suppress(ImportError):
        from penstock.wire import _plain

        COMPILED = True

_BATCH_AT = PUSH.size
_digest = xxhash.xxh3_64_intdigest


def read_batch(buffer: Buffer) -> Batch:
    """As `Batch.parse`."""
    if COMPILED and (fields := _plain.read_header(buffer, _digest)) is not None:
        return Batch(buffer, new_tuple(Header, fields))
    return Batch.parse(buffer)


def read_push(body: memoryview) -> tuple[PushBody, Batch] | None:
    """A push of a batch that has values alone, is neither compressed nor urgent, and is whole: all
    of it was checked, its offsets and its checksum too."""
    if not COMPILED or (read := _plain.read_push(body, _digest)) is None:
        return None
    head, header = read
    return new_tuple(PushBody, head), Batch(body[_BATCH_AT:], new_tuple(Header, header))


def one_value(
    value: bytes, timestamp_us: int, producer: int, sequence: int, instance: int
) -> bytearray | None:
    """A sealed batch of one small value, as `encode_batch` makes it."""
    if not COMPILED:
        return None
    return _plain.one_value(value, timestamp_us, producer, sequence, instance, _digest)


def part_of(batch: Buffer, position: int, count: int) -> bytearray | None:
    """As `Batch.span`: some messages of a batch that was checked before, from a position on."""
    if not COMPILED:
        return None
    return _plain.part_of(batch, position, count, _digest)
