"""Keeps an eye on the cluster while anything is under way: newer maps, and nodes that fell silent.

Some of the nodes that there is a link to hold a question for a newer map until there is one: so
whoever waits, for messages or answers, hears of a new owner at once. Maps are polled for besides,
seldom: a node that is cut off from the others has no news, and does not know it. Messages are never
polled for.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from penstock.client.aio_link import Link
from penstock.client.aio_links import MapRequest
from penstock.client.requests import Pending
from penstock.errors import PenstockError, UnavailableError

if TYPE_CHECKING:
    from penstock.client.aio_cluster import AsyncCluster

_TICK_S = 0.5
_SILENT_S = 1.5  # a node that owes an answer and says nothing for so long may be gone
_TELLERS = 2  # nodes that are asked to say when there is a newer map: one of them may be cut off
_TELL_S = 30.0  # how long they hold that question
_APART_S = 0.01  # between news: a cluster in turmoil has many maps, and only the last counts
_POLL_TICKS = 10  # between polls, where somebody tells; else each tick


class Watch:
    """Awake while there is something to watch."""

    def __init__(self, cluster: AsyncCluster) -> None:
        self._cluster = cluster
        self._awake = False
        self._tellers: set[int] = set()
        self._ticks = 0

    def wake(self) -> None:
        """Something is under way, or will be."""
        if not self._awake:
            self._awake = True
            self._cluster.spawn(self._look())
            self.listen()

    def listen(self) -> None:
        """Has some nodes say when there is a newer map, as long as this is awake."""
        for link in self._cluster.links.all() if self._awake else ():
            if len(self._tellers) >= _TELLERS:
                return
            if link.tells and link.node not in self._tellers:
                self._tellers.add(link.node)
                self._cluster.spawn(self._hear(link))

    async def _hear(self, link: Link) -> None:
        links = self._cluster.links
        try:
            with suppress(PenstockError):  # then another is asked, with the next tick
                while self._awake and link.ready:
                    await links.hear_of_change(link, _TELL_S)
                    await asyncio.sleep(_APART_S)
        finally:
            self._tellers.discard(link.node)

    async def _look(self) -> None:
        cluster = self._cluster
        try:
            while True:
                await asyncio.sleep(_TICK_S)
                cluster.update()
                self.listen()
                under_way = [each for link in cluster.links.all() for each in _owed(link)]
                if not (under_way or cluster.fanouts or cluster.lines):
                    return
                if cluster.fanouts or any(each.request.patience_s for each in under_way):
                    await self._poll()
                for link in cluster.links.all():
                    await self._suspect(link)
        finally:
            self._awake = False

    async def _poll(self) -> None:
        self._ticks += 1
        links, version = self._cluster.links, self._cluster.routes.version
        if not self._tellers:
            await links.renew(version, most=1)
        elif self._ticks % _POLL_TICKS == 0:  # more nodes than tell, and one that does last
            await links.renew(version, next(iter(self._tellers)))

    async def _suspect(self, link: Link) -> None:
        """Leaves a node that says nothing, if another has taken over what it owes."""
        since_s = asyncio.get_running_loop().time() - _SILENT_S
        owed = [each for each in link.under_way if each.since_s + each.request.patience_s < since_s]
        if not owed or link.heard_s > since_s:
            return
        routes = self._cluster.routes
        await self._cluster.links.renew(routes.version, link.node)
        shards = {each.request.shard for each in link.under_way if each.request.shard >= 0}
        moved = any(routes.owner(shard) != link.node for shard in shards)
        if moved or not routes.owned_by(link.node):
            link.close(UnavailableError(f"node {link.node} is silent, and another took over"))


def _owed(link: Link) -> list[Pending]:
    """What is under way for whoever uses the client."""
    return [each for each in link.under_way if not isinstance(each.request, MapRequest)]
