"""When a driver is killed: what its checkpoint and the node say, watched until it is time."""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import penstock
from penstock.errors import DeadlineError

LOOK_S = 0.004
PATIENCE_S = 240.0  # until something happens; Spark starts slowly on a busy machine
LATER_S = 2.5  # at most, of kills at any time

SKIPPED = 4  # micro-batches at most, before a driver is in danger
KINDS = ("published", "any time", "begun", "noted")
QUEUE_KINDS = ("published", "reserved", "any time", "begun", "noted")


class Seen(NamedTuple):
    """Numbers of micro-batches, -1 for none: begun and noted in the checkpoint, published in the
    node; and the last number that is reserved, which is that of its micro-batch."""

    begun: int
    noted: int
    published: int
    reserved: int


@dataclass(frozen=True)
class Kill:
    """One that was done."""

    kind: str
    seconds: float  # after the driver was started
    seen: Seen

    @property
    def unnoted(self) -> bool:
        """Whether the last publication is unknown to the checkpoint: it will be tried again."""
        return self.seen.published > self.seen.noted

    @property
    def unbegun(self) -> bool:
        """Whether something is reserved that the checkpoint does not know of."""
        return self.seen.reserved > self.seen.begun


class Watch:
    """Looks at one query, from outside."""

    def __init__(self, fabric: penstock.Fabric, checkpoint: Path, target: str, queue: str) -> None:
        self._fabric = fabric
        self._checkpoint = checkpoint
        self._ending = f":topic:{target}"
        self._queue = fabric.queue(queue) if queue else None

    def look(self) -> Seen:
        """How far it is."""
        noted = self._last("commits")
        own = [each for each in self._fabric.publications() if each.key.endswith(self._ending)]
        held = [] if self._queue is None else self._queue.reservations()
        published = max((each.number for each in own), default=-1)
        reserved = max((each.number for each in held), default=-1)
        # In this order: what is told last must not look older than what was told before.
        return Seen(self._last("offsets"), noted, published, reserved)

    def _last(self, log: str) -> int:
        folder = self._checkpoint / log
        names = folder.iterdir() if folder.exists() else ()
        return max((int(each.name) for each in names if each.name.isdigit()), default=-1)

    def wait(self, driver: subprocess.Popen[bytes], kind: str, chance: random.Random) -> bool:
        """Returns when it is time for a kill of this kind; False if the driver ended before."""
        skipped = self.look().noted + chance.randint(0, SKIPPED)
        if not self._until(driver, lambda now: now.noted >= skipped):
            return False
        first, holds = self.look(), _CONDITIONS[kind]
        if not self._until(driver, lambda now: holds(first, now)):
            return False
        time.sleep(chance.uniform(0, LATER_S if kind == "any time" else LOOK_S))
        return driver.poll() is None

    def _until(self, driver: subprocess.Popen[bytes], holds: Callable[[Seen], bool]) -> bool:
        until = time.monotonic() + PATIENCE_S
        while not holds(self.look()):
            if driver.poll() is not None:
                return False
            if time.monotonic() > until:
                raise DeadlineError(f"nothing happened for {PATIENCE_S:.0f} s")
            time.sleep(LOOK_S)
        return True


# Each run of the driver gets at least so far that it has done something new.
_CONDITIONS: dict[str, Callable[[Seen, Seen], bool]] = {
    "published": lambda first, now: now.published > max(first.published, now.noted),
    "any time": lambda first, now: now.begun > first.begun or now.noted > first.noted,
    "noted": lambda first, now: now.noted > first.noted,
    "begun": lambda first, now: now.begun > first.begun + 1
    or (now.begun > first.begun and now.begun > now.noted),
    "reserved": lambda first, now: now.reserved > max(now.begun, first.reserved),
}


def kinds_of(kills: int, kinds: Sequence[str], chance: random.Random) -> list[str]:
    """The kinds take turns, in an order by chance."""
    found = [kinds[number % len(kinds)] for number in range(kills)]
    chance.shuffle(found)
    return found
