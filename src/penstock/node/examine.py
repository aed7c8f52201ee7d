"""Looking at a data directory without changing it: what verifies, what does not, what it holds."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from penstock.core.fabric import Fabric
from penstock.core.liveness import Liveness, read_meta
from penstock.core.records import Kind
from penstock.core.shard import CONTROL
from penstock.core.staged import STAGED
from penstock.engine.engine import Engine
from penstock.engine.recovery import Identity, open_engine
from penstock.errors import DamagedError, NotFoundError
from penstock.node.files import LOCK_NAME
from penstock.node.findings import (
    CheckpointFinding,
    DamageFinding,
    FileFinding,
    Findings,
    GapFinding,
    StreamFinding,
    TornFinding,
)
from penstock.node.overlay import OverlayDisk
from penstock.store.checkpoint import Checkpoint, read_checkpoint
from penstock.store.files import Files
from penstock.store.locations import (
    CHECKPOINT,
    JOURNAL,
    QUARANTINE,
    SHARD,
    SPARE,
    file_name,
    file_number,
    locate,
    numbers,
    split,
)
from penstock.store.recovery import Cut, read_journal
from penstock.store.scan import Damage, Record, scan

TELL_BYTES = 8 << 20  # how often progress is told
MAX_GAPS = 1000  # reported; a directory in that state has other worries

_KINDS = {
    JOURNAL: "journal",
    SHARD: "shard segment",
    CHECKPOINT: "checkpoint",
    QUARANTINE: "quarantine",
    SPARE: "spare",
    "t": "unfinished",
}


class _Snapshot(msgspec.Struct):
    """The part of a shard's snapshot that says how far it goes."""

    last: int


class _ControlSnapshot(msgspec.Struct):
    number: int


class _Batch(NamedTuple):
    """Where a stored batch is, whose it is, and how many of its messages are wanted."""

    location: int
    stream: int
    live: int


def examine(
    path: str | os.PathLike[str], now_us: int, tell: Callable[[int, int], None] | None = None
) -> Findings:
    """Reads every record of a data directory, and folds its state in memory.

    The directory is not changed and not locked; see `overlay.hold_shared`. NotFoundError if it is
    no data directory; DiskError if it cannot be read. `tell` is called now and then with the bytes
    of data files that were read, and all that there are.
    """
    if not Path(path).is_dir():
        raise NotFoundError(f"there is no directory {path}", advice="Check the path.")
    return _Examination(path, tell).run(now_us)


class _Examination:
    """One look at a directory, step by step."""

    def __init__(
        self, path: str | os.PathLike[str], tell: Callable[[int, int], None] | None
    ) -> None:
        self.path = path
        self.tell = tell
        self.read_bytes = 0
        self.told_bytes = 0
        self.disk = OverlayDisk(path)
        self.findings = Findings(str(path))
        self.files: dict[str, FileFinding] = {}
        self.raw: list[Damage] = []
        self.position = 0
        self.last: dict[int, int] = {}  # log number of the last record, by shard

    def run(self, now_us: int) -> Findings:
        self._list()
        if self.files:
            checkpoint = read_checkpoint(self.disk)
            identity = self._begin(checkpoint)
            self._read_journal(checkpoint, identity)
            self._read_shard_segments(checkpoint)
            engine = self._fold(now_us)
            self._describe(engine)
        return self.findings

    def _list(self) -> None:
        names = [name for name in self.disk.names() if _kind(name) is not None]
        if not names and not Path(self.path, LOCK_NAME).exists():
            raise NotFoundError(f"{self.path} is not a data directory", advice="Check the path.")
        for name in sorted(names):
            self.files[name] = FileFinding(name, _kind(name) or "", self.disk.size(name))
        self.findings.files = list(self.files.values())
        self.findings.disk_bytes = sum(file.bytes for file in self.files.values())

    def _begin(self, checkpoint: Checkpoint | None) -> Identity | None:
        """Where replay starts, and what the shards know by then."""
        if checkpoint is None:
            return None
        self.position = checkpoint.position
        file, offset = split(checkpoint.position)
        found = numbers(self.disk.names(), CHECKPOINT)
        self.findings.checkpoint = CheckpointFinding(
            file_name(CHECKPOINT, checkpoint.number),
            len(checkpoint.sections) + len(checkpoint.damaged),
            checkpoint.damaged,
            file_name(JOURNAL, file),
            offset,
            [file_name(CHECKPOINT, number) for number in found if number > checkpoint.number],
        )
        for key, data in checkpoint.sections.items():
            if key.startswith("shard-"):
                self.last[int(key[6:])] = msgspec.msgpack.decode(data, type=_Snapshot).last
            elif key == "control":
                snapshot = msgspec.msgpack.decode(data, type=_ControlSnapshot)
                self.last[CONTROL] = snapshot.number
        data = checkpoint.sections.get("identity", b"")
        return msgspec.msgpack.decode(data, type=Identity) if data else None

    # --- records ---------------------------------------------------------------------------

    def _read_journal(self, checkpoint: Checkpoint | None, identity: Identity | None) -> None:
        """All of it, also what a node would not read again because the checkpoint covers it."""
        synced = 0 if checkpoint is None else checkpoint.synced
        directory = None if identity is None else identity.directory
        reader = read_journal(self.disk, self.disk.names(), synced=synced, directory=directory)
        for item in reader:
            if isinstance(item, Record):
                self._count(file_name(JOURNAL, split(item.location)[0]), item.length)
                self._check_order(item)
            elif isinstance(item, Cut):
                self.findings.torn = TornFinding(item.file, item.offset, item.discarded_records)
            else:
                self.raw.append(item)
                if item.shard is not None and item.number is not None:
                    self.last[item.shard] = max(self.last.get(item.shard, 0), item.number)
        for segment in reader.segments():
            self.files[file_name(JOURNAL, segment.number)].used = segment.used

    def _count(self, name: str, length: int) -> None:
        self.files[name].records += 1
        self.read_bytes += length
        if self.tell is not None and self.read_bytes - self.told_bytes >= TELL_BYTES:
            self.told_bytes = self.read_bytes
            data = (file.bytes for file in self.files.values() if file.name[0] in (JOURNAL, SHARD))
            self.tell(self.read_bytes, sum(data))

    def _check_order(self, record: Record) -> None:
        """Log numbers of a shard are contiguous from the checkpoint on; before, files may go."""
        if record.kind == Kind.BARRIER or record.location < self.position:
            return
        self.findings.replayed_records += 1
        last = self.last.get(record.shard, 0)
        if record.number > last + 1 and len(self.findings.gaps) < MAX_GAPS:
            self.findings.gaps.append(GapFinding(record.shard, last + 1, record.number - 1))
        self.last[record.shard] = max(last, record.number)

    def _read_shard_segments(self, checkpoint: Checkpoint | None) -> None:
        data = None if checkpoint is None else checkpoint.sections.get("files")
        if data is None:
            return
        known = Files.load(data)
        for name in known.orphans(self.disk.names()):
            self.files[name].note = "copies that no checkpoint refers to; a node removes them"
        for file in known.all():
            if file.kind != SHARD:
                continue
            if file.name not in self.files:
                self.raw.append(Damage(file.name, 0, file.used, "the file is missing"))
                continue
            self.files[file.name].used = file.used
            self._read_shard_segment(file.name, file.used)

    def _read_shard_segment(self, name: str, used: int) -> None:
        for item in scan(self.disk, name, end=used):
            if isinstance(item, Record):
                self._count(name, item.length)
            elif isinstance(item, Damage):
                self.raw.append(item)
            elif item.offset < used:
                self.raw.append(Damage(name, item.offset, used - item.offset, "no valid record"))

    # --- state -----------------------------------------------------------------------------

    def _fold(self, now_us: int) -> Engine | None:
        """The engine that a node would have after a start; with the damage accepted if need be."""
        try:
            return open_engine(self.disk, now_us, 0, node=str(self.path))
        except DamagedError as error:
            self.findings.refusal = error.message
        try:
            disk = OverlayDisk(self.path)
            return open_engine(disk, now_us, 0, node=str(self.path), accept_damage=True)
        except DamagedError:
            self.findings.opens_if_accepted = False
            return None

    def _describe(self, engine: Engine | None) -> None:
        batches: list[_Batch] = []
        names: dict[int, str] = {}
        if engine is not None:
            self.findings.used_bytes = engine.files.used_bytes
            self.findings.live_bytes = engine.files.live_bytes
            for file in engine.files.all():
                if file.name in self.files:
                    self.files[file.name].live = file.live
            self.findings.streams = list(_streams(engine.fabric))
            names = {n: stream.info.name for n, stream in engine.fabric.kernel.streams.items()}
            batches = sorted(_batches(engine.fabric)) if self.raw else []
            self.findings.of_a_cluster = bool(engine.consensus.number)
        self.findings.damages = [self._explain(damage, batches, names) for damage in self.raw]
        for damage, finding in zip(self.raw, self.findings.damages, strict=True):
            finding.repaired = engine is not None and _is_elsewhere(engine.fabric, damage)

    def _explain(
        self, damage: Damage, batches: list[_Batch], names: dict[int, str]
    ) -> DamageFinding:
        """Whose messages a damage holds, and which of them are still wanted."""
        found = DamageFinding(damage.file, damage.offset, damage.length, damage.reason)
        found.shard = damage.shard
        start = locate(file_number(damage.file), damage.offset)
        end = start + damage.length
        replayed = start >= self.position and damage.file.startswith(JOURNAL)
        hit = batches[bisect_left(batches, (start,)) : bisect_left(batches, (end,))]
        found.messages = sum(batch.live for batch in hit)
        if damage.kind is not None and damage.meta is not None:
            kind = damage.kind & ~Kind.FORWARDED
            found.kind = Kind(kind).name.lower() if kind in set(Kind) else f"kind {kind}"
            if kind == Kind.PUSH:
                push = read_meta(damage.kind, damage.meta)
                found.stream = names.get(push.stream, f"deleted stream {push.stream}")
                found.partition = push.partition
                if push.base < STAGED:  # else it stands in no place that a user knows
                    found.first, found.last = push.base, push.base + push.count - 1
                if replayed and push.stream in names:
                    found.messages = push.count
                return found
        elif hit:
            found.stream = ", ".join(sorted({names[batch.stream] for batch in hit}))
        found.refused = replayed
        return found


def _is_elsewhere(fabric: Fabric, damage: Damage) -> bool:
    """Whether the batch of a damaged record is stored in another place, and wanted."""
    kind, meta, shard = damage.kind, damage.meta, damage.shard
    if kind is None or meta is None or shard is None or shard >= len(fabric.kernel.shards):
        return False
    if kind & ~Kind.FORWARDED not in (Kind.PUSH, Kind.COPY):
        return False
    stored = Liveness(fabric.kernel).at(shard, kind, meta)
    here = locate(file_number(damage.file), damage.offset)
    return stored is not None and stored.location not in (0, here)


def _kind(name: str) -> str | None:
    """What a file is for, by its name; None if it is not ours."""
    try:
        file_number(name)
    except ValueError:
        return None
    return _KINDS.get(name[0])


def _streams(fabric: Fabric) -> Iterator[StreamFinding]:
    kernel = fabric.kernel
    for number, stream in sorted(kernel.streams.items()):
        info, figures = stream.info, fabric.stream_figures(number)
        messages = figures.get("messages", figures.get("entries", 0))
        yield StreamFinding(
            info.kind, info.name, info.namespace, messages, figures["bytes"], figures
        )


def _batches(fabric: Fabric) -> Iterator[_Batch]:
    for shard in fabric.kernel.shards:
        for stream, queue in shard.queues.items():
            for lane in queue.lanes.values():
                yield from (_Batch(s.location, stream, s.live) for s in lane.index.rows())
        for (stream, _), partition in shard.partitions.items():
            yield from (_Batch(s.location, stream, s.live) for s in partition.index.rows())
        for meta, stored in shard.batches():
            if stored.base >= STAGED:
                yield _Batch(stored.location, meta.stream, stored.live)
