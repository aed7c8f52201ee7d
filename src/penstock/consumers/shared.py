"""What all partitions of a member share."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.client.aio import AsyncFabric
from penstock.client.aio_streams import AsyncTable, AsyncTopic
from penstock.consumers.gaps import Gaps
from penstock.consumers.outlets import Outlet, Outlets, Record, Targets
from penstock.consumers.prefetch import FetchRoom
from penstock.consumers.settings import Settings
from penstock.consumers.steps import Late, Result

log = logging.getLogger("penstock.consumers")


class HaltError(Exception):
    """A partition stands still until its claim is renewed. Not seen outside."""


class StuckError(Exception):
    """No new attempt can mend what happened, which is the cause. Not seen outside."""


def wall_us() -> int:
    """The time of the day."""
    return time.time_ns() // 1000


@dataclass(slots=True)
class Counts:
    """Figures of a member since it started."""

    messages: int = 0
    read_again: int = 0
    results: int = 0
    late: int = 0
    dead: int = 0
    commits: int = 0
    failures: int = 0  # after which a partition went on from its last commit
    slow_turns: int = 0
    handovers: Gaps = field(default_factory=Gaps)  # to this member
    resumes: Gaps = field(default_factory=Gaps)  # after an owner that did not hand over


class Places:
    """Where results, late fragments and dead letters go. What has no place is only counted."""

    def __init__(self, settings: Settings) -> None:
        self.results = Outlets(settings.to)
        self.late = _outlets(settings.late_to)
        self.dead = _outlets(settings.dead_to)

    async def open(self, fabric: AsyncFabric) -> None:
        """Opens all of them."""
        for outlets in (self.results, self.late, self.dead):
            for outlet in outlets.all if outlets is not None else ():
                await outlet.open(fabric)

    def route(self, records: list[Record]) -> list[tuple[Outlet, list[Record]]]:
        """What each of them gets."""
        of_results = [each for each in records if isinstance(each.source, Result)]
        others = [each for each in records if not isinstance(each.source, Result)]
        routed = self.results.route(of_results)
        for outlets, is_late in ((self.late, True), (self.dead, False)):
            if outlets is not None:
                chosen = [each for each in others if isinstance(each.source, Late) == is_late]
                routed += outlets.route(chosen)
        return routed


def _outlets(targets: Targets | None) -> Outlets | None:
    return None if targets is None else Outlets(targets)


@dataclass(slots=True)
class Shared:
    """`may_process` and `may_deliver` ask the claims, for a partition and a token. `failed` is told
    of what no new attempt can mend, `lost` of claims that are over, `grown` of partitions that can
    be read from now on."""

    me: str
    settings: Settings
    fabric: AsyncFabric
    topic: AsyncTopic
    states: AsyncTable
    places: Places
    may_process: Callable[[int, int], bool]
    may_deliver: Callable[[int, int], bool]
    failed: Callable[[BaseException], None]
    lost: Callable[[int, int], None]
    grown: Callable[[], None]
    room: FetchRoom
    counts: Counts = field(default_factory=Counts)
    # First come, first served: one turn at a time, and the loop has its own between two of them.
    gate: asyncio.Lock = field(default_factory=asyncio.Lock)
    busy_s: float = field(default_factory=time.monotonic)  # when something was last processed
