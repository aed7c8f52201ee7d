"""Reading old files through, slowly: a flipped bit is found while another node still has the batch.

What nobody reads would otherwise stay damaged in silence until it is the last copy.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING

from penstock.core.index import Stored
from penstock.core.kernel import Kernel
from penstock.core.records import PushMeta
from penstock.store.disk import DiskError
from penstock.store.files import DataFile
from penstock.store.locations import SHARD, split
from penstock.store.record import FILE_HEADER_BYTES
from penstock.store.scan import Damage, Record, scan

if TYPE_CHECKING:
    from penstock.engine.engine import Engine
    from penstock.engine.maintenance import Work

ROUND_BYTES = 1 << 20
ROUND_RECORDS = 1000  # a round takes milliseconds, however small the records are
PAUSE_US = 500_000  # between rounds: 2 MiB a second at most
EVERY_US = 86_400_000_000  # a pass over all files begins so long after the one before
FIRST_US = 600_000_000  # and the first of a life of a node so long after its start


class Scrub:
    """Passes over all sealed files in which something is live, in rounds. Each round is a piece of
    maintenance of its own, so that checkpoints and cleaning never wait for a whole file."""

    def __init__(self, engine: Engine, now_us: int, pause_us: int, every_us: int) -> None:
        self.damages = 0  # batches that were found damaged
        self.passes = 0
        self._engine = engine
        self._pause_us, self._every_us = pause_us, every_us
        self.due_us = self._pass_us = now_us + min(every_us, FIRST_US)
        self._file = -1
        self._offset = FILE_HEADER_BYTES

    @property
    def place(self) -> tuple[int, int]:
        """How far it has come: a file, and an offset in it; -1 between passes."""
        return self._file, self._offset

    def round(self, now_us: int) -> Generator[Work, None, None]:
        """Reads on where the last round ended. A file that cannot be read is passed over."""
        file = self._current()
        if file is None:
            self._end_pass(now_us)
            return
        found: list[Damage] = []
        over: list[bool] = []
        yield lambda: over.append(self._read(file, found))
        if over[0]:
            self._file, self._offset = file.number, file.used
        self.due_us = now_us + self._pause_us
        self._report(file, found)

    def _current(self) -> DataFile | None:
        """The file to read on in: the same as before, or the next one; None: there is none."""
        files = self._engine.files
        file = files.get(self._file)
        if file is not None and file.live and self._offset < file.used:
            return file
        left = [
            each
            for each in files.all()
            if each.number > self._file and each.live
            and (each.sealed or (each.kind == SHARD and each.used))
        ]  # fmt: skip
        if not left:
            return None
        file = min(left, key=lambda each: each.number)
        self._file, self._offset = file.number, FILE_HEADER_BYTES
        return file

    def _read(self, file: DataFile, found: list[Damage]) -> bool:
        """One round, in any thread; whether the file is done."""
        start, records = self._offset, 0
        disk = self._engine.disk
        try:
            for item in scan(disk, file.name, start, end=file.used, chunk_bytes=ROUND_BYTES):
                if isinstance(item, Damage):
                    found.append(item)
                    self._offset = item.offset + item.length
                elif isinstance(item, Record):
                    records += 1
                    self._offset = split(item.location)[1] + item.length
                if self._offset - start >= ROUND_BYTES or records >= ROUND_RECORDS:
                    return self._offset >= file.used
        except DiskError:
            return True
        return True

    def _report(self, file: DataFile, found: list[Damage]) -> None:
        """Only what is wanted counts: ends of files that failed are no damage."""
        if not found:
            return
        engine = self._engine
        batches = live_batches(engine.fabric.kernel, file.number, found)
        self.damages += len(batches)
        engine.read_damage.extend(
            f"{file.name} at {split(stored.location)[1]}: found by reading it through"
            for _, _, stored in batches
        )
        if engine.mender is not None and batches:
            engine.mender.look(file.number, found)

    def _end_pass(self, now_us: int) -> None:
        self.passes += 1
        self._file, self._offset = -1, FILE_HEADER_BYTES
        self._pass_us = max(self._pass_us + self._every_us, now_us)
        self.due_us = max(self._pass_us, now_us + self._pause_us)


def live_batches(
    kernel: Kernel, file: int, damages: Sequence[Damage]
) -> list[tuple[int, PushMeta, Stored]]:
    """Batches with live messages, and their shards, that lie in damaged parts of a file."""
    spans = [(damage.offset, damage.offset + damage.length) for damage in damages]
    found = []
    for shard in kernel.shards:
        for meta, stored in shard.batches():
            number, offset = split(stored.location)
            if number == file and any(start <= offset < end for start, end in spans):
                found.append((shard.id, meta, stored))
    return found
