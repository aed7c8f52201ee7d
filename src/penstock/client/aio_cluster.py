"""The asyncio shell around the routing policy: as one connection, but to a whole cluster."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Coroutine, Sequence
from itertools import count
from typing import Any

from penstock.client.aio_connection import AsyncConnection
from penstock.client.aio_fanout import FanOut
from penstock.client.aio_lines import Lines
from penstock.client.aio_link import Address, DialTo, Events, Link, dial_to, doubt
from penstock.client.aio_links import HERE, Links
from penstock.client.aio_returns import Returns
from penstock.client.aio_settle import Settlements
from penstock.client.aio_watch import Watch
from penstock.client.aio_wire import Wire
from penstock.client.pops import WhereRequest
from penstock.client.reconnect import IS_A_NODE_THERE, pause_s
from penstock.client.requests import Pending, Request, Resend, Subscription
from penstock.client.routing import Routes
from penstock.client.settle import SettleRequest
from penstock.client.steps import Step
from penstock.client.welcome import new_hello
from penstock.errors import (
    ClosedError,
    DeadlineError,
    InvalidError,
    LimitError,
    MovedError,
    PenstockError,
    UnavailableError,
)
from penstock.wire.messages import Welcome


class AsyncCluster(AsyncConnection):
    """Sends every request to the node that owns its shard, and again to the next owner.

    What is sent again keeps its producer and sequence, so that it is stored once; and it goes
    before all that comes later for the same shard. Every call ends within its deadline.
    """

    routes: Routes

    def __init__(
        self, seeds: Sequence[Address], name: str, timeout_s: float, dial: DialTo = dial_to
    ) -> None:
        super().__init__(_no_dial, new_hello(name), timeout_s)
        self.routes = Routes(timeout_s, secrets.randbits(16))
        self.lines = Lines(self)
        returns = Returns(self, self.lines)
        events = Events(returns.takes_back, self.heard, returns.link_lost)
        self.links = Links(seeds, name, self.routes, dial, events)
        self.links.changed = self._map_changed
        self._settlements = Settlements(self)
        self.fanouts: dict[int, FanOut] = {}
        self._numbers = count(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self._watch = Watch(self)
        self.links.linked = self._watch.listen
        self._news: asyncio.Event | None = None  # if somebody waits for it

    async def open(self) -> Welcome:
        """Learns the map, within the deadline; what the node that told it said of itself."""
        try:
            async with asyncio.timeout(self.timeout_s):
                while True:
                    try:
                        return await self.links.join()
                    except ClosedError:
                        raise
                    except UnavailableError as error:
                        self.links.why = error.message
                    await self.pause(HERE)
        except TimeoutError:
            await self.close()
            why = f"no connection: {self.links.why}"
            raise DeadlineError(why, advice=IS_A_NODE_THERE) from None

    # --- requests ----------------------------------------------------------------------------

    async def _perform(self, step: Step) -> Any:
        if not isinstance(step, Request):
            return await super()._perform(step)
        began = self._loop.time()
        pending = await self.start(step)
        return await self._finish(pending, began)

    async def perform(self, step: Step) -> Any:
        """One step of an operation, for the blocking shell."""
        return await self._perform(step)

    async def start(self, request: Request) -> Pending:
        """Sends a request as soon as its shard has an owner that can be reached."""
        self._check_open()
        self._watch.wake()
        if isinstance(request, SettleRequest):
            return await self._settlements.start(request)
        if request.node:
            return await self._start_there(request)
        link = self._free_link(request.shard)
        if link is not None:
            return self.start_on(link, request)
        return await self.lines.start_in_turn(request)

    def start_on(self, link: Link, request: Request) -> Pending:
        """Sends a request over a link; those sent later have higher numbers."""
        return link.start(request, next(self._numbers))

    def start_now(self, request: Request) -> Pending:
        """Sends a request without waiting; LimitError if that cannot be done."""
        self._check_open()
        self._watch.wake()
        if isinstance(request, SettleRequest):
            return self._settlements.start_now(request)
        link = self._free_link(request.shard)
        if link is None:
            raise LimitError("the request would have to wait")
        return self.start_on(link, request)

    def _free_link(self, shard: int) -> Link | None:
        if self.lines.has(shard):
            return None
        link = self.links.ready(self.routes.owner(shard))
        return link if link is not None and link.room else None

    async def _start_there(self, request: Request) -> Pending:
        node, version = request.node, self.routes.version
        try:
            async with asyncio.timeout(self.timeout_s):
                link = await self.links.link(node)
                while link.ready and not link.room:
                    await self.hear()
        except TimeoutError:
            raise DeadlineError(f"node {node} takes no requests: {self.links.why}") from None
        except ClosedError:
            raise
        except UnavailableError as error:
            await self.look_around(node, version)
            raise MovedError(error.message) from error
        self._check_open()
        if not link.ready:
            raise MovedError(f"the connection to node {node} was lost")
        if isinstance(request, WhereRequest) and not link.lists:
            raise InvalidError(f"node {node} keeps no lists of queues")
        return self.start_on(link, request)

    async def finish(self, pending: Pending) -> bytearray:
        """Waits for an answer; raises the error if it is one. DeadlineError: no answer in time."""
        return await self._finish(pending, self._loop.time())

    async def _finish(self, pending: Pending, began: float) -> bytearray:
        if not pending.done:
            seconds = self.timeout_s + pending.request.patience_s
            try:
                await self._wait([pending], max(began + seconds - self._loop.time(), 0.0))
            except BaseException:
                self.give_up(pending)
                raise
            if not pending.done:
                owing = self._owing(pending)
                self.abandon(pending)
                doubt(owing, began)
                raise self.late(seconds)
        return pending.result()

    def late(self, seconds: float) -> DeadlineError:
        """No answer came in time."""
        return DeadlineError(f"no answer within {seconds:g} s; the last trouble: {self.links.why}")

    def _owing(self, pending: Pending) -> list[Link]:
        """The nodes that were asked, be it for a part of a subscription."""
        fans = [fan for fan in self.fanouts.values() if fan.begun is pending]
        return [*self.links.asked([pending]), *(link for fan in fans for link in fan.links)]

    def abandon(self, pending: Pending) -> None:
        """Nobody waits for a pop or fetch any more: the node is told. Others stay in flight."""
        if pending.done or any(link.abandon(pending) for link in self.links.all()):
            return
        for fan in [fan for fan in self.fanouts.values() if fan.begun is pending]:
            self.unsubscribe(fan.subscription)
        if pending.request.resend is Resend.ANEW:
            self.lines.drop(pending)

    # --- trouble -----------------------------------------------------------------------------

    def is_new(self) -> bool:
        """Whether a stream that a node does not know may be too new for it."""
        return self.routes.may_be_new(self._loop.time())

    async def look_around(self, node: int, version: int) -> None:
        """After a node could not answer: asks for a newer map, and rests if there is none."""
        await self.links.renew(version, node)
        if self.routes.version == version and self.links.ready(node) is not None:
            await self.pause(-1 - node)

    async def pause(self, key: int) -> None:
        """The longer, the more often there was trouble with a shard (or, below 0, with a node)."""
        await asyncio.sleep(pause_s(self.routes.strike(key, self._loop.time())))

    @property
    def error(self) -> PenstockError | None:
        """Why nothing works any more, if that is so."""
        return self._error

    # --- subscriptions -----------------------------------------------------------------------

    def subscribe(self, subscription: Subscription) -> Pending:
        """Subscribes on every node that owns shards, from now on and as they change."""
        self._check_open()
        self._watch.wake()
        subscription.id = next(self._numbers)
        fan = self.fanouts[subscription.id] = FanOut(self, subscription)
        self.spawn(fan.begin())
        return fan.begun

    def credit(self, subscription: Subscription, messages: int) -> None:
        """Lets the nodes deliver so many more, in all."""
        if (fan := self.fanouts.get(subscription.id)) is not None:
            fan.credit(messages)

    def cancel(self, request_id: int) -> None:
        """Tells the nodes that nobody waits for a subscription any more."""
        if (fan := self.fanouts.get(request_id)) is not None:
            fan.stop()

    def unsubscribe(self, subscription: Subscription) -> None:
        """What still arrives for a cancelled subscription is late."""
        if (fan := self.fanouts.pop(subscription.id, None)) is not None:
            fan.end()

    async def arrival(self, subscription: Subscription, idle_timeout: float | None) -> bool:
        """As `AsyncConnection.arrival`. It is an outage when no node at all is subscribed to."""
        down_s = 0.0
        while not subscription.done:
            self._check_open()
            fan = self.fanouts[subscription.id]
            fan.waited_for()
            live = fan.live
            seconds = self.timeout_s if idle_timeout is None or not live else idle_timeout
            await self._wait([subscription], seconds)
            if subscription.done or fan.live != live:
                down_s = 0.0
            elif live:
                if idle_timeout is not None:
                    return False
            else:
                down_s += seconds
                if down_s >= self.timeout_s:
                    raise self.late(self.timeout_s)
        if not subscription.inbox and subscription.error is not None:
            raise subscription.error
        return True

    # --- what happens ------------------------------------------------------------------------

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Has something done in the background, until the fabric is closed."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def heard(self) -> None:
        """Wakes all who wait for something to happen."""
        if self._news is not None:
            self._news.set()
            self._news = None

    async def hear(self) -> None:
        """Until a node says something, a link is lost, or somebody comes to stand in a line."""
        if self._news is None:
            self._news = asyncio.Event()
        await self._news.wait()

    def _map_changed(self) -> None:
        self.lines.map_changed()
        self.update()
        self.heard()

    def update(self) -> None:
        """Subscriptions follow the map, and try again where it went wrong."""
        for fan in list(self.fanouts.values()):
            fan.update()

    async def close(self) -> None:
        """Ends all connections; calls under way end with ClosedError."""
        if self._error is None:
            self._error = ClosedError("the fabric is closed")
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for fan in list(self.fanouts.values()):
            fan.fail(self._error)
            if not fan.begun.done:
                fan.begun.settle(None, self._error)
        await self.links.close(self._error)
        self.heard()


async def _no_dial(wire: Wire) -> None:
    raise AssertionError("links dial for themselves")
