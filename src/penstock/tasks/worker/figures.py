"""What a worker has done since it started: for its progress line, and for programs."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(slots=True)
class Figures:
    """Counts. Tasks are over when their outcome is committed."""

    done: int = 0
    failed: int = 0
    cancelled: int = 0
    retried: int = 0
    given_back: int = 0
    refused: int = 0
    """Outcomes that came too late: somebody else has, or had, the task."""
    executors_lost: int = 0
    busy_us: int = 0
    """Time that functions took."""

    def as_dict(self) -> dict[str, int]:
        """For programs."""
        return asdict(self)
