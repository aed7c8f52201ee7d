"""What goes wrong, and when: drawn from the world's chance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.errors import InvalidError
from penstock.sim.actors import Process
from penstock.sim.host import Host
from penstock.sim.network import TYPICAL_US, Network
from penstock.sim.world import World

EVERY_US = 1_200_000  # a fault, roughly


@dataclass(frozen=True)
class Faults:
    """Which kinds of faults happen."""

    disk: bool = False
    net: bool = False
    crash: bool = False

    @classmethod
    def named(cls, text: str) -> Faults:
        """all, none, or a list like disk,net; InvalidError for anything else."""
        if text == "all":
            return cls(True, True, True)
        if text == "none":
            return cls()
        wanted = set(text.split(","))
        if unknown := wanted - {"disk", "net", "crash"}:
            given = ", ".join(sorted(unknown))
            raise InvalidError(f"faults {given!r}: use all, none, or some of disk,net,crash")
        return cls("disk" in wanted, "net" in wanted, "crash" in wanted)


class Injector:
    """Breaks things until it is stopped, then makes all of them whole."""

    def __init__(
        self, world: World, faults: Faults, network: Network, host: Host, processes: list[Process]
    ) -> None:
        self.world = world
        self.network = network
        self.host = host
        self.processes = processes
        self.injected = 0
        self._stopped = False
        self._kinds = self._choose(faults)

    def _choose(self, faults: Faults) -> list[Callable[[], None]]:
        kinds: list[Callable[[], None]] = []
        if faults.net:
            kinds += [self._cut, self._cut, self._slow, self._kill_client, self._kill_client]
            kinds.append(self._stall)
        if faults.crash:
            kinds += [self._crash, self._die_soon, self._die_writing, self._pause]
            kinds.append(self._restart_badly)
        if faults.disk:
            kinds += [self._fill, self._break_disk]
        return kinds

    def start(self) -> None:
        """Faults from now on."""
        if self._kinds:
            self.world.after(self.world.latency(EVERY_US), self._next)

    def stop(self) -> None:
        """No more faults; what is still broken heals."""
        self._stopped = True
        self.host.disk.full_until_us = self.host.disk.failing_until_us = 0
        self.host.disk.live_on()
        self.network.typical_us = TYPICAL_US

    def _next(self) -> None:
        if self._stopped:
            return
        self.injected += 1
        self.world.random.choice(self._kinds)()
        self.world.after(self.world.latency(EVERY_US), self._next)

    # --- network and clients ---------------------------------------------------------------

    def _cut(self) -> None:
        count = self.network.cut_some(self.world.random.choice([0.2, 0.6, 1.0]))
        self.world.note(f"{count} connections are cut")

    def _slow(self) -> None:
        self.network.typical_us = self.world.between(5_000, 400_000)
        self.world.note(f"the network takes {self.network.typical_us} us")
        self.world.after(self.world.between(200_000, 3_000_000), self._quick)

    def _quick(self) -> None:
        self.network.typical_us = TYPICAL_US

    def _kill_client(self) -> None:
        self.world.random.choice(self.processes).crash(self.world.between(10_000, 2_000_000))

    def _stall(self) -> None:
        self.host.stall(self.world.between(10_000, 2_000_000))

    # --- node ------------------------------------------------------------------------------

    def _crash(self) -> None:
        self.host.crash(self.world.chance(0.6), self.world.between(10_000, 3_000_000))

    def _die_soon(self) -> None:
        """In the middle of one of the next disk calls, whoever makes it."""
        self.host.dies_with_power = self.world.chance(0.6)
        self.host.disk.die_in = self.world.between(1, 40)

    def _die_writing(self) -> None:
        """In the middle of one of the next large writes: several records, and some are cut off."""
        self.host.dies_with_power = self.world.chance(0.3)
        self.host.disk.die_writing = self.world.random.choice([500, 1000, 2000])

    def _pause(self) -> None:
        for_us = self.world.between(100_000, 5_000_000)
        self.world.note(f"the node is paused for {for_us} us")
        self.host.pause(for_us)

    def _restart_badly(self) -> None:
        """It comes back with a wrong clock, and may die again while it recovers."""
        self.host.crash(self.world.chance(0.6), self.world.between(10_000, 500_000))
        self.host.jump_clock(self.world.between(-20_000_000, 20_000_000))
        if self.world.chance(0.5):
            self.host.dies_with_power = self.world.chance(0.6)
            self.host.disk.die_in = self.world.between(1, 6)

    # --- disk ------------------------------------------------------------------------------

    def _fill(self) -> None:
        self.host.disk.full_until_us = self.world.now_us + self.world.between(1000, 3_000_000)
        self.world.note("the disk is full")

    def _break_disk(self) -> None:
        disk = self.host.disk
        disk.failing_until_us = self.world.now_us + self.world.between(1000, 2_000_000)
        disk.failure_rate = self.world.random.choice([0.05, 0.3, 1.0])
        self.world.note(f"the disk fails {disk.failure_rate:.0%} of its calls")
