"""What goes wrong in a cluster, and when: drawn from the world's chance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

from penstock.errors import InvalidError
from penstock.sim.cluster.cluster import Cluster
from penstock.sim.cluster.host import NodeHost
from penstock.sim.cluster.process import ClientProcess
from penstock.sim.host import SYNC_US
from penstock.sim.network import TYPICAL_US
from penstock.store.locations import JOURNAL, SHARD

EVERY_US = 7_000_000  # a fault, roughly
PARTED_US = (1_000_000, 14_000_000)
DOWN_US = (50_000, 9_000_000)
MORE_NODES = 2  # that may join, at most, beyond those that there were at first
LEAST_STAYING = 2  # drains may overlap, but somebody must take what the others have
FLIP_QUIET_US = 25_000_000
CLOCK_US = 5_000_000  # by so much a clock is wrong after a restart, at most


@dataclass(frozen=True)
class Faults:
    """Which kinds of faults happen."""

    disk: bool = False
    net: bool = False
    crash: bool = False
    pause: bool = False
    clock: bool = False
    members: bool = False

    @classmethod
    def named(cls, text: str) -> Faults:
        """all, none, or a list like disk,net; InvalidError for anything else."""
        known = [field.name for field in fields(cls)]
        if text in ("all", "none"):
            return cls(*[text == "all"] * len(known))
        wanted = text.split(",")
        if unknown := sorted(set(wanted) - set(known)):
            given = ", ".join(unknown)
            raise InvalidError(f"faults {given!r}: use all, none, or some of {','.join(known)}")
        return cls(*(name in wanted for name in known))


class Injector:
    """Breaks things until it is stopped, then makes all of them whole."""

    def __init__(
        self, cluster: Cluster, faults: Faults, clients: Sequence[ClientProcess], nodes: int
    ) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.clients = clients
        self.injected = self.partitions = self.flips = 0
        self._most = nodes + MORE_NODES
        self._least = nodes - 1
        self._stopped = False
        self._quiet_until_us = 0
        self._part = 0  # which partition this is
        self._kinds = self._choose(faults)

    def _choose(self, faults: Faults) -> list[Callable[[], None]]:
        kinds: list[Callable[[], None]] = []
        if faults.net:
            kinds += [self._isolate, self._isolate, self._halve, self._one_way, self._pair]
            kinds += [self._cut, self._slow, self._kill_client]
        if faults.crash:
            kinds += [self._kill, self._kill, self._lose_power, self._die_soon, self._lose_two]
        if faults.pause:
            kinds += [self._pause, self._pause]
        if faults.clock:
            kinds.append(self._wrong_clock)
        if faults.disk:
            kinds += [self._fill, self._break_disk, self._flip, self._slow_disk]
        if faults.members:
            kinds += [self._join, self._drain, self._roll]
        return kinds

    def start(self) -> None:
        """Faults from now on."""
        if self._kinds:
            self.world.after(self.world.latency(EVERY_US), self._next)

    def stop(self) -> None:
        """No more faults; what is still broken heals."""
        self._stopped = True
        network = self.cluster.network
        network.part(())
        network.slow, network.typical_us = 0.0, TYPICAL_US
        for host in self.cluster.members():
            host.sync_us = SYNC_US
            host.disk.full_until_us = host.disk.failing_until_us = 0
            host.disk.live_on()

    def _next(self) -> None:
        if self._stopped:
            return
        if self.world.now_us >= self._quiet_until_us:
            self.injected += 1
            self.world.random.choice(self._kinds)()
        self.world.after(self.world.latency(EVERY_US), self._next)

    def _someone(self) -> NodeHost:
        return self.world.random.choice(self.cluster.members())

    # --- network and clients ---------------------------------------------------------------

    def _numbers(self) -> list[int]:
        return [host.number for host in self.cluster.members()]

    def _separate(self, ways: set[tuple[int, int]], text: str) -> None:
        self.partitions += 1
        self._part += 1
        part = self._part
        for_us = self.world.between(*PARTED_US)
        self.world.note(f"{text} for {for_us / 1e6:.1f} s")
        self.cluster.network.part(ways)

        def heal() -> None:
            if part == self._part and not self._stopped:
                self.world.note("the partition heals")
                self.cluster.network.part(())

        self.world.after(for_us, heal)

    def _isolate(self) -> None:
        known = self.cluster.map()
        number = self._someone().number
        if known is not None and self.world.chance(0.5):  # one that has much to lose
            number = self.world.random.choice(known.shards).owner
        others = [other for other in self._numbers() if other != number]
        ways = {way for other in others for way in ((number, other), (other, number))}
        self._separate(ways, f"node {number} is cut off")

    def _halve(self) -> None:
        numbers = self._numbers()
        here = set(self.world.random.sample(numbers, len(numbers) // 2))
        ways = {(a, b) for a in numbers for b in numbers if (a in here) != (b in here)}
        self._separate(ways, f"{sorted(here)} and the others are parted")

    def _one_way(self) -> None:
        number = self._someone().number
        others = [other for other in self._numbers() if other != number]
        chosen = self.world.random.sample(others, self.world.between(1, len(others)))
        if self.world.chance(0.5):
            ways = {(number, other) for other in chosen}
            self._separate(ways, f"nothing gets from node {number} to {sorted(chosen)}")
        else:
            ways = {(other, number) for other in chosen}
            self._separate(ways, f"nothing gets to node {number} from {sorted(chosen)}")

    def _pair(self) -> None:
        one, two = self.world.random.sample(self._numbers(), 2)
        self._separate({(one, two), (two, one)}, f"nodes {one} and {two} are parted")

    def _cut(self) -> None:
        count = self.cluster.network.cut_any()
        self.world.note(f"{count} links and connections are cut")

    def _slow(self) -> None:
        network = self.cluster.network
        network.slow = self.world.random.choice([0.02, 0.1, 0.3])
        network.typical_us = self.world.random.choice([TYPICAL_US, 3000, 30_000])
        self.world.note(f"{network.slow:.0%} of messages are late, others by {network.typical_us}")
        self.world.after(self.world.between(1_000_000, 8_000_000), self._quick)

    def _quick(self) -> None:
        self.cluster.network.slow, self.cluster.network.typical_us = 0.0, TYPICAL_US

    def _kill_client(self) -> None:
        self.world.random.choice(self.clients).crash(self.world.between(10_000, 4_000_000))

    # --- nodes -----------------------------------------------------------------------------

    def _kill(self) -> None:
        self._someone().crash(power_loss=False, down_us=self.world.between(*DOWN_US))

    def _lose_power(self) -> None:
        self._someone().crash(power_loss=True, down_us=self.world.between(*DOWN_US))

    def _lose_two(self) -> None:
        """More than the in-sync set survives: what is acknowledged must come back with them."""
        members = self.cluster.members()
        for host in self.world.random.sample(members, min(2, len(members))):
            host.crash(self.world.chance(0.5), self.world.between(*DOWN_US))

    def _die_soon(self) -> None:
        """In the middle of one of the next disk calls, whoever makes it."""
        host = self._someone()
        host.dies_with_power = self.world.chance(0.5)
        host.disk.die_in = self.world.between(1, 40)

    def _pause(self) -> None:
        host, for_us = self._someone(), self.world.between(100_000, 6_000_000)
        self.world.note(f"{host.name} is paused for {for_us / 1e6:.1f} s")
        host.pause(for_us)

    def _wrong_clock(self) -> None:
        host = self._someone()
        host.crash(self.world.chance(0.5), self.world.between(50_000, 2_000_000))
        host.jump_clock(self.world.between(-CLOCK_US, CLOCK_US))

    # --- disks -----------------------------------------------------------------------------

    def _fill(self) -> None:
        host = self._someone()
        host.disk.full_until_us = self.world.now_us + self.world.between(100_000, 5_000_000)
        self.world.note(f"the disk of {host.name} is full")

    def _slow_disk(self) -> None:
        host = self._someone()
        host.sync_us = self.world.random.choice([20_000, 100_000, 400_000])
        self.world.note(f"a sync of {host.name} takes {host.sync_us / 1e3:g} ms")

        def quick() -> None:
            host.sync_us = SYNC_US

        self.world.after(self.world.between(2_000_000, 10_000_000), quick)

    def _break_disk(self) -> None:
        host = self._someone()
        disk = host.disk
        disk.failing_until_us = self.world.now_us + self.world.between(100_000, 4_000_000)
        disk.failure_rate = self.world.random.choice([0.05, 0.3, 1.0])
        self.world.note(f"the disk of {host.name} fails {disk.failure_rate:.0%} of its calls")

    def _flip(self) -> None:
        """Bits of a node's files change while it is down. All else is well, and stays so for a
        while: what one disk has lost only the others have. And they are a majority, or nobody
        could take the place of a node that does not start any more."""
        few = len(self.cluster.members()) < 3
        if few or not self.cluster.whole or self.cluster.network.blocked:
            return
        host = self._someone()
        host.damage_expected = True
        host.crash(power_loss=False, down_us=self.world.between(4_000_000, 6_000_000))
        self._quiet_until_us = self.world.now_us + FLIP_QUIET_US
        names = sorted(name for name in host.disk.names() if name.startswith((JOURNAL, SHARD)))
        for _ in range(self.world.between(1, 3)):
            name = self.world.random.choice(names)
            used = len(host.disk.inodes[name].data.rstrip(b"\0"))
            at = self.world.between(0, max(used - 1, 0))
            host.disk.flip(name, at)
            self.flips += 1
            self.world.note(f"a bit of {name} of {host.name} flips at {at}")

    # --- members ---------------------------------------------------------------------------

    def _join(self) -> None:
        if len(self.cluster.members()) < self._most:
            self.cluster.join()

    def _drain(self) -> None:
        members, draining = self._numbers(), self.cluster.draining
        staying = [number for number in members if number not in draining]
        if len(members) > max(self._least, 3) and len(staying) > LEAST_STAYING:
            self.cluster.drain(self.world.random.choice(staying))

    def _roll(self) -> None:
        """A rolling restart: one after the other, each when the one before is back."""
        self.world.note("a rolling restart begins")
        self._roll_on([host.number for host in self.cluster.members()], 60)

    def _roll_on(self, numbers: list[int], patience: int) -> None:
        if self._stopped or not numbers or not patience:
            return
        if self.cluster.whole:
            self.cluster.restart(numbers[0], self.world.between(100_000, 1_500_000))
            numbers = numbers[1:]
            self.world.after(4_000_000, lambda: self._roll_on(numbers, 60))
        else:
            self.world.after(1_000_000, lambda: self._roll_on(numbers, patience - 1))
