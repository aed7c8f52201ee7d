"""The open objects of one bucket of keys, and what is stored of them after each micro-batch.

A bucket is an assembler, as a consumer has one for a partition. A consumer reads again what it had
not stored; Spark does not, so that fragments which wait for their time are stored here, too. What
is stored is a log: each micro-batch adds what it changed, and once that is more than what was
there before, everything is written anew.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, TypeVar

import msgspec
import numpy as np

from penstock.consumers.assembler import Assembler
from penstock.consumers.fragments import Fragments, pick
from penstock.consumers.moved import Moved
from penstock.consumers.progress import Progress
from penstock.consumers.stateful import Stateful
from penstock.consumers.steps import Step
from penstock.errors import InvalidError, ProtocolError
from penstock.wire.columns import Longs

S = TypeVar("S")

VERSION = 1
SMALL_LOG_BYTES = 1 << 20  # not worth writing anew


class _Head(msgspec.Struct, array_like=True, frozen=True):
    version: int
    token: bytes
    progress: bytes
    taken_us: int  # the clock when fragments came last
    base_bytes: int
    log_bytes: int


class _Chunk(msgspec.Struct, array_like=True, frozen=True):
    entries: list[tuple[bytes, bytes | None]]
    keys: list[bytes]
    values: list[bytes]
    times_us: bytes
    offsets: bytes


class _Name(msgspec.Struct, array_like=True, frozen=True):
    """What the heads of all kinds of buckets begin with."""

    version: int
    token: bytes


class Saved(NamedTuple):
    """What has to be stored together. `replaces`: the chunks before this one have to go."""

    head: bytes
    chunk: bytes
    replaces: bool


class Bucket(Generic[S]):
    """Feed it with the fragments of each micro-batch, then store what `save` gives.

    After an error it is of no more use.
    """

    def __init__(
        self, stateful: Stateful[S], number: int, head: bytes | None = None,
        chunks: Iterable[bytes] = (),
    ) -> None:  # fmt: skip
        check_stateful(stateful)
        self._stateful = stateful
        self._number = number
        self._waits = stateful.completion.delay > 0
        self._fresh: list[Fragments] = []  # that wait, and are not in the log
        self._waiting: list[Fragments] = []  # that waited when they were put in the log
        self._base_bytes = self._log_bytes = self._taken_us = 0
        self._is_stale = False  # the log has what is not here any more
        self.token = b""
        if head is None:
            self._assembler = Assembler(stateful, partition=number)
        else:
            self._restore(decoded(head, _Head), [decoded(each, _Chunk) for each in chunks])

    def _restore(self, head: _Head, chunks: list[_Chunk]) -> None:
        if head.version != VERSION:
            raise ProtocolError(f"the state of a bucket is of version {head.version}")
        objects: dict[bytes, bytes | None] = {}
        for chunk in chunks:
            objects |= dict(chunk.entries)
        self._assembler = Assembler(
            self._stateful,
            Progress.decode(head.progress),
            [packed for packed in objects.values() if packed is not None],
            partition=self._number,
        )
        # Those whose time has come since are passed over.
        self._waiting = [each for each in map(_fragments, chunks) if len(each)]
        if waiting := self._still_waiting(self._waiting):
            self._assembler.take(_joined(waiting), head.taken_us)
        # That was all, and silence counts from when it came.
        self._assembler.tick(head.taken_us, at_end=True)
        self.token, self._taken_us = head.token, head.taken_us
        self._base_bytes, self._log_bytes = head.base_bytes, head.log_bytes

    def take(
        self, keys: list[bytes], values: list[bytes], times_us: Longs, now_us: int = 0
    ) -> Step:
        """Folds the fragments of a micro-batch, in the order in which they are to count."""
        first = self._assembler.next_offset
        offsets = np.arange(first, first + len(keys), dtype=np.int64)
        fragments = Fragments(keys, values, times_us, offsets, times_us)
        step = self._assembler.take(fragments, now_us)
        self._taken_us = now_us
        if self._waits:
            self._fresh += self._still_waiting([fragments])
        return step

    def tick(self, now_us: int) -> Step:
        """The clock has gone on without fragments."""
        return self._assembler.tick(now_us, at_end=True)

    def flush(self) -> Step:
        """There is nothing more to come: time goes on for ever."""
        return self._assembler.finish()

    def parted(self, number: int, moved: Moved) -> Bucket[S]:
        """A bucket of some of the keys, which are no business of this one any more; time in it is
        what it is here."""
        waiting = self._still_waiting(self._waiting + self._fresh)
        other = Bucket(self._stateful, number)
        other._assembler = Assembler.load(
            self._stateful, self._assembler.seed(moved.has), partition=number
        )
        other._taken_us = self._taken_us
        other._fresh = _of_keys(waiting, moved.has)
        self._assembler.give_up(moved)
        self._waiting, self._fresh = [], _of_keys(waiting, lambda key: not moved.has(key))
        self._is_stale = True
        return other

    def save(self, *, full: bool = False) -> Saved:
        """What has changed since the last call, to be stored before the next fragments come.

        `full`: all that there is, instead of what was stored before.
        """
        self.token = secrets.token_bytes(12)
        full, self._is_stale = full or self._is_stale, False
        replaces = full or self._log_bytes > max(SMALL_LOG_BYTES, self._base_bytes)
        snapshot = self._assembler.snapshot(self.token, full=replaces)
        if replaces:
            self._fresh = self._still_waiting(self._waiting) + self._fresh
            self._waiting = []
        waiting = self._still_waiting(self._fresh)
        chunk = _encoded(snapshot.entries, _joined(waiting) if waiting else None)
        self._waiting += waiting
        self._fresh = []
        if replaces:
            self._base_bytes, self._log_bytes = len(chunk), 0
        else:
            self._log_bytes += len(chunk)
        progress = self._assembler.progress().encode()
        head = _Head(VERSION, self.token, progress, self._taken_us, self._base_bytes,
                     self._log_bytes)  # fmt: skip
        return Saved(msgspec.msgpack.encode(head), chunk, replaces)

    def _still_waiting(self, parts: list[Fragments]) -> list[Fragments]:
        watermark_us = self._assembler.watermark_us
        found = []
        for part in parts:
            ahead = part.times_us > watermark_us
            if ahead.all():
                found.append(part)
            elif ahead.any():
                rows = np.flatnonzero(ahead)
                found.append(_picked(part, rows))
        return found


def token_of(head: bytes) -> bytes:
    """Which `save` a head is of."""
    return decoded(head, _Name).token


def check_stateful(stateful: Stateful[S]) -> None:
    """InvalidError if it needs what Spark does not tell."""
    if stateful.completion.time == "arrival":
        raise InvalidError(
            "Spark does not tell when a row has arrived",
            advice="Use event time, or the consumer of Penstock.",
        )


def _picked(part: Fragments, rows: np.ndarray[tuple[int], np.dtype[np.intp]]) -> Fragments:
    return Fragments(
        pick(part.keys, rows), pick(part.values, rows), part.times_us[rows], part.offsets[rows],
        part.arrived_us[rows],
    )  # fmt: skip


def _of_keys(parts: list[Fragments], has: Callable[[bytes], bool]) -> list[Fragments]:
    picked = [_picked(part, np.flatnonzero(list(map(has, part.keys)))) for part in parts]
    return [part for part in picked if len(part)]


def _joined(parts: list[Fragments]) -> Fragments:
    if len(parts) == 1:
        return parts[0]
    times_us = np.concatenate([part.times_us for part in parts])
    return Fragments(
        [key for part in parts for key in part.keys],
        [value for part in parts for value in part.values],
        times_us,
        np.concatenate([part.offsets for part in parts]),
        times_us,
    )


def _encoded(entries: list[tuple[bytes, bytes | None]], waiting: Fragments | None) -> bytes:
    chunk = _Chunk(entries, [], [], b"", b"")
    if waiting is not None:
        times, offsets = waiting.times_us.tobytes(), waiting.offsets.tobytes()
        chunk = _Chunk(entries, waiting.keys, waiting.values, times, offsets)
    return msgspec.msgpack.encode(chunk)


def _fragments(chunk: _Chunk) -> Fragments:
    times_us = np.frombuffer(chunk.times_us, np.int64)
    offsets = np.frombuffer(chunk.offsets, np.int64)
    return Fragments(chunk.keys, chunk.values, times_us, offsets, times_us)


T = TypeVar("T")


def decoded(packed: bytes, kind: type[T]) -> T:
    """A part of the state; ProtocolError if it is something else."""
    try:
        return msgspec.msgpack.decode(packed, type=kind)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"the state of a bucket is damaged: {error}") from error
