"""Which nodes a subscription to a queue needs, where they are too many to subscribe to all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.client.aio_links import HERE
from penstock.client.pops import PARK_S, where_is
from penstock.errors import ClosedError, InvalidError, NotFoundError, PenstockError

if TYPE_CHECKING:
    from penstock.client.aio_cluster import AsyncCluster

_REST_S = 0.25  # between two looks at a list that names somebody


class Scout:
    """Asks whoever keeps the queue's list, again and again while that names nodes; while it names
    none the question waits there, and nothing is sent."""

    def __init__(
        self, cluster: AsyncCluster, queue: int, heard: Callable[[list[int]], None]
    ) -> None:
        """`heard` is called with the nodes that have messages, at least one."""
        self._cluster = cluster
        self._queue = queue
        self._heard = heard
        self.live = False  # whether the list could be asked, last
        self.refused: PenstockError | None = None  # InvalidError: nobody keeps a list

    async def first_look(self) -> None:
        """Returns when the list was seen once, or cannot be."""
        while self.refused is None and not await self._look(0.0):
            await self._cluster.pause(HERE)

    async def look(self) -> None:
        """Returns after a while, in which `heard` may have been called."""
        if not await self._look(PARK_S):
            await self._cluster.pause(HERE)

    async def _look(self, wait_s: float) -> bool:
        cluster = self._cluster
        try:
            hints = await cluster.run(where_is(cluster.routes, self._queue, (), wait_s))
        except ClosedError:
            raise
        except (InvalidError, NotFoundError) as error:
            if isinstance(error, InvalidError) or not cluster.is_new():
                self.refused = error
            self.live = False
            return False
        except PenstockError:
            self.live = False
            return False
        self.live = True
        if hints:
            self._heard([hint.node for hint in hints])
            await asyncio.sleep(_REST_S if wait_s else 0.0)
        return True
