"""A subscription to a cluster: one part on every node that owns shards, one credit for all.

With many nodes a subscription to a queue has parts only where there are messages, as the queue's
list says. With few it has one on each: a message is delivered as soon as it is there, which no
list can be as fast as.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.client.aio_link import Link
from penstock.client.aio_links import HERE, settled
from penstock.client.aio_scout import Scout
from penstock.client.requests import Pending, Request, Resend, Subscription
from penstock.client.routing import FEW_NODES, MAX_STANDING, share_credit
from penstock.errors import NotFoundError, PenstockError, UnavailableError

if TYPE_CHECKING:
    from penstock.client.aio_cluster import AsyncCluster


class Part(Subscription):
    """What one node delivers; it goes to the whole. Its credit is its own."""

    __slots__ = ("_fan", "link", "seen")

    def __init__(self, fan: FanOut, link: Link, credit: int) -> None:
        whole = fan.subscription
        super().__init__(whole.request)
        self.request = whole.request_for(self)
        self.request.node = HERE
        self.given = credit
        self.link = link
        self.seen = 0  # messages that it had delivered when the list was last looked at
        self._fan = fan

    @property
    def outstanding(self) -> int:
        """How many messages the node may still send."""
        return self.given - self.delivered

    def arrived(self, frame_: bytearray) -> None:
        """Counts for this part and for the whole."""
        whole = self._fan.subscription
        before = whole.delivered
        whole.arrived(frame_)
        self.delivered += whole.delivered - before

    def arrived_late(self, frame_: bytearray) -> None:
        """A frame crossed the cancellation."""
        self._fan.subscription.arrived_late(frame_)

    def fail(self, error: PenstockError) -> None:
        """Nothing more comes from this node."""
        self._fan.gone(self, error)


class FanOut:
    """Keeps a part on every owner as the map changes. Nodes that cannot be reached are tried again
    by `update`, which the router calls every second."""

    def __init__(self, cluster: AsyncCluster, subscription: Subscription) -> None:
        self.subscription = subscription
        self.begun = Pending(0, Request(0, [], Resend.ANEW), [])
        self._cluster = cluster
        self._parts: dict[int, Part] = {}
        self._adding: set[int] = set()
        self._credited = subscription.given > 0
        self._turn = 0
        self._over = False
        self._listed: list[int] = []  # nodes that have messages
        self._scout: Scout | None = None
        if subscription.queue is not None:
            self._scout = Scout(cluster, subscription.queue, self._heard)
        self._scouting: asyncio.Task[None] | None = None
        subscription.sharers = max(len(self._wanted()), 1)

    @property
    def live(self) -> bool:
        """Whether a node is subscribed to, or is known not to be needed."""
        return bool(self._parts) or (
            self._scouting is not None and self._scout is not None and self._scout.live
        )

    @property
    def links(self) -> list[Link]:
        """To the nodes that are subscribed to, or are asked to be."""
        return [part.link for part in self._parts.values()]

    def _by_list(self) -> bool:
        """Whether the list says where to subscribe."""
        scout = self._scout
        many = len(self._cluster.routes.owners()) > FEW_NODES
        return many and scout is not None and scout.refused is None

    def _wanted(self) -> list[int]:
        """The nodes to be subscribed to; where there are too many, they take turns."""
        owners = self._cluster.routes.owners()
        if self._by_list():
            return [node for node in self._listed if node in owners][:MAX_STANDING]
        if len(owners) <= MAX_STANDING:
            return list(owners)
        at = self._turn % len(owners)
        return list((*owners[at:], *owners[:at])[:MAX_STANDING])

    async def begin(self) -> None:
        """Subscribes to all nodes that are needed; `begun` is done when every one was tried and one
        was there, or none is needed."""
        while not self._over:
            if self._by_list() and self._scout is not None:
                await self._scout.first_look()
            version = self._cluster.routes.version
            await asyncio.gather(*(self._add(node) for node in self._wanted()))
            if self._parts or self.begun.done or (self._by_list() and not self._wanted()):
                break
            await self._cluster.links.renew(version)
            await self._cluster.pause(HERE)
        if not self.begun.done:
            self.begun.settle(bytearray(), None)
        self._scout_on()

    def _scout_on(self) -> None:
        if self._over or self._scouting is not None or not self._by_list():
            return
        assert self._scout is not None
        self._listed = self._listed or list(self._parts)
        self._scouting = self._cluster.spawn(self._search(self._scout))

    async def _search(self, scout: Scout) -> None:
        try:
            while self._by_list() and not self._over:
                await scout.look()
        finally:
            self._scouting = None
        if isinstance(scout.refused, NotFoundError) and not self._over:
            self.fail(scout.refused)

    def _heard(self, nodes: list[int]) -> None:
        """The nodes that have messages; those that just delivered some keep their parts too."""
        busy = [node for node, part in self._parts.items() if part.delivered > part.seen]
        for part in self._parts.values():
            part.seen = part.delivered
        self._listed = list(dict.fromkeys([*nodes, *busy]))
        self.update()

    def update(self) -> None:
        """Follows the map, and tries again where it went wrong."""
        if self._over or not self.begun.done:
            return
        self._scout_on()
        self._turn += 1
        wanted = self._wanted()
        for node in [node for node in self._parts if node not in wanted]:
            part = self._parts.pop(node)
            part.link.cancel(part.id)
            part.link.unsubscribe(part)
        for node in wanted:
            if node not in self._parts and node not in self._adding:
                self._cluster.spawn(self._add(node))
        self._share()

    async def _add(self, node: int) -> None:
        self._adding.add(node)
        try:
            link = await self._cluster.links.link(node)
            while link.packed and not self._over:
                await self._cluster.hear()
            if self._over or not link.ready:
                return
            part = Part(self, link, self._first_credit())
            pending = link.subscribe(part)
            self._parts[node] = part
            await settled(pending)
            if self.begun.done:
                self.subscription.renewed()  # what happened there before was missed
        except UnavailableError:
            return
        except PenstockError as error:
            self._refused(error)
        finally:
            self._adding.discard(node)

    def _first_credit(self) -> int:
        if not self._credited:
            return 0
        whole = self.subscription
        return max((whole.given - whole.delivered) // max(len(self._wanted()), 1), 1)

    def gone(self, part: Part, error: PenstockError) -> None:
        """A part ended: because its node is lost, or because there is nothing to subscribe to."""
        if self._parts.get(part.link.node) is part:
            del self._parts[part.link.node]
        if self._over:
            return
        if isinstance(error, UnavailableError):
            routes, links = self._cluster.routes, self._cluster.links
            self._cluster.spawn(links.renew(routes.version, part.link.node))
            self._share()
        else:
            self._refused(error)

    def _refused(self, error: PenstockError) -> None:
        if isinstance(error, NotFoundError) and self._cluster.is_new():
            return  # the node will hear of the stream in a moment
        if not self.begun.done:
            self.begun.settle(None, error)
        self.fail(error)

    def credit(self, messages: int) -> None:
        """Lets the nodes deliver so many more, in all."""
        self.subscription.given += messages
        self._share()

    def waited_for(self) -> None:
        """Whoever takes the messages has none left: no node is without credit from now on, as the
        next message may be there."""
        self._share()

    def _share(self) -> None:
        whole = self.subscription
        whole.sharers = max(len(self._parts), 1)
        if not self._credited or self._over:
            return
        outstanding = {node: part.outstanding for node, part in self._parts.items()}
        grants = share_credit(outstanding, whole.given - whole.delivered)
        for node, messages in grants.items():
            part = self._parts[node]
            part.link.credit(part, messages)

    def stop(self) -> None:
        """Asks all nodes to send nothing more; what crosses that still arrives."""
        self._over = True
        self._cluster.heard()  # whoever waits for a place need not any more
        if self._scouting is not None:
            self._scouting.cancel()
        for part in self._parts.values():
            part.link.cancel(part.id)

    def end(self) -> None:
        """Nothing arrives any more: what still comes is late."""
        if not self._over:
            self.stop()
        for part in self._parts.values():
            part.link.unsubscribe(part)
        self._parts.clear()

    def fail(self, error: PenstockError) -> None:
        """Ends it with an error."""
        self.end()
        self.subscription.fail(error)
