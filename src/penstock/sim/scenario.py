"""One run: a node, its clients, faults, the last act, and the checks."""

from __future__ import annotations

from penstock.sim.actors import Process, Stage
from penstock.sim.disk import SimDisk
from penstock.sim.drain import Drain
from penstock.sim.faults import Faults, Injector
from penstock.sim.history import History
from penstock.sim.host import Host, Size
from penstock.sim.network import Network
from penstock.sim.parts import PARTS, chosen_parts, processes_of
from penstock.sim.report import Verdict
from penstock.sim.world import START_US, World

CALM_US = 3_000_000  # after the last fault: everybody is back
LATE_US = 60_000_000  # a call that has begun takes no longer
DRAIN_US = 900_000_000


class Scenario:
    """Everything of one run. Build it, `run` it, read the verdict.

    `parts` are names of `PARTS`; without any the seed chooses.
    """

    def __init__(
        self, seed: int, minutes: float, faults: str, parts: str = "", size: Size | None = None
    ) -> None:
        self.seed = seed
        self.minutes = minutes
        self.faults = faults
        self.world = World(seed)
        self.parts = chosen_parts(self.world, parts)
        self.network = Network(self.world)
        self.disk = SimDisk(self.world)
        self.host = Host(self.world, "node", self.disk, size or Size())
        self.history = History(trouble=self.host.trouble)
        self.stage = Stage(self.world, self.network, self.host, self.history)
        self.processes = processes_of(self.stage, self.parts)
        self.injector = Injector(
            self.world, Faults.named(faults), self.network, self.host, self.processes
        )
        self.drain = Drain(self.stage, [s for name in self.parts for s in PARTS[name].streams])

    def run(self) -> Verdict:
        """Work and faults, then quiet, then the last act."""
        world = self.world
        self.host.start()
        for process in self.processes:
            world.after(world.between(1000, 200_000), process.start)
        self.injector.start()
        work_us = int(self.minutes * 60e6)
        world.run(START_US + work_us // 2, self._broken)
        self.stage.half = True
        world.run(START_US + work_us, self._broken)
        world.note("the work is over, and nothing breaks any more")
        self.stage.over = True
        self.injector.stop()
        self.rest()
        world.run(world.now_us + CALM_US, self._broken)
        world.run(world.now_us + LATE_US, lambda: self._at_rest() or self._broken())
        last = Process(self.stage, "last", self.drain.run)
        last.start()
        self.processes.append(last)
        world.run(world.now_us + DRAIN_US, lambda: self.drain.done or self._broken())
        return self._verdict()

    def rest(self) -> None:
        """Between the work and the last act."""

    def _at_rest(self) -> bool:
        """Whether nobody is at anything: what is pushed after the last act would be missing."""
        clients = (process.client for process in self.processes)
        return not any(client.scripts for client in clients if client is not None and client.alive)

    def _broken(self) -> bool:
        return self._breakage() is not None

    def _breakage(self) -> str | None:
        if self.host.broken is not None:
            return self.host.broken
        clients = (process.client for process in self.processes)
        return next((c.broken for c in clients if c is not None and c.broken is not None), None)

    def _verdict(self) -> Verdict:
        problems = self.problems()
        figures = self._figures()
        self.world.note(f"{figures}")
        for problem in problems:
            self.world.note(problem.splitlines()[0])
        return Verdict(
            self.seed, self.faults, self.minutes, self.parts, problems, self.world.digest, figures,
            list(self.world.trace),
        )  # fmt: skip

    def problems(self) -> list[str]:
        """All promises that were broken."""
        self.host.check_books()
        if (breakage := self._breakage()) is not None:
            return [breakage]
        problems = [*self.host.miscounts]
        if not self.drain.done or self.drain.left is not None:
            problems.append(self.drain.left or "the last act did not end: something hangs")
        for name in self.parts:
            problems += PARTS[name].check(self.history)
        return problems

    def _figures(self) -> dict[str, int]:
        engine = self.host.engine
        maintenance = None if engine is None else engine.maintenance
        return {
            "events": self.world.events,
            "pushes": len(self.history.pushes),
            "deliveries": len(self.history.deliveries),
            "reads": len(self.history.reads),
            "table_calls": len(self.history.table),
            "transactions": len(self.history.transactions),
            "releases": len(self.history.releases),
            "upkeep": len(self.history.upkeep),
            "peeks": len(self.history.peeks),
            "events_heard": sum(len(watch.heard) for watch in self.history.watches),
            "sessions": len(self.history.sessions),
            "claims": len(self.history.claims),
            "publications": sum(each.told is not None for each in self.history.attempts),
            "reservations": len(self.history.holds),
            "tasks": len(self.history.graph),
            "gangs": len({(each.shard, each.grant) for each in self.history.seats}),
            "passes": len(self.history.passes),
            "faults": self.injector.injected,
            "crashes": len(self.host.trouble.crashes),
            "power_losses": len(self.host.trouble.power_losses),
            "disk_failures": self.disk.failures,
            "recoveries": self.host.recoveries,
            "checkpoints": self.host.checkpoints + (maintenance.checkpoints if maintenance else 0),
            "cleaned_files": self.host.cleaned_files
            + (maintenance.cleaned_files if maintenance else 0),
        }
