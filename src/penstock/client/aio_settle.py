"""Settlements in a cluster: split by the nodes that own the shards, and their answers joined."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock.client.aio_lines import MAX_WAITING
from penstock.client.aio_link import doubt
from penstock.client.aio_links import HERE, settled
from penstock.client.aio_places import Places
from penstock.client.reconnect import pause_s
from penstock.client.requests import Pending, Request, Resend
from penstock.client.settle import SettleRequest
from penstock.errors import (
    ClosedError,
    DeadlineError,
    LimitError,
    MovedError,
    PenstockError,
    ProtocolError,
    UnavailableError,
)
from penstock.wire.frames import (
    COUNT,
    FRAME_BYTES,
    REFUSED,
    Flag,
    SettleItem,
    Verb,
    frame,
    pack_settle,
)

if TYPE_CHECKING:
    from penstock.client.aio_cluster import AsyncCluster
    from penstock.client.aio_link import Link

Rows = dict[int, SettleItem]  # items by their place in the request
_MAX_UNDER_WAY = 1024


class Settlements:
    """Settlements under way. Tokens name shards, so they go to whoever owns the shard now."""

    def __init__(self, cluster: AsyncCluster) -> None:
        self._cluster = cluster
        self._under_way: dict[Pending, None] = {}
        self._places = Places(lambda: _MAX_UNDER_WAY - len(self._under_way))

    async def start(self, request: SettleRequest) -> Pending:
        """Sends a settlement to all nodes that it concerns. Waits only while too many are under
        way; DeadlineError if that takes too long.

        A fence goes to all nodes there is a link to; its answer comes after those of all before it.
        """
        if not self._places.scarce:
            return self._start(request)
        if len(self._places) >= MAX_WAITING:
            raise LimitError(f"{MAX_WAITING:,} settlements wait to be sent")
        cluster = self._cluster
        try:
            async with self._places.turn(cluster.timeout_s):
                if cluster.error is not None:
                    raise cluster.error
                return self._start(request)
        except TimeoutError:
            raise cluster.late(cluster.timeout_s) from None

    def start_now(self, request: SettleRequest) -> Pending:
        """The same without waiting; LimitError if it would have to wait."""
        if self._places.scarce:
            raise LimitError(f"{_MAX_UNDER_WAY:,} settlements wait for their answers")
        return self._start(request)

    def _start(self, request: SettleRequest) -> Pending:
        request.parts()
        whole = Pending(0, request, [])
        fence = request.fence or not request.items
        before = list(self._under_way) if fence else []
        rows = dict(enumerate(request.items))
        try:
            sent = self._send(request, rows, fence)
        except PenstockError as error:  # of one part: it fails as a whole, as it does later on
            whole.settle(None, error)
            return whole
        self._under_way[whole] = None
        self._cluster.spawn(self._drive(whole, request, rows, sent, before))
        return whole

    def _send(
        self, request: SettleRequest, rows: Rows, fence: bool = False
    ) -> list[tuple[Rows, Pending]]:
        """What can be sent without waiting, in the order of the calls."""
        links = self._cluster.links
        groups: dict[int, Rows] = {link.node: {} for link in links.all()} if fence else {}
        for at, item in rows.items():
            groups.setdefault(self._cluster.routes.owner(item.shard), {})[at] = item
        ready = ((links.ready(node), part) for node, part in groups.items())
        return [
            (part, self._send_part(link, request, part.values()))
            for link, part in ready
            if link is not None and link.room
        ]

    def _send_part(
        self, link: Link, request: SettleRequest, items: Iterable[SettleItem]
    ) -> Pending:
        body = pack_settle(request.stream, list(items))
        part = Request(Verb.SETTLE, [body], Resend.MARKED)
        part.flags = request.flags
        part.node = HERE
        return link.start(part)

    async def _drive(
        self,
        whole: Pending,
        request: SettleRequest,
        rows: Rows,
        sent: list[tuple[Rows, Pending]],
        before: list[Pending],
    ) -> None:
        """`sent` always has what is under way."""
        links, began_s = self._cluster.links, asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(self._cluster.timeout_s):
                refused = await self._all_answered(request, rows, sent)
                for earlier in before:
                    await _over(earlier)
        except TimeoutError:
            doubt(links.asked(pending for _, pending in sent), began_s)
            text = f"not settled within {self._cluster.timeout_s:g} s: {links.why}"
            whole.settle(None, DeadlineError(text))
        except PenstockError as error:
            whole.settle(None, error)
        except asyncio.CancelledError:
            whole.settle(None, self._cluster.error or ClosedError("the fabric is closed"))
            raise
        else:
            accepted = sum(item.messages for item in request.items)
            body = [COUNT.pack(accepted, len(refused)), *(REFUSED.pack(*row) for row in refused)]
            answer = frame(Verb.SETTLE, 0, Flag.RESPONSE, b"".join(body))
            whole.settle(bytearray(answer), None)
        finally:
            del self._under_way[whole]
            self._places.admit()

    async def _all_answered(
        self, request: SettleRequest, rows: Rows, sent: list[tuple[Rows, Pending]]
    ) -> list[tuple[int, int]]:
        """Sends again what has moved, until nothing is left; the refusals, with their codes."""
        refused: list[tuple[int, int]] = []
        strikes = 0
        while True:
            version = self._cluster.routes.version
            for part, pending in sent:
                try:
                    answer = await settled(pending)
                except UnavailableError:
                    continue
                for at, code in _outcomes(part, answer).items():
                    if code != MovedError.code:
                        del rows[at]
                        if code:
                            refused.append((at, code))
            if not rows:
                return refused
            if sent:
                await self._cluster.links.renew(version)
                if self._cluster.routes.version == version:
                    strikes += 1
                    await asyncio.sleep(pause_s(strikes))
            await self._connect(rows)
            sent[:] = self._send(request, rows)

    async def _connect(self, rows: Rows) -> None:
        """Makes sure of at least one link that has something to settle and room for it."""
        strikes = 0
        while True:
            version = self._cluster.routes.version
            for node in self._cluster.routes.groups(item.shard for item in rows.values()):
                try:
                    if (await self._cluster.links.link(node)).room:
                        return
                except UnavailableError:
                    await self._cluster.links.renew(version, node)
            strikes += 1
            await asyncio.sleep(pause_s(strikes))


async def _over(pending: Pending) -> None:
    try:
        await settled(pending)
    except PenstockError:
        return  # whoever asked for it is told


def _outcomes(part: Rows, answer: bytearray) -> dict[int, int]:
    """For each row: 0 if it was accepted, else the code of the refusal."""
    codes = dict.fromkeys(part, 0)
    places = list(part)
    body = memoryview(answer)[FRAME_BYTES:]
    if len(body) < COUNT.size:
        raise ProtocolError("the answer to a settlement is too short")
    rows = body[COUNT.size :]
    if len(rows) != COUNT.unpack_from(body)[1] * REFUSED.size:
        raise ProtocolError("the answer to a settlement does not hold its refusals")
    for index, code in REFUSED.iter_unpack(rows):
        if index >= len(places):
            raise ProtocolError("the node refused a settlement that was not asked for")
        codes[places[index]] = code
    return codes
