"""For users' own tests: a fabric in memory, and a clock that stands still until it is moved.

    clock = FakeClock()
    with memory_fabric(clock) as fabric:
        queue = fabric.queue("orders", lease=30)
        queue.push(b"one")
        message = queue.pop()
        clock.advance(31)          # the lease runs out
        assert queue.pop().deliveries == 2

It is the real thing (the same engine, journal and client) on a disk that is a dictionary.
"""

from __future__ import annotations

from penstock.client.blocking import Fabric
from penstock.embedded import Inline, embed
from penstock.engine.recovery import open_engine
from penstock.node.clock import Clock
from penstock.store.disk import Disk
from penstock.store.memory import MemoryDisk

__all__ = ["FakeClock", "MemoryDisk", "memory_fabric"]

_DIRECTORY = 0x7E57


class FakeClock(Clock):
    """Time that passes only by `advance`."""

    def __init__(self, start_us: int = 1_700_000_000_000_000) -> None:
        self._now_us = start_us
        self._fabrics: list[Inline] = []

    def now_us(self) -> int:
        """The time that was set."""
        return self._now_us

    def advance(self, seconds: float) -> None:
        """Moves time on; what is due by then has happened when this returns."""
        target_us = self._now_us + round(seconds * 1e6)
        # One that was closed must not write any more: its disk may be another's by now.
        self._fabrics = [inline for inline in self._fabrics if not inline.closed]
        for inline in self._fabrics:
            with inline.changed:
                while (due_us := inline.engine.next_due()) is not None and due_us <= target_us:
                    self._now_us = max(self._now_us, due_us)
                    inline.run()
                    inline.maintain()  # it may be what is due
        self._now_us = target_us
        for inline in self._fabrics:
            with inline.changed:
                inline.run()


def memory_fabric(
    clock: Clock | None = None, disk: Disk | None = None, *, timeout: float = 5.0, shards: int = 16
) -> Fabric:
    """A blocking fabric that lives in memory. Give the same disk again to see it restarted."""
    clock = clock or FakeClock()
    disk = disk or MemoryDisk()
    engine = open_engine(disk, clock.now_us(), _DIRECTORY, shards=shards, node="memory")
    inline = Inline(engine, disk, clock)
    if isinstance(clock, FakeClock):
        clock._fabrics.append(inline)
    return embed(inline, timeout, "default")
