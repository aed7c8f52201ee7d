"""One run: a node, its clients, whatever happens to it, and the check of what they have seen."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from penstock.cli.faulting.clients import Clients
from penstock.cli.faulting.verdicts import Verdicts
from penstock.cli.soaking.damaging import Damage, Damager
from penstock.cli.soaking.one_node import STATION, OneNode
from penstock.cli.soaking.shaking import Shaker
from penstock.cli.soaking.small_disk import SmallDisk

KILLS_A_DAMAGE = 5  # for so many kills, the files of one other node are damaged
CALM_SECONDS = 0.5  # after everything that is done: clients get something done, too


@dataclass
class Shaken:
    """What a run showed."""

    seed: int
    verdicts: Verdicts
    kills: int
    counts: Counter[str]  # what was done to the node
    starts: list[float]  # seconds until the node was ready, each time
    damage: Damage
    left_out: str  # why the disk was never full; empty if it was
    trouble: list[str] = field(default_factory=list)  # why the history may not be complete

    @property
    def correct(self) -> bool:
        """Whether every promise held, and all clients were there to see it."""
        return not (self.verdicts.broken or self.damage.broken or self.trouble)


class Run:
    """Shakes a node until it was killed often enough, and checks the history."""

    def __init__(
        self, folder: Path, kills: int, seed: int, left_out: str, say: Callable[[str], None]
    ) -> None:
        self._folder = folder
        self._kills = kills
        self._seed = seed
        self._left_out = left_out
        self._say = say
        self._clients = Clients(folder, {0: STATION})
        self.done = 0  # kills so far

    def perform(self) -> Shaken:
        """All processes that were started have ended when this returns."""
        with ExitStack() as stack:
            disk = None
            if not self._left_out:
                disk = SmallDisk(self._folder / "disk")
                stack.callback(disk.close)
            data = (self._folder if disk is None else disk.path) / "data"
            node = OneNode(self._folder, data)
            stack.callback(node.close)
            stack.enter_context(self._clients.at_work(lambda _: node.url, lambda _: []))
            started = time.monotonic()
            shaker = Shaker(node, disk, self._seed, self._say)
            while shaker.kills < self._kills:
                time.sleep(CALM_SECONDS)
                shaker.shake()
                self.done = shaker.kills
                self._clients.check()
            seconds = time.monotonic() - started
            self._say("producers rest; waiting until everything is consumed")
            self._clients.come_to_rest(node.url)
            node.stop()
        damager = Damager(self._folder, self._seed, self._say)
        for _ in range(max(self._kills // KILLS_A_DAMAGE, 1)):
            damager.round()
        self._say("checking the history")
        return Shaken(
            self._seed, Verdicts.of(self._clients.history, shaker.periods, seconds), shaker.kills,
            shaker.counts, node.starts, damager.found, self._left_out, self._clients.trouble,
        )  # fmt: skip

    @property
    def progress(self) -> tuple[int, int]:
        """Messages acknowledged to consumers, and read from the topic, so far."""
        return self._clients.progress
