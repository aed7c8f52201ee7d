"""The members of the group: processes that are started, asked to leave, paused and killed."""

from __future__ import annotations

import json
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.cli.benchmarks.processes import Child
from penstock.cli.grouping.load import GROUP, HANDLER, LATE, RESULTS, TOPIC

LEAVE_SECONDS = 40.0  # a member gives up waiting for answers after 30
_READ_SECONDS = 5.0
_STATUS_SECONDS = 5.0
_LOOK_SECONDS = 0.05


@dataclass(frozen=True)
class Terms:
    """What all members are started with. Times in seconds."""

    url: str
    guarantee: str
    lease: float
    commit_every: float

    @property
    def arguments(self) -> list[str]:
        """Of `penstock`."""
        return [
            "consume", HANDLER, "--group", GROUP, "--topic", TOPIC, "--to", f"queue:{RESULTS}",
            "--late-to", f"queue:{LATE}", "--guarantee", self.guarantee, "--url", self.url,
            "--lease", f"{self.lease:g}s", "--commit-every", f"{self.commit_every:g}s", "--json",
        ]  # fmt: skip


class Member(Child):
    """A process of `penstock consume` that has joined. `status` is the last thing that it said of
    itself: about a second old if it was killed."""

    _reader: threading.Thread | None = None

    def __init__(self, number: int, terms: Terms, folder: Path) -> None:
        self.number = number
        self.status: dict[str, Any] = {}
        super().__init__(
            "penstock.cli.app", *terms.arguments, "--name", f"member-{number}",
            log=folder / f"member-{number}.log", aside=True,
        )  # fmt: skip
        self.id: str = json.loads(self.line)["id"]
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._popen.stdout is not None
        for line in self._popen.stdout:
            if line.endswith(b"\n"):  # not cut off by a kill
                self.status = json.loads(line)

    def pause(self) -> None:
        """SIGSTOP."""
        self.send(signal.SIGSTOP)

    def wake(self) -> None:
        """SIGCONT."""
        self.send(signal.SIGCONT)

    def ask_to_leave(self) -> None:
        """SIGTERM."""
        self.send(signal.SIGTERM)

    def has_left(self) -> bool:
        """Waits until it has ended; whether it did so in time, and without an error."""
        code = self.wait(LEAVE_SECONDS)
        self.kill()
        return code == 0

    def _ended(self) -> None:
        self._popen.wait(LEAVE_SECONDS)
        if self._reader is not None:
            self._reader.join(_READ_SECONDS)
        super()._ended()


class Members:
    """Those who are there now, in the order of their coming, and all who ever were."""

    def __init__(self, terms: Terms, folder: Path) -> None:
        self._terms, self._folder = terms, folder
        self.all: list[Member] = []
        self.here: list[Member] = []

    def add(self) -> Member:
        """One more; it has joined when this returns."""
        member = Member(len(self.all) + 1, self._terms, self._folder)
        self.all.append(member)
        self.here.append(member)
        return member

    def ended(self) -> list[int]:
        """Those who ended without being asked to."""
        return [member.number for member in self.here if not member.running]

    def refresh(self) -> None:
        """Waits until all who are here have said something new of themselves, or some seconds."""
        now_us = time.time_ns() // 1000
        until = time.monotonic() + _STATUS_SECONDS
        while time.monotonic() < until and any(
            each.status.get("at_us", 0) < now_us for each in self.here
        ):
            time.sleep(_LOOK_SECONDS)

    def total(self, figure: str) -> int:
        """The sum of a figure over all who ever were."""
        return sum(each.status.get(figure, 0) for each in self.all)

    def leave_all(self) -> list[int]:
        """All leave at once; the numbers of those who did not leave in order."""
        for member in self.here:
            member.ask_to_leave()
        bad = [member.number for member in self.here if not member.has_left()]
        self.here = []
        return bad

    def close(self) -> None:
        """Ends whoever is left."""
        for member in self.all:
            member.kill()
