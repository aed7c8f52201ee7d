"""Whether a node needs more and more of anything: push and pop at full rate for a long time, with
new starts in between; its memory, its open files and its directory are looked at all along."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from penstock.cli.benchmarks.processes import NodeProcess, anonymous_bytes
from penstock.cli.benchmarks.settings import Settings
from penstock.cli.benchmarks.space import directory_bytes, rush

MOST_WAITING = 500_000
MOST_STARTS = 10  # new ones in a run; every second one after a SIGKILL
CALM_SECONDS = 20.0  # between two of them, at least
SAMPLE_SECONDS = 1.0
PART = 0.2  # of the run: its second, when it is warm, and its last are compared
GROWTH = 1.25
LEAST_SECONDS = 600.0  # of a run that says something: a node that has just been started grows
SLACK = {"memory": 16 << 20, "files": 8, "directory": 256 << 20}
"""Beyond which growth counts."""


@dataclass
class Endurance:
    """What was seen, one figure for each sample."""

    seconds: float
    starts: list[float] = field(default_factory=list)  # seconds until it was ready
    consumed: int = 0
    samples: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in SLACK})

    def ends(self, name: str) -> tuple[float, float]:
        """The median when the node was warm, and that at the end of the run."""
        values = np.array(self.samples[name])
        part = max(int(len(values) * PART), 1)
        return float(np.median(values[part : 2 * part])), float(np.median(values[-part:]))

    @property
    def tells(self) -> bool:
        """Whether it was long enough to tell what grows."""
        return self.seconds >= LEAST_SECONDS

    @property
    def growing(self) -> list[str]:
        """What the node needs more and more of, if that can be told."""
        if not self.tells:
            return []
        return [
            name
            for name, slack in SLACK.items()
            if self.ends(name)[1] > self.ends(name)[0] * GROWTH + slack
        ]


def endure(folder: Path, seconds: float, say: Callable[[str], None]) -> Endurance:
    """Runs for so many seconds."""
    data = folder / "endurance"
    found = Endurance(seconds)
    node = NodeProcess(data, aside=True)
    try:
        with rush(node.url, Settings(), MOST_WAITING) as clients:
            started = time.monotonic()
            starts = min(MOST_STARTS, int(seconds / CALM_SECONDS))
            for number in range(1, starts + 2):
                until = started + seconds * number / (starts + 1)
                while time.monotonic() < until:
                    time.sleep(SAMPLE_SECONDS)
                    clients.check()
                    _sample(found, node.pid, data)
                    say(f"{clients.consumed:,} messages, {len(found.starts)} new starts")
                if number <= starts:
                    node = _again(found, node, data, kill=bool(number % 2))
            found.consumed = clients.consumed
    finally:
        node.kill()
    return found


def _again(found: Endurance, node: NodeProcess, data: Path, kill: bool) -> NodeProcess:
    if kill:
        node.kill()
    else:
        node.stop()
    again = NodeProcess(data, node.address, aside=True)
    found.starts.append(again.start_seconds)
    return again


def _sample(found: Endurance, pid: int, data: Path) -> None:
    found.samples["memory"].append(anonymous_bytes(pid))
    found.samples["files"].append(len(os.listdir(f"/proc/{pid}/fd")))
    found.samples["directory"].append(directory_bytes(data))
