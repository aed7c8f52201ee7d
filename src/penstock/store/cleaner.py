"""Cleaning: copying what is live out of a file, so that the file can be dropped.

The owner's state lives in the thread of the event loop, reading and copying does not. So a job is
driven in rounds until `plan_scan` says that the file is done:

    while job.plan_scan():      # any thread: reads some records of the victim
        job.choose(owner)       # loop thread: asks which rows of them are live
        job.copy()              # any thread: writes those to shard segments
    job.sync()                  # any thread: makes the copies durable
    moves = job.finish()        # loop thread: the new files count from now on

The owner applies the moves, ignoring those of rows that died meanwhile. The victim is dropped only
when a checkpoint taken after that is durable, and no file is dropped while a job runs. If
`job.damages` is not empty the victim is better renamed to its quarantine name, because live rows
that could not be read were not copied.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Literal, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.store.disk import Disk, DiskError
from penstock.store.files import DataFile, Files
from penstock.store.locations import SHARD, file_name, locate
from penstock.store.record import (
    FILE_HEADER_BYTES,
    FileHeader,
    frame,
    record_length,
)
from penstock.store.scan import Damage, Record, Tail, scan
from penstock.wire.batch import Batch
from penstock.wire.buffers import Buffer

SEGMENT_BYTES = 64 << 20
ROUND_RECORDS = 1024
ROUND_BYTES = 8 << 20

Positions = npt.NDArray[np.int64]
Live: TypeAlias = Literal["all"] | Positions


class Owner(Protocol):
    """Who knows what is live."""

    def live_positions(self, shard: int, kind: int, meta: bytes, location: int) -> Live | None:
        """Which messages of the batch in the record at `location` are live.

        None: none of them; "all": every one that the batch holds; else their positions (offsets,
        in a topic), ascending.
        """
        ...


class Move(NamedTuple):
    """A batch that has a live copy elsewhere. Locations and lengths are those of the records."""

    shard: int
    kind: int
    meta: bytes
    old_location: int
    new_location: int
    old_length: int
    new_length: int
    rows: int
    """Messages in the copy."""


class _Target:
    """A shard segment that copies are appended to."""

    __slots__ = ("counted", "exists", "number", "parts", "planned", "shard", "used", "written")

    def __init__(self, number: int, shard: int, used: int = 0) -> None:
        self.number = number
        self.shard = shard
        self.exists = self.counted = used > 0
        self.used = self.planned = self.written = used or FILE_HEADER_BYTES
        self.parts: list[Buffer] = []

    @property
    def name(self) -> str:
        return file_name(SHARD, self.number)


class Cleaner:
    """Keeps one open shard segment for each shard that was copied to. One job at a time."""

    def __init__(
        self, disk: Disk, files: Files, directory: int, segment_bytes: int = SEGMENT_BYTES
    ) -> None:
        self.disk = disk
        self.files = files
        self.directory = directory
        self.segment_bytes = segment_bytes
        self._running: CleanJob | None = None
        self._targets = {
            file.shard: _Target(file.number, file.shard, file.used)
            for file in files.all()
            if file.kind == SHARD and not file.sealed
        }

    def clean(self, number: int) -> CleanJob:
        """Begin to clean a file; ValueError while another job runs, KeyError: no such file."""
        if self._running is not None:
            raise ValueError("another file is being cleaned")
        victim = self.files[number]
        target = self._targets.get(victim.shard)
        if target is not None and target.number == number:
            del self._targets[victim.shard]
        victim.sealed = True
        self._running = CleanJob(self, victim)
        return self._running

    def target(self, shard: int, length: int) -> _Target:
        """The open segment for a copy of this length (loop thread)."""
        target = self._targets.get(shard)
        if target is not None and target.counted and target.number not in self.files:
            target = None  # it died while no job ran, and was dropped
        if target is None or target.planned + length > self.segment_bytes:
            if target is not None and target.number in self.files:
                self.files[target.number].sealed = True
            target = self._targets[shard] = _Target(self.files.allocate(), shard)
        target.planned += length
        return target

    def release(self, targets: list[_Target], failed: bool) -> None:
        """End the job: its copies count, or its targets are never appended to again."""
        self._running = None
        for target in targets:
            current = self._targets.get(target.shard) is target
            if failed and current:  # with what it holds, also if it never came to be a file
                del self._targets[target.shard]
            if target.number not in self.files:
                if not target.exists:
                    continue
                self.files.add(DataFile(target.number, SHARD, target.shard))
            file = self.files[target.number]
            file.sealed = failed or not current
            target.counted = True
            if not failed:
                file.used = target.planned = target.used


class CleanJob:
    """The cleaning of one file; see the module for how it is driven."""

    def __init__(self, cleaner: Cleaner, victim: DataFile) -> None:
        self._cleaner = cleaner
        self._disk = cleaner.disk
        self.victim = victim.number
        self._items: Iterator[Record | Damage | Tail] = iter(())
        self._victim_name = victim.name
        self._victim_used = victim.used
        self._begun = False
        self._round: list[Record] = []
        self._chosen: list[tuple[Record, Live, _Target]] = []
        self._targets: dict[int, _Target] = {}
        self._moves: list[Move] = []
        self.damages: list[Damage] = []

    def plan_scan(self) -> bool:
        """Read the next records that have a payload; False when there are none left."""
        if not self._begun:
            self._begun = True
            if self._victim_used:
                self._items = scan(self._disk, self._victim_name, end=self._victim_used)
        self._round = []
        with self._or_undone():
            self._read_round()
        return bool(self._round)

    def _read_round(self) -> None:
        size = 0
        for item in self._items:
            if isinstance(item, Damage):
                self.damages.append(item)
            elif isinstance(item, Record) and item.payload is not None:
                self._round.append(item)
                size += item.length
                if size >= ROUND_BYTES or len(self._round) >= ROUND_RECORDS:
                    break

    def choose(self, owner: Owner) -> None:
        """Ask the owner what is live, and say where it will go."""
        self._chosen = []
        for record in self._round:
            live = owner.live_positions(record.shard, record.kind, record.meta, record.location)
            if live is None or not len(live):
                continue
            target = self._cleaner.target(record.shard, record.length)
            self._targets[target.number] = target
            self._chosen.append((record, live, target))
        self._round = []

    def copy(self) -> None:
        """Write what was chosen; not durable before `sync`."""
        touched: dict[int, _Target] = {}
        for record, live, target in self._chosen:
            self._copy_one(record, live, target)
            touched[target.number] = target
        self._chosen = []
        with self._or_undone():
            for target in touched.values():
                self._write(target)

    def sync(self) -> None:
        """Make all copies durable."""
        with self._or_undone():
            for target in self._targets.values():
                self._disk.sync(target.name)
            if self._targets:
                self._disk.sync_names()

    def finish(self) -> list[Move]:
        """Count the copies as files of the store; the moves are for the owner to apply."""
        self._cleaner.release(list(self._targets.values()), failed=False)
        return self._moves

    def abandon(self) -> None:
        """Give up after a DiskError: no move happened, and what was copied is dead."""
        self._cleaner.release(list(self._targets.values()), failed=True)

    @contextmanager
    def _or_undone(self) -> Iterator[None]:
        """After a DiskError the files that this job has made are deleted: nothing refers to them,
        and a job that is tried every few seconds would fill what room there is. One that cannot be
        deleted goes with a checkpoint, as any file without live messages."""
        try:
            yield
        except DiskError:
            for target in self._targets.values():
                if target.exists and not target.counted:
                    with suppress(DiskError):
                        self._disk.delete(target.name)
                        target.exists = False
            raise

    def _copy_one(self, record: Record, live: Live, target: _Target) -> None:
        assert record.payload is not None
        payload, rows = _live_part(record.payload, live)
        length = record_length(len(record.meta), len(payload))
        position = locate(target.number, target.used)
        frame(
            target.parts, length, position, 0, record.shard, record.kind, record.epoch,
            record.number, record.meta, payload,
        )  # fmt: skip
        target.used += length
        move = Move(
            record.shard, record.kind, record.meta, record.location, position, record.length,
            length, rows,
        )  # fmt: skip
        self._moves.append(move)

    def _write(self, target: _Target) -> None:
        if not target.exists:
            self._disk.create(target.name)
            target.exists = True  # whatever becomes of its header: there is a file to let go
            header = FileHeader(SHARD, target.number, target.shard, self._cleaner.directory, 0)
            self._disk.write(target.name, 0, (header.pack(),))
        self._disk.write(target.name, target.written, target.parts)
        target.written = target.used
        target.parts = []


def _live_part(payload: memoryview, live: Live) -> tuple[Buffer, int]:
    """The batch with its live rows, or all of it if more than half of them live; and its rows.

    Half and half is rewritten: copied as it is, its new file would be worth cleaning at once.
    """
    batch = Batch.parse(payload, verify=False)
    if isinstance(live, str):
        return payload, len(batch)
    rows = np.flatnonzero(np.isin(batch.offsets, live, assume_unique=True))
    if 0 < 2 * len(rows) <= len(batch):
        return batch.take(rows), len(rows)
    return payload, len(batch)
