"""What a worker says of itself, about once a second, in the control table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from penstock.errors import ProtocolError
from penstock.tasks.watching.passages import Passage
from penstock.wire.buffers import Buffer

WORKER_PREFIX = b"worker/"  # of the control table's entries; they go with the worker's session
MAX_TASKS_TOLD = 128  # of those that run, and of those that wait, in one report
MAX_NAMES_TOLD = 500  # of functions
SILENT_US = 5_000_000  # a worker that has said nothing for so long is likely to be gone


class Begun(msgspec.Struct, array_like=True):
    """A task that an executor is at."""

    task: bytes
    function: str
    attempt: int
    executor: int
    began_us: int
    popped_us: int = 0
    """When the worker leased it."""


class WorkerReport(msgspec.Struct, omit_defaults=True):
    """One worker, at one moment. Times are microseconds since 1970; figures count from its start.
    """

    worker: str
    kind: str
    concurrency: int
    started_us: int
    told_us: int
    lease_s: float = 30.0
    draining: bool = False
    functions: list[str] = []  # msgspec gives every Struct a list of its own
    """Those that it has declared: the first MAX_NAMES_TOLD."""
    allowed: list[str] = []
    """Packages whose other functions it runs, too."""
    rates: dict[str, tuple[float, float]] = {}
    """Functions with a rate: starts, and in how many seconds."""
    figures: dict[str, int] = {}
    executors: int = 0
    """That are ready."""
    running: list[Begun] = []
    waiting: list[bytes] = []
    """Tasks that it has leased and not begun: the first MAX_TASKS_TOLD."""
    leased: int = 0
    """All tasks in its hands."""
    busy_us: int = 0
    """Time that functions took, those that run now included; of all executors together."""
    utilisation: float = 0.0
    """Of its executors, since the report before this one."""
    passages: dict[str, Passage] = {}

    def declares(self, function: str) -> bool:
        """Whether it would run a function; True if that is not known for certain."""
        package = function.partition(":")[0].partition(".")[0]
        known = function in self.functions or package in self.allowed
        return known or len(self.functions) >= MAX_NAMES_TOLD

    def silent_us(self, now_us: int) -> int:
        """How long it has said nothing, if that is longer than it should; else 0."""
        silent = now_us - self.told_us
        return silent if silent >= SILENT_US else 0

    @property
    def lifelong(self) -> float:
        """The utilisation of its executors since it started."""
        return utilisation(self.busy_us, self.told_us - self.started_us, self.concurrency)


def utilisation(busy_us: int, passed_us: int, executors: int) -> float:
    """Which share of a time so many executors were busy; between 0 and 1."""
    return min(max(busy_us / max(passed_us * executors, 1), 0.0), 1.0)


def worker_key(worker: str, session: int) -> bytes:
    """The entry of a worker. Its session keeps two of the same name apart."""
    return WORKER_PREFIX + f"{worker}/{session:x}".encode()


pack_report: Callable[[WorkerReport], bytes] = msgspec.msgpack.Encoder().encode
_decode: Callable[[Any], WorkerReport] = msgspec.msgpack.Decoder(WorkerReport).decode


def read_report(packed: Buffer) -> WorkerReport:
    """What `pack_report` made; ProtocolError."""
    try:
        return _decode(packed)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"a worker's report that cannot be read: {error}") from error
