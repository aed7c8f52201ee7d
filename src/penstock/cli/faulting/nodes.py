"""The nodes of the cluster that is broken: processes that are started, killed, stopped, paused."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.cli.benchmarks.processes import NodeProcess
from penstock.cli.cluster import ask_status, change_cluster
from penstock.cli.faulting.network import Network
from penstock.errors import DeadlineError, PenstockError, UnavailableError

LOOK_SECONDS = 0.1
WHOLE_SECONDS = 180.0
STILL_SECONDS = 1.5

Status = dict[str, Any]


class Nodes:
    """Numbered from 1, which founds the cluster; each gets its number as its id, as they join one
    after the other. `away`: those that cannot be asked anything now."""

    def __init__(self, folder: Path, network: Network) -> None:
        self._folder = folder
        self._network = network
        self._addresses: dict[int, str] = {}
        self._processes: dict[int, NodeProcess] = {}
        self.away: set[int] = set()

    @property
    def numbers(self) -> list[int]:
        """Those that are part of the cluster."""
        return list(self._addresses)

    def url(self, first: int = 0) -> str:
        """All nodes, for clients; one of them may come first."""
        order = sorted(self._addresses, key=lambda number: (number != first, number))
        return "penstock://" + ",".join(self._addresses[number] for number in order)

    def start(self, number: int) -> None:
        """Starts a node, for the first time or again on the same directory and address."""
        known = self._addresses.get(number)
        options = self._network.listen(number)
        if not known:
            self._network.add(number)
            seed = self._addresses.get(1)
            options += ["--join", seed] if seed else ["--cluster"]
        elif not self._network.address(number):
            options = ["--listen", known]
        data = self._folder / f"node-{number}"
        inside = self._network.inside(number)
        node = NodeProcess(data, options=options, inside=inside, aside=True)
        self._processes[number] = node
        self._addresses[number] = self._network.address(number) or node.address
        self.away.discard(number)

    def kill(self, number: int) -> None:
        """SIGKILL."""
        self.away.add(number)
        self._processes[number].kill()

    def stop(self, number: int) -> None:
        """SIGTERM; returns when it has ended."""
        self.away.add(number)
        self._processes[number].stop()

    def pause(self, number: int) -> None:
        """SIGSTOP."""
        self.away.add(number)
        self._processes[number].send(signal.SIGSTOP)

    def resume(self, number: int) -> None:
        """SIGCONT."""
        self._processes[number].send(signal.SIGCONT)
        self.away.discard(number)

    def cut(self, number: int) -> None:
        """From all others."""
        self.away.add(number)
        self._network.cut(number)

    def heal(self, number: int) -> None:
        """It is connected again."""
        self._network.heal(number)
        self.away.discard(number)

    def drop(self, number: int) -> None:
        """Forgets a node that was removed; it ends by itself."""
        self._processes.pop(number).stop()
        del self._addresses[number]

    def status(self) -> Status:
        """As a node knows it that is not away."""
        return ask_status(",".join(self._there))

    @property
    def _there(self) -> list[str]:
        return [self._addresses[n] for n in self._addresses if n not in self.away]

    def leader(self) -> int:
        """Who leads the control plane."""
        found = self.wait("somebody leads", lambda status: status["consensus"]["leader"])
        return int(found["consensus"]["leader"])

    def change(self, action: str, number: int) -> None:
        """Has something done to a node by the cluster; tried again until a majority decides it."""
        until = time.monotonic() + WHOLE_SECONDS
        while True:
            try:
                change_cluster(action, number, self.url())
                return
            except UnavailableError:
                if time.monotonic() >= until:
                    raise
            time.sleep(LOOK_SECONDS)

    def wait(
        self, what: str, holds: Callable[[Status], object], seconds: float = WHOLE_SECONDS
    ) -> Status:
        """The status as soon as something holds. DeadlineError if it does not."""
        until = time.monotonic() + seconds
        problem: object = "it does not"
        while True:
            try:
                found = self.status()
                if holds(found):
                    return found
                problem = found["rows"] or problem
            except PenstockError as error:
                problem = error
            if time.monotonic() >= until:
                raise DeadlineError(f"not within {seconds:g} s: {what}: {problem}")
            time.sleep(LOOK_SECONDS)

    def wait_until_whole(self) -> None:
        """Every node has its part, and every shard its copies, as all nodes know it: one that was
        away may still see what was before. And nothing moves any more: the map is an old one."""
        wanted = set(self._addresses)
        versions: dict[int, float] = {}  # when each was first seen

        def is_whole(status: Status) -> bool:
            owns = {n["id"]: n["owns"] for n in status["nodes"] if n["status"] == "up"}
            return wanted <= owns.keys() and all(owns.values()) and not status["rows"]

        def is_still(status: Status) -> bool:
            since = versions.setdefault(status["version"], time.monotonic())
            return is_whole(status) and time.monotonic() - since >= STILL_SECONDS

        self.wait(
            "all nodes have their part",
            lambda status: is_still(status) and all(map(is_whole, map(ask_status, self._there))),
        )

    def ended(self) -> list[int]:
        """Nodes that have ended although nobody asked them to."""
        return [n for n, each in self._processes.items() if n not in self.away and not each.running]

    def close(self) -> None:
        """Ends all processes at once: what they have is not needed any more."""
        for node in self._processes.values():
            node.kill()
        self._processes.clear()
