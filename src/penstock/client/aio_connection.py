"""The asyncio shell around the protocol core: one connection, any number of tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from penstock.client.aio_deadlines import Deadlines
from penstock.client.aio_places import Places
from penstock.client.aio_wire import Wire
from penstock.client.protocol import Protocol
from penstock.client.reconnect import CONNECT_S, pause_s
from penstock.client.requests import Pending, Request, Resend, Subscription, listen, unlisten
from penstock.client.routing import Routes
from penstock.client.steps import Abandon, Finish, Start, Step, Steps
from penstock.client.welcome import check_same, hello_frame, read_welcome
from penstock.errors import (
    ClosedError,
    DeadlineError,
    PenstockError,
    ProtocolError,
    UnavailableError,
    said,
)
from penstock.wire.frames import CREDIT, Verb, frame
from penstock.wire.messages import Hello, Welcome

T = TypeVar("T")
Dial = Callable[[Wire], Awaitable[object]]  # connects a wire to a node


class AsyncConnection:
    """As `connection.Connection`: it comes back, and sends again what was in flight.

    Belongs to the event loop that it was opened in. A cancelled pop is cancelled at the node; a
    cancelled push stays in flight.
    """

    routes: Routes | None = None  # of a cluster

    def __init__(self, dial: Dial, hello: Hello, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._dial = dial
        self._hello = hello
        self._protocol = Protocol()
        self._wire: Wire | None = None
        self._loop = asyncio.get_running_loop()
        self._deadlines = Deadlines(self._loop)
        self._places = Places(lambda: self._protocol.room)
        self._restoring: asyncio.Task[None] | None = None
        self._connects = 0  # how often a connection was made
        self._heard_s = 0.0  # when the node last said something
        self._strikes = 0  # attempts to connect since the last answer
        self._lost: PenstockError | None = None  # why there is no connection
        self._error: PenstockError | None = None  # final: nothing works any more
        self._welcome: Welcome | None = None
        self._greeting: asyncio.Future[list[bytearray]] | None = None

    async def open(self) -> Welcome:
        """Connects, within the deadline; what the node said of itself."""
        try:
            async with asyncio.timeout(self.timeout_s):
                await self._restore()
        except TimeoutError:
            await self.close()
            raise DeadlineError(self._no_connection()) from self._lost
        assert self._welcome is not None
        return self._welcome

    async def run(self, steps: Steps[T]) -> T:
        """Performs the steps of an operation; its result."""
        try:
            step = next(steps)
            while True:
                try:
                    outcome = await self._perform(step)
                except BaseException as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(outcome)
        except StopIteration as stop:
            result: T = stop.value
            return result

    async def _perform(self, step: Step) -> Any:
        if isinstance(step, Request):
            return await self.finish(await self.start(step))
        if isinstance(step, Start):
            return await self.start(step.request)
        if isinstance(step, Finish):
            return await self.finish(step.pending)
        if isinstance(step, Abandon):
            self.abandon(step.pending)
        else:
            await self._wait(step.pending, step.seconds)
        return None

    async def start(self, request: Request) -> Pending:
        """Sends a request. Waits only while too many are in flight, or the node does not read;
        DeadlineError if that takes too long."""
        if self._wire is not None and self._wire.crowded:
            await self._until_writable()
        if not self._places.scarce:
            return self.start_now(request)
        try:
            async with self._places.turn(self.timeout_s):
                return self.start_now(request)
        except TimeoutError:
            text = f"no answer within {self.timeout_s:g} s, and too many wait for one"
            raise DeadlineError(text) from None

    async def _until_writable(self) -> None:
        """Waits until the node has read what is on its way, or is lost."""
        began = self._loop.time()
        try:
            async with asyncio.timeout(self.timeout_s):
                while self._wire is not None and self._wire.crowded:
                    await self._wire.writable()
        except TimeoutError:
            text = f"not sent within {self.timeout_s:g} s, as the node does not read"
            raise self._late(text, began, "the node reads nothing") from None

    def start_now(self, request: Request) -> Pending:
        """Sends a request without waiting; LimitError if too many are in flight."""
        self._check_open()
        return self._send(self._protocol.start(request, reserved=True))

    def subscribe(self, subscription: Subscription) -> Pending:
        """Starts a standing request."""
        self._check_open()
        return self._send(self._protocol.subscribe(subscription))

    def credit(self, subscription: Subscription, messages: int) -> None:
        """Lets the node deliver so many more."""
        subscription.given += messages
        if self._wire is not None:
            credit = frame(Verb.CREDIT, subscription.id, 0, CREDIT.pack(messages))
            self._wire.send([credit])

    def cancel(self, request_id: int) -> None:
        """Tells the node that nobody waits for a request or subscription any more."""
        packed = self._protocol.cancel_frame(request_id)  # an outage ends a subscription as well
        if self._wire is not None:
            self._wire.send([packed])

    def unsubscribe(self, subscription: Subscription) -> None:
        """What still arrives for a cancelled subscription is late."""
        self._protocol.unsubscribe(subscription)

    async def finish(self, pending: Pending) -> bytearray:
        """Waits for an answer; raises the error if it is one. DeadlineError: no answer in time."""
        if not pending.done:
            began = self._loop.time()
            seconds = self.timeout_s + pending.request.patience_s
            try:
                await self._wait([pending], seconds)
            except BaseException:
                self.give_up(pending)
                raise
            if not pending.done:
                self.abandon(pending)
                raise self._late(f"no answer within {seconds:g} s", began, "the node is silent")
        return pending.result()

    def _late(self, text: str, began: float, why: str) -> DeadlineError:
        """The time of a call is up that began then. A node that has said nothing at all since is
        looked for anew."""
        if self._wire is None:
            return DeadlineError(self._no_connection())
        if self._heard_s < began:
            self._wire.drop(UnavailableError(why))
        return DeadlineError(text)

    async def arrival(self, subscription: Subscription, idle_timeout: float | None) -> bool:
        """Waits until a subscription has something; False when it was idle for too long.

        An outage is not idleness: it ends with DeadlineError after the connection's own time-out.
        """
        down_s = 0.0
        while not subscription.done:
            connects = self._connects
            down = self._wire is None
            seconds = self.timeout_s if idle_timeout is None or down else idle_timeout
            await self._wait([subscription], seconds)
            if connects != self._connects or subscription.done:
                down_s = 0.0
            elif self._wire is not None:
                if idle_timeout is not None:
                    return False
            else:
                down_s += seconds
                if down_s >= self.timeout_s:
                    raise DeadlineError(self._no_connection())
        if not subscription.inbox and subscription.error is not None:
            raise subscription.error
        return True

    def abandon(self, pending: Pending) -> None:
        """Nobody waits for a pop or fetch any more: the node is told. Others stay in flight."""
        if not pending.done and pending.request.resend is Resend.ANEW:
            self._protocol.forget(pending)
            self.cancel(pending.id)

    def give_up(self, pending: Pending) -> None:
        """Who waited was cancelled: as `abandon`. What came in the same turn of the loop, and will
        not be seen, is given back."""
        self.abandon(pending)
        pending.leave_unread()

    @property
    def closed(self) -> bool:
        """Whether nothing works any more."""
        return self._error is not None

    async def close(self) -> None:
        """Ends the connection; calls under way end with ClosedError."""
        wire, restoring = self._wire, self._restoring
        self._end(ClosedError("the fabric is closed"))
        if restoring is not None:
            await asyncio.wait([restoring])
        if wire is not None:
            await wire.closed()

    async def _wait(self, waitables: list[Pending] | list[Subscription], seconds: float) -> bool:
        """Until one is done; False after so many seconds."""
        if _any_done(waitables):
            return True
        future: asyncio.Future[None] = self._loop.create_future()
        wake = partial(_wake, future)
        self._deadlines.add(future, seconds)
        for each in waitables:
            listen(each, wake)
        try:
            await future
        finally:
            self._deadlines.remove(future)
            for each in waitables:
                unlisten(each, wake)
        return _any_done(waitables)

    def _check_open(self) -> None:
        if self._error is not None:
            raise self._error

    def _no_connection(self) -> str:
        why = "the node takes no requests" if self._lost is None else self._lost.message
        return f"no connection within {self.timeout_s:g} s: {why}"

    def _send(self, pending: Pending) -> Pending:
        if self._wire is not None:
            pending.sent, pending.since_s = True, pending.since_s or self._loop.time()
            self._wire.send(pending.parts)
        elif self._restoring is None:
            self._restoring = self._loop.create_task(self._restore())
        return pending

    # --- the wire ----------------------------------------------------------------------------

    def _received(self, wire: Wire, frames: list[bytearray]) -> None:
        if wire is not self._wire:
            if self._greeting is not None and not self._greeting.done():
                self._greeting.set_result(frames)
            return
        try:
            self._heard_s = self._loop.time()
            self._protocol.receive(frames)
            self._strikes = 0
        except PenstockError as error:
            wire.close(error)
        self._places.admit()

    def _ended(self, wire: Wire, error: PenstockError) -> None:
        self._lost = error
        if wire is not self._wire:
            if self._greeting is not None and not self._greeting.done():
                self._greeting.set_exception(UnavailableError(error.message))
            return
        self._wire = None
        if isinstance(error, ProtocolError):
            self._protocol.fail(error)
        if self._error is None and self._protocol.waiting and self._restoring is None:
            self._restoring = self._loop.create_task(self._restore())

    async def _restore(self) -> None:
        try:
            while self._wire is None and self._error is None:
                if self._strikes:
                    await asyncio.sleep(pause_s(self._strikes))
                self._strikes += 1
                try:
                    async with asyncio.timeout(CONNECT_S):
                        await self._connect()
                except (OSError, TimeoutError, UnavailableError) as error:
                    self._lost = UnavailableError(f"cannot connect: {said(error)}")
        except PenstockError as error:  # nothing that another attempt would change
            self._end(error)
            if self._welcome is None:
                raise
        finally:
            self._restoring = None

    async def _connect(self) -> None:
        greeting = self._greeting = self._loop.create_future()
        wire = Wire(self._received, self._ended)
        try:
            await self._dial(wire)
            wire.send([hello_frame(self._hello)])
            welcome = read_welcome(await greeting)
            check_same(self._welcome, welcome)
            self._check_open()
            wire.check_open()
        except BaseException as error:
            greeting.cancel()
            given_up = isinstance(error, asyncio.CancelledError) and self._lost is not None
            known = self._lost if given_up else None  # the attempt before may have said why
            wire.close(known or UnavailableError(f"cannot connect: {said(error)}"))
            raise
        finally:
            self._greeting = None
        self._welcome = welcome
        self._protocol.welcome(welcome)
        self._wire, self._lost = wire, None
        self._connects += 1
        for pending in self._protocol.resend(self._loop.time()):
            self._send(pending)

    def _end(self, error: PenstockError) -> None:
        if self._error is None:
            self._error = error
        if self._restoring is not None and self._restoring is not asyncio.current_task():
            self._restoring.cancel()
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.close(self._error)
        self._protocol.fail(self._error)
        self._places.admit()


def _any_done(waitables: list[Pending] | list[Subscription]) -> bool:
    for each in waitables:  # noqa: SIM110  # mostly one: costs less than a generator
        if each.done:
            return True
    return False


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
