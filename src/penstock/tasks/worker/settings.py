"""What a worker is told when it is started."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from penstock.errors import InvalidError

Kind = Literal["process", "thread", "async"]
KINDS: tuple[Kind, ...] = ("process", "thread", "async")
MAX_CONCURRENCY = 1024
MIN_LEASE_S = 1.0


@dataclass(frozen=True)
class WorkerSettings:
    """`InvalidError` names what is wrong."""

    modules: tuple[str, ...]
    """Modules or files that declare the tasks."""
    task_set: str = "default"
    concurrency: int = 1
    kind: Kind = "process"
    allowed: tuple[str, ...] = ()
    """Top-level packages whose functions need not be declared."""
    lease_s: float = 30.0
    """After so long without a sign of life of this worker, others run its tasks."""
    drain_s: float = 30.0
    """How long running tasks may go on when the worker is told to end."""
    pickle_key: bytes | None = field(default=None, repr=False)
    durability: str | None = None
    host: str = ""
    """Where data is that tasks may be sent to; empty: this worker cares for no data."""
    blocks: tuple[str, ...] = ()
    """The data that the host has."""
    directory: str = ""
    """Where very large values are kept as files, shared with callers and other workers."""

    def __post_init__(self) -> None:
        if not self.modules and self.kind == "process":  # others have what this process knows
            raise InvalidError("a worker needs a module that declares tasks")
        if not 1 <= self.concurrency <= MAX_CONCURRENCY:
            raise InvalidError(f"concurrency {self.concurrency}: use 1 to {MAX_CONCURRENCY:,}")
        if self.kind not in KINDS:
            raise InvalidError(f"kind {self.kind!r}: use {', '.join(KINDS)}")
        if self.blocks and not self.host:
            raise InvalidError("blocks are on a host, and it is not said on which")
        if self.lease_s < MIN_LEASE_S:
            raise InvalidError(f"a lease of {self.lease_s} s: use {MIN_LEASE_S:g} s or more")
