"""Batches that are damaged on other nodes are read for them, a few at a time; see `repairs`."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import NamedTuple

from penstock.core.index import Stored
from penstock.core.kernel import Kernel
from penstock.core.liveness import Liveness
from penstock.core.records import Kind, PushMeta, pack_push
from penstock.core.staged import STAGED
from penstock.engine.engine import CopyJob, Engine
from penstock.engine.repair_messages import Held, RepairMessage, Wanted
from penstock.errors import PenstockError
from penstock.store.locations import split

MAX_READS = 16  # at a time
MAX_QUESTIONS = 1024  # that wait for a read; what is beyond is answered as if it were not here
PATIENCE_US = 2_000_000  # so long a node waits for the answer of another, which may be in no hurry


class _Question(NamedTuple):
    source: int
    wanted: Wanted
    until_us: int  # then its node has given it up


class Lending:
    """See the module. `send` gets what is to be said."""

    def __init__(self, engine: Engine, send: Callable[[int, RepairMessage], None]) -> None:
        self._engine = engine
        self._kernel: Kernel = engine.fabric.kernel
        self._send = send
        self._questions: deque[_Question] = deque()
        self._reads = 0

    def asked(self, source: int, wanted: Wanted) -> None:
        """A node wants a batch. It is answered, in turn, unless it has given up by then."""
        if len(self._questions) >= MAX_QUESTIONS:
            self._send(source, Held(wanted, b""))
            return
        self._questions.append(_Question(source, wanted, self._kernel.now_us + PATIENCE_US))
        self._read_next()

    def unlinked(self, node: int) -> None:
        """What a node has asked, it will not hear."""
        self._questions = deque(each for each in self._questions if each.source != node)

    def _read_next(self) -> None:
        while self._questions and self._reads < MAX_READS:
            source, wanted, until_us = self._questions.popleft()
            if self._kernel.now_us < until_us:
                self._read(source, wanted)

    def _read(self, source: int, wanted: Wanted) -> None:
        stored = find(self._kernel, wanted)
        same = stored is not None and stored.span == wanted.span
        if stored is not None and wanted.base < STAGED:  # others may be shown later here than there
            same = same and stored.arrived_us == wanted.arrived_us
        if stored is None or not same:
            self._send(source, Held(wanted, b""))
            return
        engine = self._engine
        job = CopyJob(engine.reader, [(stored.location, stored.length, stored.stamped)])
        files = Counter([split(stored.location)[0]])
        engine.reading.update(files)
        self._reads += 1

        def read() -> None:
            self._reads -= 1
            engine.reading.subtract(files)
            engine.reading += Counter()  # those at zero leave
            (found,) = job.found
            payload = b"" if isinstance(found, PenstockError) else bytes(found)
            self._send(source, Held(wanted, payload))
            self._read_next()

        job.then = read
        engine.jobs.append(job)


def find(kernel: Kernel, wanted: Wanted) -> Stored | None:
    """A batch as it is stored here, if any of it is live."""
    if wanted.shard >= len(kernel.shards) or wanted.stream not in kernel.streams:
        return None
    return Liveness(kernel).at(wanted.shard, Kind.PUSH, meta_of(wanted))


def meta_of(wanted: Wanted) -> bytes:
    """What the record of a batch says of it."""
    push = PushMeta(wanted.stream, wanted.partition, wanted.base, wanted.span, 0, 0, 0)
    return pack_push(push)
