"""Everything that can go wrong in a group, by chance, for a while."""

from __future__ import annotations

from penstock.consumers import claim_events as e
from penstock.consumers.simulation.group import Group, Weather

SECOND_US = 1_000_000
STORMY = Weather(latency_us=20_000, loss=0.05, twice=0.05)


class Storm:
    """Members come, crash, leave, drain and stand still; the node is away; messages get lost,
    come twice and out of order. About `every_us` something happens."""

    def __init__(self, group: Group, least: int, most: int, every_us: int = SECOND_US) -> None:
        self.group = group
        self.least = least
        self.most = most
        self.every_us = every_us
        self.happened = 0

    def blow(self, duration_us: int) -> None:
        """Lets it happen, and then has everybody run again and all messages arrive. At least
        `least` members stay in the end."""
        group, world = self.group, self.group.world
        calm, group.weather = group.weather, STORMY
        end_us = world.now_us + duration_us
        while world.now_us < end_us:
            world.run(min(end_us, world.now_us + world.between(1, 2 * self.every_us)))
            self._happen()
        group.weather = calm
        if group.node.down:
            group.node.restart()
        for host in group.live:
            host.resume()
        group.forget_gone()
        group.join(max(0, self.least - self._staying()))

    def _happen(self) -> None:
        group, world = self.group, self.group.world
        self.happened += 1
        few = max(1, len(group.live) // 20)
        room, spare = self.most - len(group.live), self._staying() - self.least
        what = world.random.choice(("join", "crash", "leave", "drain", "pause", "pause", "node"))
        if what == "join":
            group.join(min(room, few))
        elif what == "pause":
            for host in group.some(few):
                host.pause()
                world.after(world.between(SECOND_US // 2, 30 * SECOND_US), host.resume)
        elif what == "node":
            self._node_away()
        elif spare > 0:
            for host in group.some(min(spare, few)):
                self._go(what, host.member.id)

    def _staying(self) -> int:
        live = self.group.live
        return sum(host.member.drain is None and not host.claims.leaving for host in live)

    def _go(self, what: str, name: str) -> None:
        host = self.group.hosts[name]
        if what == "crash":
            host.crash()
        elif what == "leave":
            host.take(e.Leave())
        else:
            host.drain(self.group.world.between(0, 20) * SECOND_US)

    def _node_away(self) -> None:
        node, world = self.group.node, self.group.world
        if not node.down:
            node.down = True
            world.after(world.between(SECOND_US // 2, 15 * SECOND_US), self._node_back)

    def _node_back(self) -> None:
        if self.group.node.down:
            self.group.node.restart()
