"""Opening a data directory: checkpoint, then the tail of the journal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from penstock.core.fabric import Fabric
from penstock.core.index import Stored
from penstock.core.liveness import read_meta
from penstock.core.records import Kind
from penstock.core.shard import CONTROL, PLANE, Replayed
from penstock.engine.consensus_log import ConsensusLog
from penstock.engine.engine import Engine
from penstock.engine.maintenance import Pace
from penstock.errors import DamagedError
from penstock.store.checkpoint import Checkpoint, CheckpointWriter, read_checkpoint
from penstock.store.cleaner import Cleaner
from penstock.store.disk import Disk
from penstock.store.files import Files
from penstock.store.journal import SEGMENT_BYTES, Journal
from penstock.store.locations import JOURNAL, SHARD, numbers, split
from penstock.store.recovery import Cut, JournalReader, read_journal
from penstock.store.scan import Damage, Record

SHARDS = 256
GRANT_BITS = 24  # a segment has room for fewer grants than these can count
_decode = msgspec.msgpack.decode
_encode = msgspec.msgpack.encode


class Identity(msgspec.Struct):
    """What a data directory is for ever."""

    directory: int
    shards: int
    version: int = 1


@dataclass
class Report:
    """What recovery found."""

    records: int = 0
    damages: list[str] = field(default_factory=list)
    cut: str | None = None
    lost_messages: int = 0
    damaged: set[int] = field(default_factory=set)  # shards that lack a batch
    broken: set[int] = field(default_factory=set)  # shards of which nothing is known

    def figures(self) -> dict[str, Any]:
        """For `penstock top` and the start-up line."""
        return {
            "records": self.records,
            "damages": self.damages,
            "cut": self.cut,
            "lost_messages": self.lost_messages,
        }


_SECTIONS = "checkpoint sections are damaged"


def open_engine(
    disk: Disk,
    now_us: int,
    directory: int,
    *,
    shards: int = SHARDS,
    node: str = "",
    accept_damage: bool = False,
    segment_bytes: int = SEGMENT_BYTES,
    pace: Pace = Pace(),  # noqa: B008  # a tuple: nobody can change it
) -> Engine:
    """The engine of a data directory, new or old; all of its state is folded when this returns.

    `directory` and `shards` count for a new directory only. DamagedError if part of the log is not
    readable and it is not known what it said, unless the damage is accepted.
    """
    report = Report()
    checkpoint = read_checkpoint(disk) or _create(disk, Identity(directory, shards))
    identity = _identity_of(checkpoint)
    fabric = Fabric(identity.shards, now_us, node, identity.directory)
    files = _load(fabric, checkpoint, report, accept_damage)
    sealed = _take_journal(files)
    reader = read_journal(
        disk, disk.names(), checkpoint.position, synced=checkpoint.synced,
        directory=identity.directory,
    )  # fmt: skip
    consensus = ConsensusLog()
    if "consensus" in checkpoint.sections:
        consensus.load(checkpoint.sections["consensus"])
    target = _Target(fabric, consensus, report, accept_damage, now_us)
    _replay(target, reader)
    reader.settle()
    _forget_orphans(disk, files)
    segments = [
        segment._replace(used=min(segment.used, sealed.get(segment.number, segment.used)))
        for segment in reader.segments()
    ]
    journal = Journal(
        disk, files, identity.directory, reader.end, segments, segment_bytes=segment_bytes
    )
    _count_live(fabric, files, report, accept_damage)
    _forget_missing(disk, files, accept_damage)
    cleaner = Cleaner(disk, files, identity.directory, segment_bytes)
    engine = Engine(disk, files, journal, fabric, cleaner, pace)
    engine.identity = _encode(identity)
    engine.consensus = consensus
    engine.maintenance.recovered(checkpoint.position, report.records)
    engine.recovered = report.figures()
    if consensus.number and not accept_damage:
        engine.damaged_shards, engine.broken_shards = report.damaged, report.broken
    # A grant leaves the node only after its segment has a durable name: the numbers of this start
    # are above all that were given before, whatever a power loss took.
    # A clock that was set back goes on where it was: what lasts for a time must begin there, too.
    now_us = max(now_us, fabric.newest_us())
    fabric.restart(now_us, files.next_number << GRANT_BITS, owns=not consensus.number)
    engine.settle(now_us)
    return engine


def _create(disk: Disk, identity: Identity) -> Checkpoint:
    if numbers(disk.names(), JOURNAL) or numbers(disk.names(), SHARD):
        raise DamagedError("the data directory has data but no readable checkpoint")
    writer = CheckpointWriter(disk, 1)
    writer.add("identity", _encode(identity))
    writer.commit(0, 0)
    checkpoint = read_checkpoint(disk)
    assert checkpoint is not None
    return checkpoint


def _identity_of(checkpoint: Checkpoint) -> Identity:
    if "identity" not in checkpoint.sections:
        raise DamagedError(f"{_SECTIONS}: {', '.join(checkpoint.damaged)}; no node can do without")
    return msgspec.msgpack.decode(checkpoint.sections["identity"], type=Identity)


def _load(fabric: Fabric, checkpoint: Checkpoint, report: Report, accept_damage: bool) -> Files:
    sections, damaged = checkpoint.sections, checkpoint.damaged
    if damaged and not accept_damage and "consensus" in sections:
        # Other nodes of the cluster have what is lost here, if it is a shard.
        report.broken = {int(name[6:]) for name in damaged if name.startswith("shard-")}
        report.damages += [f"section {name} of the checkpoint" for name in damaged]
        damaged = [name for name in damaged if not name.startswith("shard-")]
    if "withheld" in sections and not accept_damage:  # by an earlier start
        lacking, lost = _decode(sections["withheld"])
        report.damaged |= set(lacking)
        report.broken |= set(lost)
    if damaged and not accept_damage:
        raise DamagedError(f"{_SECTIONS}: {', '.join(damaged)}")
    if "control" in sections:
        fabric.control_log.load(_decode(sections["control"]))
    for shard in fabric.kernel.shards:
        if data := sections.get(f"shard-{shard.id}"):
            shard.load(_decode(data))
    files = Files.load(sections["files"]) if "files" in sections else Files()
    return files


def _take_journal(files: Files) -> dict[int, int]:
    """Takes the journal out of the table, as it knows better itself; where sealed segments end.

    A segment that was cut is followed by one that says so, but that one may be gone by now.
    """
    journal = [file for file in files.all() if file.kind == JOURNAL]
    for file in journal:
        files.drop(file.number)
    return {file.number: file.used for file in journal if file.sealed}


class _Target(NamedTuple):
    """What the journal is folded into, and how."""

    fabric: Fabric
    consensus: ConsensusLog
    report: Report
    accept_damage: bool
    now_us: int


def _replay(target: _Target, reader: JournalReader) -> None:
    report = target.report
    for item in reader:
        if isinstance(item, Cut):
            report.cut = f"{item.file} at {item.offset}"
        elif isinstance(item, Record):
            report.records += 1
            _fold(target, _of_record(item))
        else:
            report.damages.append(f"{item.file} at {item.offset}: {item.reason}")
            if (record := _of_damage(item)) is not None:
                report.lost_messages += read_meta(record.kind, record.meta).count
                report.damaged.add(record.shard)
                _fold(target, record)
            elif not target.accept_damage:
                raise DamagedError(_explain(item))


def _of_record(record: Record) -> Replayed:
    return Replayed(
        record.shard, record.kind, record.number, record.meta, record.payload, record.location,
        record.length, record.epoch,
    )  # fmt: skip


def _of_damage(damage: Damage) -> Replayed | None:
    """A damaged batch whose record is otherwise whole: what it held is lost, nothing else."""
    if damage.shard is None or damage.number is None or damage.meta is None or damage.kind is None:
        return None
    if damage.kind & ~Kind.FORWARDED != Kind.PUSH:
        return None
    return Replayed(damage.shard, damage.kind, damage.number, damage.meta, None, 0, 0)


def _explain(damage: Damage) -> str:
    return (
        f"{damage.length:,} bytes of {damage.file} at {damage.offset:,} are damaged "
        f"({damage.reason}), and it is not known what they said"
    )


def _fold(target: _Target, record: Replayed) -> None:
    fabric, consensus, report, accept_damage, now_us = target
    kernel = fabric.kernel
    if record.shard == PLANE:
        consensus.replay(record.number, record.meta)
        return
    if record.kind == Kind.RESET:  # the shard begins anew here
        report.damaged.discard(record.shard)
        report.broken.discard(record.shard)
    if record.shard in report.broken:
        return
    known = record.shard == CONTROL or record.shard < len(kernel.shards)
    shard = (
        kernel.control
        if record.shard == CONTROL
        else kernel.shards[record.shard % len(kernel.shards)]
    )
    gap = record.kind != Kind.BARRIER and record.number > shard.last + 1
    if (gap or not known) and not accept_damage:
        raise DamagedError(
            f"records {shard.last + 1} to {record.number - 1} of shard {record.shard} are missing"
        )
    try:
        fabric.replay(record, now_us)
    except (AssertionError, LookupError, ValueError, StopIteration, msgspec.MsgspecError) as error:
        if not accept_damage:
            raise DamagedError(
                f"record {record.number} of shard {record.shard} does not fit the state before it"
            ) from error
        report.damages.append(f"record {record.number} of shard {record.shard} does not fit")


def _forget_orphans(disk: Disk, files: Files) -> None:
    """Copies that the cleaner made after the checkpoint; the originals are still there."""
    files.reserve(disk.names())
    orphans = files.orphans(disk.names())
    for name in orphans:
        disk.delete(name)
    if orphans:
        disk.sync_names()


def _count_live(fabric: Fabric, files: Files, report: Report, accept_damage: bool) -> None:
    for file in files.all():
        files.freed(file.number << 32, file.live)
    lost: Counter[int] = Counter()  # bytes, by the number of a file that is not there
    for stored in all_stored(fabric):
        number = split(stored.location)[0]
        if number in files:
            files.stored(stored.location, stored.live_bytes)
        elif stored.location:  # none: a copy of a batch that nobody could read
            lost[number] += stored.live_bytes
    for number, size in sorted(lost.items()):
        damage = f"file {number}, with {size:,} bytes of messages, is not there"
        if not accept_damage:
            raise DamagedError(damage)
        report.damages.append(damage)


def _forget_missing(disk: Disk, files: Files, accept_damage: bool) -> None:
    """Files that were dropped after the checkpoint was written. Nothing in them can be wanted."""
    names = set(disk.names())
    for file in files.all():
        if file.name not in names:
            if file.live and not accept_damage:
                raise DamagedError(f"{file.name} with {file.live:,} live bytes is missing")
            files.drop(file.number)


def all_stored(fabric: Fabric) -> Iterator[Stored]:
    """Every batch of which anything is live, wherever it is stored."""
    for shard in fabric.kernel.shards:
        for queue in shard.queues.values():
            for lane in queue.lanes.values():
                yield from lane.index.rows()
        for partition in shard.partitions.values():
            yield from partition.index.rows()
        yield from shard.staging.index.rows()
