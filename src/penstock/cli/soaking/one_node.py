"""The node that is broken, and the proxy that its clients go through."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

from penstock.cli.benchmarks.processes import START_SECONDS, Child
from penstock.cli.faulting.clients import Works

_LOOK_SECONDS = 0.0005
STATION: Works = (
    ("produce", 1), ("produce", 2), ("consume", 1), ("consume", 2), ("publish", 1), ("read", 1),
    ("count", 1), ("count", 2),
)  # fmt: skip


class OneNode:
    """A node process on one data directory, started again and again at the same address.

    `address` is the proxy's: what clients connect to. `direct` is the node's own.
    """

    def __init__(self, folder: Path, data: Path) -> None:
        self._folder = folder
        self.data = data
        self.shift = 0.0  # of its wall clock, from the next start on, in seconds
        self.starts: list[float] = []  # seconds that each took
        self.direct = "127.0.0.1:0"
        self._node = self._started()
        self.direct = self._node.line.removeprefix("penstock://")
        self._proxy = Child(
            "penstock.cli.soaking.proxy", self.direct, log=folder / "proxy.log", aside=True
        )
        self.url = f"penstock://{self._proxy.line}"

    @property
    def pid(self) -> int:
        """Of the node."""
        return self._node.pid

    @property
    def running(self) -> bool:
        """Whether both processes are there."""
        return self._node.running and self._proxy.running

    def _started(self) -> Child:
        node = self._begin(START_SECONDS)
        self.starts.append(node.start_seconds)
        return node

    def _begin(self, patience: float) -> Child:
        return Child(
            "penstock.cli.soaking.hasty_node", "--data", str(self.data), "--listen", self.direct,
            "--shift", str(self.shift), log=self._folder / "node.log", patience=patience,
            aside=True,
        )  # fmt: skip

    def start(self) -> None:
        """On the same directory; it is ready when this returns."""
        self._node = self._started()

    def start_and_kill(self, seconds: float) -> bool:
        """SIGKILL so soon after a start; whether it was not ready yet."""
        try:
            node = self._begin(seconds)
        except RuntimeError:  # killed, because it was not ready in time
            return True
        node.kill()
        return False

    def kill(self) -> None:
        """SIGKILL."""
        self._node.kill()

    def stop(self) -> None:
        """SIGTERM; returns when it has ended."""
        self._node.stop()

    def pause(self, seconds: float) -> None:
        """SIGSTOP, and SIGCONT so much later."""
        self._node.send(signal.SIGSTOP)
        time.sleep(seconds)
        self._node.send(signal.SIGCONT)

    def order(self, text: str) -> None:
        """Has the proxy do something."""
        self._proxy.say(text)
        if self._proxy.answer() != "done":
            raise RuntimeError("the proxy does not obey; see proxy.log")

    def wait_for_file(self, kind: str, seconds: float) -> bool:
        """Whether a new data file of a kind has appeared within so many seconds."""
        before = self._names(kind)
        return _wait(lambda: not self._names(kind) <= before, seconds)

    def _names(self, kind: str) -> set[str]:
        return {path.name for path in self.data.glob(f"{kind}-*")}

    def close(self) -> None:
        """Ends both processes."""
        self._node.kill()
        self._proxy.kill()


def _wait(holds: Callable[[], bool], seconds: float) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if holds():
            return True
        time.sleep(_LOOK_SECONDS)
    return False


def some_seconds(chance: random.Random, least: float, most: float) -> float:
    """Short ones are as likely as long ones of ten times the length."""
    return float(least * (most / least) ** chance.random())
