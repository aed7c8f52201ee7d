"""What is done to the node, drawn from one seed."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from penstock.cli.faulting.queue_work import LEASE_SECONDS
from penstock.cli.soaking.one_node import OneNode, some_seconds
from penstock.cli.soaking.small_disk import SmallDisk
from penstock.store.locations import JOURNAL

UNFINISHED = "t"  # a checkpoint that is being written
PATIENCE_SECONDS = 6.0  # for the moment at which the node is to be killed
AWAY_SECONDS = 0.3  # at most, between a kill and the next start
BEHIND_SECONDS, AHEAD_SECONDS = 7200.0, 600.0  # of the clock; an idle producer is known for 900

Period = tuple[int, int]
"""Of a fault: when it began, and when nothing was broken any more."""


class Action(NamedTuple):
    """Something that can be done, and how often it is, compared with the others."""

    act: Callable[[], str]
    weight: float


class Shaker:
    """Breaks one node. `counts`: what was done, and how often; `kills`: how often it was killed."""

    def __init__(
        self, node: OneNode, disk: SmallDisk | None, seed: int, say: Callable[[str], None]
    ) -> None:
        self._node = node
        self._disk = disk
        self._chance = random.Random(seed)
        self._say = say
        self.counts: Counter[str] = Counter()
        self.periods: list[Period] = []
        self.kills = 0
        self._actions = [
            Action(self._kill, 4),
            Action(self._kill_recovering, 2),
            Action(lambda: self._kill_at(UNFINISHED, "in a checkpoint"), 2),
            Action(lambda: self._kill_at(JOURNAL, "at a change of segments"), 2),
            Action(self._kill_and_turn_clock, 1),
            Action(self._stop, 1),
            Action(self._pause, 0.5),
            Action(self._cut, 1),
            Action(self._hold, 0.5),
            Action(self._delay, 0.5),
        ]
        if disk is not None:
            self._actions.append(Action(self._fill, 1))

    def shake(self) -> None:
        """One thing more; the node is at work when this returns."""
        weights = [action.weight for action in self._actions]
        (action,) = self._chance.choices(self._actions, weights)
        begun_ns = time.monotonic_ns()
        label = action.act()
        self.periods.append((begun_ns, time.monotonic_ns()))
        self.counts[label] += 1
        self._say(label)

    def _seconds(self, least: float, most: float) -> float:
        return some_seconds(self._chance, least, most)

    def _away(self) -> None:
        self.kills += 1
        time.sleep(self._seconds(0.001, AWAY_SECONDS))

    def _kill(self) -> str:
        time.sleep(self._seconds(0.01, 1.0))
        self._node.kill()
        self._away()
        self._node.start()
        return "killed"

    def _kill_recovering(self) -> str:
        """The first kill is while it works; more follow before it is ready again."""
        self._node.kill()
        self._away()
        again = self._chance.randint(1, 3)
        early = sum(self._node.start_and_kill(self._seconds(0.2, 0.5)) for _ in range(again))
        self.kills += again
        self._node.start()
        return "killed while it recovered" if early else "killed"

    def _kill_at(self, kind: str, moment: str) -> str:
        met = self._node.wait_for_file(kind, PATIENCE_SECONDS)
        time.sleep(self._seconds(0.0001, 0.01))
        self._node.kill()
        self._away()
        self._node.start()
        return f"killed {moment}" if met else "killed"

    def _kill_and_turn_clock(self) -> str:
        """The wall clock is another one after the start: hours behind, or minutes ahead."""
        self._node.kill()
        self._away()
        self._node.shift = self._chance.uniform(-BEHIND_SECONDS, AHEAD_SECONDS)
        self._node.start()
        return "killed, and the clock turned"

    def _stop(self) -> str:
        self._node.stop()
        self._node.start()
        return "stopped and started"

    def _pause(self) -> str:
        self._node.pause(LEASE_SECONDS + 1.0)
        return "paused for longer than the leases"

    def _cut(self) -> str:
        for _ in range(self._chance.randint(1, 3)):
            self._node.order("cut")
            time.sleep(self._seconds(0.01, 1.0))
            self._node.order("carry")
            time.sleep(self._seconds(0.01, 0.3))
        return "connections reset"

    def _hold(self) -> str:
        self._node.order("hold")
        time.sleep(self._seconds(0.5, LEASE_SECONDS + 1.0))
        self._node.order("carry")
        return "connections silent"

    def _delay(self) -> str:
        self._node.order(f"delay {self._seconds(0.01, 0.5):.3f}")
        time.sleep(2.0)
        self._node.order("carry")
        return "connections slow"

    def _fill(self) -> str:
        assert self._disk is not None
        self._disk.fill()
        time.sleep(self._seconds(0.5, 3.0))
        if self._chance.random() < 0.5:
            self._node.kill()
            self._away()
            self._disk.free()
            self._node.start()
            return "disk full, and killed"
        self._disk.free()
        return "disk full"
