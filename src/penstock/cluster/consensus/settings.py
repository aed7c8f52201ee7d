"""Time-outs and limits of consensus."""

from __future__ import annotations

from dataclasses import dataclass

MAX_VOTERS = 5
MAX_LEARNERS = 1000
MAX_ENTRY_BYTES = 1 << 20
MAX_CHUNK_BYTES = 1 << 20
MAX_SNAPSHOT_BYTES = 256 << 20
MAX_MESSAGE_ENTRIES = 4096
MAX_MESSAGE_BYTES = 8 << 20
MAX_INDEX = 1 << 62
MAX_TERM = 1 << 62
# Nobody is this far ahead by elections alone; a wild message must not use up all terms at once.
MAX_TERM_JUMP = 1 << 32
MAX_OUTBOX = 1 << 16  # messages that wait for `take_ready`; what is over is lost, as on a network


@dataclass(frozen=True, slots=True)
class Settings:
    """The same on all nodes of a cluster, at least in time-outs and entry size."""

    election_us: int = 1_000_000  # time-outs are drawn from this to its double
    heartbeat_us: int = 100_000
    max_batch_entries: int = 1024  # of one Append, and of what is given to apply at once
    max_batch_bytes: int = 1 << 20  # exceeded only by one entry alone
    max_in_flight: int = 16  # Appends under way to one peer
    max_uncommitted: int = 4096  # entries that a leader takes before it refuses more
    max_unapplied: int = 4096  # entries given to the shell before it has to apply some
    max_log_bytes: int = 64 << 20  # a leader refuses more until the shell compacts
    keep_entries: int = 1000  # kept behind a snapshot, so that a slow peer needs none
    max_promotion_lag: int = 100  # entries that a learner may miss when it becomes a voter
    max_reads: int = 10_000
    max_writes: int = 64  # Readys under way to the disk
    max_snapshot_bytes: int = 64 << 20
    chunk_bytes: int = 256 << 10
