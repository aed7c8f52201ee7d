"""Requests that wait for the owner of their shard: one line for each, first come first served.

A shard has a line while its owner is not known, cannot be reached or takes no more, and while
changes of it that were sent elsewhere are not back: nothing overtakes them.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.client.protocol import FORGOTTEN_AFTER_S
from penstock.client.requests import Pending, Request
from penstock.client.routing import Line
from penstock.errors import ClosedError, LimitError, PenstockError, UnavailableError

if TYPE_CHECKING:
    from penstock.client.aio_cluster import AsyncCluster
    from penstock.client.aio_link import Link

MAX_WAITING = 10_000  # requests that were never sent


class Lines:
    """The lines of one client."""

    def __init__(self, cluster: AsyncCluster) -> None:
        self._cluster = cluster
        self._lines: dict[int, Line] = {}
        self._waiting = 0

    def __bool__(self) -> bool:
        return bool(self._lines)

    def has(self, shard: int) -> bool:
        """Whether what is new must stand in line."""
        return shard in self._lines

    def has_before(self, pending: Pending) -> bool:
        """Whether something that was sent before this one waits to be sent again."""
        line = self._lines.get(pending.request.shard)
        return line is not None and line.has_before(pending.order)

    def put_back(self, pending: Pending, blamed: int, refused: bool) -> None:
        """A node refused a request, or was lost with it: it goes to whoever owns its shard."""
        line = self._line(pending.request.shard)
        line.blamed, line.refused = blamed, refused
        line.put_back(pending)

    def drop(self, pending: Pending) -> None:
        """Nobody waits for it any more."""
        for line in self._lines.values():
            line.drop(pending)

    async def start_in_turn(self, request: Request) -> Pending:
        """Sends a request when its turn has come; DeadlineError if it does not."""
        if self._waiting >= MAX_WAITING:
            raise LimitError(f"{MAX_WAITING:,} requests wait to be sent")
        cluster = self._cluster
        place: asyncio.Future[Pending] = asyncio.get_running_loop().create_future()
        line = self._line(request.shard)
        line.waiting[place] = request
        self._waiting += 1
        cluster.heard()
        try:
            async with asyncio.timeout(cluster.timeout_s):
                return await place
        except BaseException as error:
            if place.done() and not place.cancelled() and place.exception() is None:
                cluster.give_up(place.result())  # it was sent in the very last moment
            if isinstance(error, TimeoutError):
                raise cluster.late(cluster.timeout_s) from None
            raise
        finally:
            self._waiting -= 1
            line.waiting.pop(place, None)
            cluster.heard()

    def map_changed(self) -> None:
        """What comes now for a shard that moved waits for what is under way to its old owner."""
        for link in self._cluster.links.all():
            for pending in link.under_way:
                request = pending.request
                alone = request.shard >= 0 and not request.node
                if alone and self._cluster.routes.owner(request.shard) != link.node:
                    self._line(request.shard)

    def _line(self, shard: int) -> Line:
        line = self._lines.get(shard)
        if line is None:
            line = self._lines[shard] = Line()
            self._cluster.spawn(self._serve(shard, line))
        return line

    async def _serve(self, shard: int, line: Line) -> None:
        """Sends what waits for a shard to whoever owns it, in order, until nothing waits."""
        links, routes = self._cluster.links, self._cluster.routes
        error: PenstockError = ClosedError("the fabric is closed")
        try:
            while line or self._astray(shard):
                await self._consider(shard, line)
                if not self._must_wait(shard, line):
                    owner = routes.owner(shard)
                    try:
                        link = await links.link(owner)
                    except UnavailableError:
                        line.blamed = line.blamed or owner
                        continue
                    if owner != routes.owner(shard):
                        continue  # the news of that came while nobody here listened
                    if not self._must_wait(shard, line):
                        self._send(line, link)
                if not line.blamed and (line or self._astray(shard)):
                    await self._cluster.hear()
        except PenstockError as failed:
            error = failed
        finally:
            del self._lines[shard]
            _fail(line, error)

    def _must_wait(self, shard: int, line: Line) -> bool:
        """Whether changes of the shard are under way that belong before what is in the line."""
        if shard < 0:
            return False
        if line.again and any(link.writes_to(shard) for link in self._cluster.links.all()):
            return True
        return self._astray(shard)

    def _astray(self, shard: int) -> bool:
        """Whether changes of the shard are under way to a node that does not own it any more."""
        if shard < 0:
            return False
        owner = self._cluster.routes.owner(shard)
        links = self._cluster.links.all()
        return any(link.node != owner and link.writes_to(shard) for link in links)

    async def _consider(self, shard: int, line: Line) -> None:
        """After trouble: asks for a newer map, and takes a rest if that does not help."""
        cluster = self._cluster
        now_s = asyncio.get_running_loop().time()
        for old in line.drop_old(now_s - FORGOTTEN_AFTER_S):
            old.forgotten("the shard had no owner for so long that none may recognise a resend")
        blamed, line.blamed = line.blamed, 0
        if not blamed:
            return
        if shard < 0:
            cluster.routes.avoid(blamed)
        if cluster.routes.owner(shard) == blamed:
            await cluster.links.renew(cluster.routes.version, blamed)
        if line.refused and cluster.routes.owner(shard) == blamed:
            await cluster.pause(shard)  # a lost link takes its rest before it is made again
        line.refused = False

    def _send(self, line: Line, link: Link) -> None:
        while link.room and (pending := line.take_again()) is not None:
            link.start_again(pending)
        while link.room and not line.again and line.waiting:
            place, request = line.waiting.popitem(last=False)
            if place.done():
                continue
            try:
                pending = self._cluster.start_on(link, request)
            except Exception as error:  # of the request itself: told to who sends it
                place.set_exception(error)
            else:
                place.set_result(pending)


def _fail(line: Line, error: PenstockError) -> None:
    while (pending := line.take_again()) is not None:
        pending.settle(None, error)
    for place in line.waiting:
        if not place.done():
            place.set_exception(error)
