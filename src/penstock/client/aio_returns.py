"""Requests that come back without an answer: refused by a node that is the wrong one, or lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.client.aio_link import Link
from penstock.client.aio_links import HERE
from penstock.client.requests import Pending, Subscription
from penstock.client.sequenced import SequencedRequest
from penstock.errors import (
    ForgottenError,
    InvalidError,
    MovedError,
    NotFoundError,
    PenstockError,
    UnavailableError,
)

if TYPE_CHECKING:
    from penstock.client.aio_cluster import AsyncCluster
    from penstock.client.aio_lines import Lines


class Returns:
    """Puts them back into the lines of their shards, or tells who asked one node only."""

    def __init__(self, cluster: AsyncCluster, lines: Lines) -> None:
        self._cluster = cluster
        self._lines = lines

    def takes_back(self, link: Link, pending: Pending, error: PenstockError) -> bool:
        """Whether a refusal only means that the request belongs elsewhere, or comes too early."""
        request = pending.request
        if request.node == HERE:
            return False
        early = isinstance(error, NotFoundError) and self._cluster.is_new()
        unknown = type(error) is InvalidError or type(error) is ForgottenError
        # A push that lacks those before it, as they came back: it goes after them.
        behind = unknown and isinstance(request, SequencedRequest)
        behind = behind and self._lines.has_before(pending)
        if not (isinstance(error, MovedError) or early or behind):
            return False
        self._put_back(link, pending, error)
        return True

    def link_lost(
        self, link: Link, pendings: list[Pending], subscriptions: list[Subscription]
    ) -> None:
        """Nobody knows what became of these requests: they are asked again, wherever that is."""
        self._cluster.links.drop(link)
        lost = UnavailableError("the connection was lost") if link.error is None else link.error
        for pending in pendings:
            self._put_back(link, pending, lost)
        for subscription in subscriptions:
            subscription.fail(UnavailableError(lost.message))
        self._cluster.heard()

    def _put_back(self, link: Link, pending: Pending, why: PenstockError) -> None:
        moved = MovedError(f"node {link.node} cannot answer: {why.message}")
        if self._cluster.error is not None:
            pending.settle(None, self._cluster.error)
        elif pending.request.node == HERE:
            pending.settle(None, moved)
        elif pending.request.node:
            self._cluster.spawn(self._give_back(link.node, pending, moved))
        else:
            self._lines.put_back(pending, link.node, link.ready)

    async def _give_back(self, node: int, pending: Pending, error: MovedError) -> None:
        """Tells who asked this node and no other, once there may be a newer map."""
        try:
            await self._cluster.look_around(node, self._cluster.routes.version)
        finally:
            if not pending.done:
                pending.settle(None, self._cluster.error or error)
