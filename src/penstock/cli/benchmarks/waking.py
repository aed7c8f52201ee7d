"""Sleeping until a message is due. On its own: it is used by processes that load little else."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def wake_on_time() -> None:
    """Lets sleeps of this process end when they should, where the system allows that."""
    with suppress(OSError):
        Path("/proc/self/timerslack_ns").write_text("1")
