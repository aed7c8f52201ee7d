"""Connections with delays and cuts. Each direction keeps its order, as TCP does."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from penstock.sim.world import Event, World

TYPICAL_US = 300
CUT_NOTICED_US = 200_000

T = TypeVar("T")


class Listener(Protocol):
    """What can be connected to."""

    def accept(self, link: Link) -> bool:
        """A client connects; False: nobody is there."""

    def arrived(self, link: Link, frame: bytearray) -> None:
        """A frame of a client."""

    def lost(self, link: Link) -> None:
        """A connection is over."""


class Way(Generic[T]):
    """One direction of a connection. While it is `dark` nothing gets through; what is under way
    arrives afterwards, as it is sent again and again until then."""

    def __init__(self, world: World, take: Callable[[T], None]) -> None:
        self.dark = False
        self._world = world
        self._take = take
        self._last_us = 0
        self._under_way: deque[tuple[Event, T]] = deque()
        self._held = 0  # of those under way: should have arrived while it was dark

    def send(self, frame: T, latency_us: int) -> None:
        """Delivers a frame after those before it."""
        self._last_us = max(self._last_us, self._world.now_us + latency_us)
        event = self._world.after(self._last_us - self._world.now_us, self._deliver)
        self._under_way.append((event, frame))

    def _deliver(self) -> None:
        if self.dark:
            self._held += 1
        elif self._under_way:  # in their order, whichever this event was made for
            _, frame = self._under_way.popleft()
            self._take(frame)

    def darken(self, dark: bool, latency_us: int) -> None:
        """Lets nothing through, or everything again."""
        self.dark = dark
        if not dark:
            held, self._held = self._held, 0
            for _ in range(held):
                self._world.after(latency_us, self._deliver)

    def cut(self, kept: int) -> None:
        """Only the first `kept` of the frames under way still arrive."""
        while len(self._under_way) > kept:
            self._under_way.pop()[0].cancel()

    def __len__(self) -> int:
        return len(self._under_way)


class Link:
    """A connection between a client and a listener."""

    def __init__(
        self,
        network: Network,
        listener: Listener,
        take: Callable[[bytearray], None],
        lost: Callable[[], None],
    ) -> None:
        self.number = network.next_number()
        self._network = network
        self._world = network.world
        self._listener = listener
        self._lost = lost
        self.up: Way[bytearray] = Way(self._world, lambda frame: listener.arrived(self, frame))
        self.down: Way[bytearray] = Way(self._world, take)
        self.open = True  # for the client
        self.served = True  # for the listener

    def send(self, frame: bytearray) -> None:
        """From the client to the node."""
        if self.open:
            self.up.send(frame, self._network.latency())

    def answer(self, frame: bytearray) -> None:
        """From the node to the client."""
        if self.open and self.served:
            self.down.send(frame, self._network.latency())

    def close(self) -> None:
        """The client ends it, or dies: what it sent may still arrive."""
        self._end(self._world.between(0, len(self.up)), tell_client=False)

    def cut(self) -> None:
        """The network drops it. What the client sent may still arrive, the answers do not."""
        self._end(self._world.between(0, len(self.up)), tell_client=True)

    def break_now(self) -> None:
        """The node is gone: nothing arrives any more."""
        self.served = False
        self._end(0, tell_client=True)

    def _end(self, kept: int, tell_client: bool) -> None:
        if not self.open:
            return
        self.open = False
        self.up.cut(kept)
        self.down.cut(0)
        self._network.links.pop(self.number, None)
        noticed_us = self._world.between(0, CUT_NOTICED_US)
        if tell_client:
            self._world.after(noticed_us, self._lost)
        if self.served:
            # After all that still arrives, and maybe long after the client has come back.
            self._world.after(10 * CUT_NOTICED_US + noticed_us, self._end_service)

    def _end_service(self) -> None:
        if self.served:
            self.served = False
            self._listener.lost(self)


class Network:
    """All connections, and how slow they are now."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.typical_us = TYPICAL_US
        self.links: dict[int, Link] = {}
        self._last = 0

    def next_number(self) -> int:
        """A number for a new connection, never used again."""
        self._last += 1
        return self._last

    def latency(self) -> int:
        """Of the next frame."""
        return self.world.latency(self.typical_us)

    def dial(
        self,
        listener: Listener,
        take: Callable[[bytearray], None],
        lost: Callable[[], None],
    ) -> Link:
        """A new connection; `lost` is called later if nobody listens."""
        link = Link(self, listener, take, lost)
        self.links[link.number] = link
        if not listener.accept(link):
            link.break_now()
        return link

    def cut_some(self, share: float) -> int:
        """Cuts a part of all connections; how many."""
        chosen = [link for link in self.links.values() if self.world.chance(share)]
        for link in chosen:
            link.cut()
        return len(chosen)
