"""The links of one client to the nodes of a cluster, and where its map comes from."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

from penstock.client.aio_link import Address, DialTo, Events, Link
from penstock.client.reconnect import pause_s
from penstock.client.requests import Pending, Request, Resend, listen
from penstock.client.routing import MAX_LINKS, Pool, Routes
from penstock.client.steps import body_of, decoder
from penstock.client.welcome import check_same, new_hello
from penstock.errors import (
    ClosedError,
    ConflictError,
    LimitError,
    MovedError,
    PenstockError,
    UnavailableError,
)
from penstock.wire.frames import Verb
from penstock.wire.messages import ClusterMap, Hello, Welcome, pack

HERE = -1  # as `Request.node`: of this link alone; whoever asked hears at once if it is lost
_ASK_S = 2.0  # for a map, of one node
_ASKED = 3  # nodes that are asked for a newer map, each time

_read_bytes = decoder(bytes)
T = TypeVar("T")


class MapRequest(Request):
    """Asks one node, and no other, for a newer map than this version."""

    __slots__ = ()

    def __init__(self, version: int, wait_s: float) -> None:
        call = ClusterMap(version, round(wait_s * 1000))
        super().__init__(Verb.CALL, [pack(call)], Resend.ANEW, wait_s)
        self.node = HERE


async def settled(pending: Pending) -> bytearray:
    """Waits for an answer without a deadline of its own; raises the error if it is one."""
    if not pending.done:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        listen(pending, partial(_wake, future))
        await future
    return pending.result()


class Links:
    """A bounded pool of links, each made when it is first needed, once for all who want it."""

    def __init__(
        self,
        seeds: Sequence[Address],
        name: str,
        routes: Routes,
        dial: DialTo,
        events: Events,
        limit: int = MAX_LINKS,
    ) -> None:
        self.routes = routes
        self.why = "no node was asked yet"  # the last thing that went wrong
        self._seeds = seeds
        self._name = name
        self._dial = dial
        self._events = events
        self._pool: Pool[Link] = Pool(limit)
        self._hellos: dict[int, Hello] = {}  # a node ends the link before, by these
        self._welcome: Welcome | None = None
        self._making: dict[int, asyncio.Task[Link]] = {}
        self._resting: dict[int, float] = {}  # nodes, and until when they are
        self._renewing: asyncio.Task[None] | None = None
        self.changed: Callable[[], None] = _nothing  # called after a newer map was learnt
        self.linked: Callable[[], None] = _nothing  # called after a link was made

    # --- links -------------------------------------------------------------------------------

    def ready(self, node: int) -> Link | None:
        """The link to a node, if there is one now."""
        link = self._pool.get(node)
        return link if link is not None and link.ready else None

    def all(self) -> list[Link]:
        """All links."""
        return [link for link in self._pool.values() if link.ready]

    def asked(self, pendings: Iterable[Pending]) -> list[Link]:
        """The links that one of these requests is under way on."""
        wanted = set(pendings)
        return [link for link in self.all() if not wanted.isdisjoint(link.under_way)]

    async def link(self, node: int) -> Link:
        """The link to a node; it is made if there is none. UnavailableError if it cannot be."""
        found = self.ready(node)
        if found is not None:
            return found
        making = self._making.get(node)
        if making is None:
            making = asyncio.create_task(self._make(node))
            self._making[node] = making
            making.add_done_callback(lambda task: self._made(node, task))
        link = await _shared(making)
        link.check_ready()  # it may be lost since: nobody would tell who begins to wait now
        return link

    def _made(self, node: int, task: asyncio.Task[Link]) -> None:
        del self._making[node]
        if not task.cancelled() and (error := task.exception()) is not None:
            self.why = str(error.args[0]) if error.args else repr(error)
            self._rest(node)

    def _rest(self, node: int) -> None:
        """The node is left alone for a while: the longer, the more often it did not answer."""
        now_s = asyncio.get_running_loop().time()
        strikes = self.routes.strike(-1 - node, now_s)
        self._resting[node] = now_s + (pause_s(strikes - 1) if strikes > 1 else 0.0)

    async def _make(self, node: int) -> Link:
        rest_s = self._resting.pop(node, 0.0) - asyncio.get_running_loop().time()
        if rest_s > 0:
            await asyncio.sleep(rest_s)
        info = self.routes.node(node)
        if info is None:
            raise MovedError(f"node {node} is not part of the cluster any more")
        hello = self._hellos.setdefault(node, new_hello(self._name))
        link = Link(node, (info.host, info.port), hello, self._events)
        welcome = await link.open(self._dial)
        try:
            check_same(self._welcome, welcome)
            self._make_room()
        except PenstockError as error:
            link.close(error)
            raise UnavailableError(error.message) from error
        self._welcome = self._welcome or welcome
        self._pool.add(node, link)
        self.linked()
        return link

    def _make_room(self) -> None:
        try:
            unused = self._pool.surplus(lambda link: link.idle or not link.ready)
        except LookupError:
            raise LimitError("too many connections to nodes are in use") from None
        if unused is not None:
            self._pool.remove(unused.node, unused)
            unused.close(UnavailableError("it was not used for long"))

    def drop(self, link: Link) -> None:
        """A link is lost, unless it was given up."""
        if not self._pool.remove(link.node, link):
            return
        if link.answered:
            self.routes.calm(-1 - link.node)
        self._rest(link.node)
        if link.error is not None:
            self.why = link.error.message

    async def close(self, error: PenstockError) -> None:
        """Ends all links and everything under way for them."""
        tasks = [*self._making.values(), *([self._renewing] if self._renewing else [])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        wires = [link.close(error) for link in self._pool.values()]
        await asyncio.gather(*(wire.closed() for wire in wires if wire is not None))

    # --- the map -----------------------------------------------------------------------------

    async def join(self) -> Welcome:
        """Learns the first map, from the first seed that answers; UnavailableError if none does."""
        lost: PenstockError | None = None
        for address in self._seeds:
            try:
                welcome = await self._ask_seed(address)
                if len(self._seeds) == 1:  # whoever names several wants none of them in particular
                    self.routes.local = welcome.number or None
                return welcome
            except UnavailableError as error:
                lost = error
        raise UnavailableError("no node answers" if lost is None else lost.message)

    async def renew(self, version: int, without: int = 0, most: int = _ASKED) -> None:
        """Tries to learn a map newer than this version, once for all who want one.

        `without`: a node that is asked last, because it may be the one that is behind or gone.
        `most`: how many nodes are asked before it is given up.
        """
        if self.routes.version > version:
            return
        if self._renewing is None:
            self._renewing = asyncio.create_task(self._ask_around(without, most))
            self._renewing.add_done_callback(self._renewed)
        await _shared(self._renewing)

    def _renewed(self, task: asyncio.Task[None]) -> None:
        self._renewing = None

    async def _ask_around(self, without: int, most: int) -> None:
        linked = [link.node for link in self.all()]
        answered = False
        for node in self.routes.to_ask(linked, without)[:most]:
            try:
                async with asyncio.timeout(_ASK_S):
                    news = await self._ask(await self.link(node))
            except (PenstockError, TimeoutError):
                continue
            if news:
                return
            answered = True
        for address in () if answered else self._seeds[:_ASKED]:
            try:
                async with asyncio.timeout(_ASK_S):
                    await self._ask_seed(address)
            except (PenstockError, TimeoutError):
                continue
            return

    async def _ask_seed(self, address: Address) -> Welcome:
        link = Link(0, address, new_hello(self._name), self._events)
        welcome = await link.open(self._dial)
        try:
            check_same(self._welcome, welcome)
            await self._ask(link)
        finally:
            link.close(UnavailableError("it is not needed any more"))
        self._welcome = self._welcome or welcome
        return welcome

    async def _ask(self, link: Link) -> bool:
        """Asks a node what it knows; whether that was news."""
        try:
            news = self.routes.learn(await self._map_of(link, self.routes.version))
        except ConflictError:  # a change of another version than ours: then all of it
            news = self.routes.learn(await self._map_of(link, 0))
        if news:
            self.changed()
        return news

    async def hear_of_change(self, link: Link, wait_s: float) -> None:
        """Learns a newer map as soon as the node has one, if that is within `wait_s` seconds."""
        answer = await self._map_of(link, self.routes.version, wait_s)
        try:
            news = self.routes.learn(answer)
        except ConflictError:  # others have told of it, and of more, meanwhile
            return
        if news:
            self.changed()

    async def _map_of(self, link: Link, version: int, wait_s: float = 0.0) -> bytes:
        link.check_ready()
        pending = link.start(MapRequest(version, wait_s))
        try:
            found: bytes = _read_bytes(body_of(await settled(pending)))
        finally:
            link.abandon(pending)
        return found


async def _shared(task: asyncio.Task[T]) -> T:
    """What a task gives that several wait for. If one of them is cancelled, it goes on."""
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if task.cancelled():  # not who waits
            raise ClosedError("the fabric is closed") from None
        raise


def _nothing() -> None:
    """Until the router listens."""


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
