"""The network of a cluster: what reaches what, links between nodes, connections of clients.

Every node is at a place of its own, and every client at the place of some node: who is parted from
a node is parted from the clients beside it. A partition is made of directions: one way may be dark
while the other is not. A dark connection is silent, not closed; nodes notice that after a while.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from penstock.cluster.map import Stated
from penstock.sim.network import CUT_NOTICED_US, Link, Listener, Network, Way
from penstock.sim.world import World

SILENCE_US = 3_000_000  # as the node's shell: a link on which nothing is heard for so long is cut
REDIAL_US = 200_000
CUT_AT_ONCE = 0.3  # how often a partition also closes the connections that it concerns

Messages = list[bytes]


class Peer(Protocol):
    """A node, as the links see it."""

    number: int

    @property
    def up(self) -> bool:
        """Whether it runs."""

    @property
    def paused(self) -> bool:
        """Whether it is stopped for a while."""

    def stated(self) -> Stated | None:
        """What it says of itself on a new link."""

    def linked(self, link: PeerLink) -> None:
        """There is a new link."""

    def unlinked(self, link: PeerLink) -> None:
        """It is over."""

    def hears(self, link: PeerLink, messages: Messages) -> None:
        """Messages of the other node."""


class PeerLink:
    """One connection between two nodes."""

    def __init__(self, world: World, one: Peer, two: Peer) -> None:
        self.ends = (one, two)
        self.open = True
        self.stated = {one.number: one.stated(), two.number: two.stated()}
        self.ways: dict[int, Way[Messages]] = {
            one.number: Way(world, lambda messages: two.hears(self, messages)),
            two.number: Way(world, lambda messages: one.hears(self, messages)),
        }

    @property
    def numbers(self) -> tuple[int, int]:
        """The nodes at its ends."""
        return self.ends[0].number, self.ends[1].number

    def other(self, number: int) -> int:
        """The node at the other end."""
        one, two = self.numbers
        return two if number == one else one


class ClusterNetwork(Network):
    """All connections of a cluster and its clients."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.peers: dict[int, Peer] = {}
        self.blocked: set[tuple[int, int]] = set()  # from a place, to a place
        self.slow = 0.0  # how many messages take long
        self.cuts = 0
        self._pairs: dict[tuple[int, int], PeerLink] = {}
        self._places: dict[int, tuple[int, int]] = {}  # of connections: the client's, the node's

    def latency(self) -> int:
        """Of the next message."""
        if self.slow and self.world.chance(self.slow):
            return self.world.between(2_000, 400_000)
        return super().latency()

    def passes(self, source: int, target: int) -> bool:
        """Whether anything gets from one place to another."""
        return (source, target) not in self.blocked

    def reaches(self, one: int, two: int) -> bool:
        """Whether two places can talk."""
        return self.passes(one, two) and self.passes(two, one)

    # --- partitions ------------------------------------------------------------------------

    def part(self, ways: Iterable[tuple[int, int]]) -> None:
        """These directions are dark from now on, and no others."""
        self.blocked = set(ways)
        for link in list(self.links.values()):
            if link.number in self._places:
                self._shade(link)
        for pair in sorted(self._pairs):
            self._shade_pair(self._pairs[pair])
        self.redial_all()

    def _shade(self, link: Link) -> None:
        client, node = self._places[link.number]
        dark = not self.reaches(client, node)
        if dark and not (link.up.dark or link.down.dark) and self.world.chance(CUT_AT_ONCE):
            del self._places[link.number]
            link.cut()
            return
        link.up.darken(not self.passes(client, node), self.latency())
        link.down.darken(not self.passes(node, client), self.latency())

    def _shade_pair(self, link: PeerLink) -> None:
        one, two = link.numbers
        was_dark = any(way.dark for way in link.ways.values())
        for source, way in link.ways.items():
            way.darken(not self.passes(source, link.other(source)), self.latency())
        if not was_dark and not self.reaches(one, two):
            at_once = self.world.chance(CUT_AT_ONCE)
            self.world.after(0 if at_once else SILENCE_US, lambda: self._give_up(link))

    def _give_up(self, link: PeerLink) -> None:
        """Nothing was heard for too long, if that is so."""
        if link.open and not self.reaches(*link.numbers):
            self.cut(link)

    # --- links between nodes ---------------------------------------------------------------

    def add(self, peer: Peer) -> None:
        """One more node."""
        self.peers[peer.number] = peer

    def redial_all(self) -> None:
        """Whoever has no link tries to make one."""
        numbers = sorted(self.peers)
        for at, one in enumerate(numbers):
            for two in numbers[at + 1 :]:
                self._redial(one, two)

    def redial(self, number: int) -> None:
        """A node runs, perhaps again: links of an earlier life make room."""
        self.silent(number)
        for other in sorted(self.peers):
            if other != number:
                self._redial(min(number, other), max(number, other))

    def _redial(self, one: int, two: int) -> None:
        if (one, two) not in self._pairs:
            self.world.after(self.world.latency(REDIAL_US), lambda: self._connect(one, two))

    def _connect(self, one: int, two: int) -> None:
        here, there = self.peers[one], self.peers[two]
        if (one, two) in self._pairs or not (here.up and there.up and self.reaches(one, two)):
            return  # whatever is in the way calls for another attempt when it ends
        if here.paused or there.paused:
            self._redial(one, two)
            return
        link = PeerLink(self.world, here, there)
        self._pairs[one, two] = link
        here.linked(link)
        there.linked(link)

    def send(self, link: PeerLink, source: int, messages: Messages) -> None:
        """From one end to the other."""
        if link.open:
            link.ways[source].send(messages, self.latency())

    def cut(self, link: PeerLink) -> None:
        """What is under way is gone; both ends hear of it, each in its time."""
        if not link.open:
            return
        link.open = False
        self.cuts += 1
        one, two = link.numbers
        del self._pairs[one, two]
        for way in link.ways.values():
            way.cut(0)
        for end in link.ends:
            self._tell_later(link, end)
        self._redial(one, two)

    def _tell_later(self, link: PeerLink, end: Peer) -> None:
        self.world.after(self.world.between(0, CUT_NOTICED_US), lambda: end.unlinked(link))

    def gone(self, number: int, silently: bool) -> None:
        """A node is dead: its links end at once, or (its machine is dead) when others notice."""
        for link in [each for each in self._pairs.values() if number in each.numbers]:
            if silently:
                link.ways[number].cut(0)
                self.world.after(SILENCE_US, lambda link=link: self.cut(link))  # type: ignore[misc]
            else:
                self.cut(link)

    def silent(self, number: int) -> None:
        """A node is paused for so long that the others give its links up."""
        for link in [each for each in self._pairs.values() if number in each.numbers]:
            self.cut(link)

    def cut_any(self) -> int:
        """Breaks some of the links and connections; how many."""
        pairs = [self._pairs[pair] for pair in sorted(self._pairs) if self.world.chance(0.5)]
        for link in pairs:
            self.cut(link)
        return len(pairs) + self.cut_some(0.4)

    # --- connections of clients ------------------------------------------------------------

    def connect(
        self, place: int, node: int, listener: Listener, take: Callable[[bytearray], None],
        lost: Callable[[], None],
    ) -> Link:  # fmt: skip
        """A connection from a client's place to a node."""
        link = self.dial(listener, take, lost)
        self._places = {
            number: places for number, places in self._places.items() if number in self.links
        }
        self._places[link.number] = (place, node)
        return link
