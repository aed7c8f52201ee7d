"""Keeps an eye on the cluster while anything is under way: newer maps, and nodes that fell silent.

Messages are never polled for. But a node does not say when it loses its shards to another, so that
whoever waits on nodes asks one of them for a newer map now and then.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.client.aio_link import Link
from penstock.errors import UnavailableError

if TYPE_CHECKING:
    from penstock.client.aio_cluster import AsyncCluster

_TICK_S = 1.0
_SILENT_S = 2.0  # a node that owes an answer and says nothing for so long may be gone


class Watch:
    """Awake while there is something to watch."""

    def __init__(self, cluster: AsyncCluster) -> None:
        self._cluster = cluster
        self._awake = False

    def wake(self) -> None:
        """Something is under way, or will be."""
        if not self._awake:
            self._awake = True
            self._cluster.spawn(self._look())

    async def _look(self) -> None:
        cluster = self._cluster
        try:
            while True:
                await asyncio.sleep(_TICK_S)
                cluster.update()
                under_way = [each for link in cluster.links.all() for each in link.under_way]
                if not (under_way or cluster.fanouts or cluster.lines):
                    return
                if cluster.fanouts or any(each.request.patience_s for each in under_way):
                    await cluster.links.renew(cluster.routes.version, most=1)
                for link in cluster.links.all():
                    await self._suspect(link)
        finally:
            self._awake = False

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
