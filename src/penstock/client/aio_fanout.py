"""A subscription to a cluster: one part on every node that owns shards, one credit for all."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.client.aio_link import Link
from penstock.client.aio_links import HERE, settled
from penstock.client.requests import Pending, Request, Resend, Subscription
from penstock.client.routing import MAX_STANDING, share_credit
from penstock.errors import NotFoundError, PenstockError, UnavailableError

if TYPE_CHECKING:
    from penstock.client.aio_cluster import AsyncCluster


class Part(Subscription):
    """What one node delivers; it goes to the whole. Its credit is its own."""

    __slots__ = ("_fan", "link")

    def __init__(self, fan: FanOut, link: Link, credit: int) -> None:
        whole = fan.subscription
        super().__init__(whole.request)
        self.request = whole.request_for(self)
        self.request.node = HERE
        self.given = credit
        self.link = link
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
        subscription.sharers = max(len(self._wanted()), 1)

    @property
    def live(self) -> bool:
        """Whether a node is subscribed to."""
        return bool(self._parts)

    def _wanted(self) -> list[int]:
        """The nodes to be subscribed to; where there are too many, they take turns."""
        owners = self._cluster.routes.owners()
        if len(owners) <= MAX_STANDING:
            return list(owners)
        at = self._turn % len(owners)
        return list((*owners[at:], *owners[:at])[:MAX_STANDING])

    async def begin(self) -> None:
        """Subscribes to all nodes; `begun` is done when every one was tried and one was there."""
        while not self._over:
            version = self._cluster.routes.version
            await asyncio.gather(*(self._add(node) for node in self._wanted()))
            if self._parts or self.begun.done:
                break
            await self._cluster.links.renew(version)
            await self._cluster.pause(HERE)
        if not self.begun.done:
            self.begun.settle(bytearray(), None)

    def update(self) -> None:
        """Follows the map, and tries again where it went wrong."""
        if self._over or not self.begun.done:
            return
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
