"""The blocking shell around the protocol core: one socket, any number of threads.

Whoever waits for an answer reads for all: the thread that finds nobody reading takes the role, the
others sleep until their answer is there or the role is free. There is no thread in the background.
"""

from __future__ import annotations

import threading
import time
import typing
from collections.abc import Sequence
from typing import Any, TypeVar

from penstock.client.dialer import Dial, Dialer
from penstock.client.partings import Partings
from penstock.client.protocol import Protocol
from penstock.client.requests import Pending, Request, Resend, Subscription
from penstock.client.routing import Routes
from penstock.client.steps import Abandon, Finish, FinishAny, Start, Step, Steps
from penstock.client.transport import SocketTransport, Transport
from penstock.client.welcome import check_same
from penstock.errors import (
    ClosedError,
    DeadlineError,
    PenstockError,
    ProtocolError,
    UnavailableError,
)
from penstock.wire.buffers import Buffer
from penstock.wire.frames import CREDIT, Verb, frame
from penstock.wire.messages import Hello, Welcome

T = TypeVar("T")
PARTING_S = 5.0  # so long closing waits for those that take leave


class Waitable(typing.Protocol):
    """Something that is there at some time."""

    @property
    def done(self) -> bool:
        """Whether it is there."""


class Connection:
    """A connection that comes back: what was in flight when it was lost is sent again.

    Every call ends within its deadline, with DeadlineError if no answer came. Thread safe.
    """

    routes: Routes | None = None  # of a cluster

    def __init__(self, dial: Dial, hello: Hello, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.connects = 0  # how often a connection was made
        self._dialer = Dialer(dial, hello)
        self._protocol = Protocol()
        self._transport: Transport | None = None
        self._make_locks()
        self._heard_s = 0.0  # when the node last said something
        self._error: PenstockError | None = None  # final: nothing works any more
        self._welcome: Welcome | None = None

    def _make_locks(self) -> None:
        # Order of sequences is order of sending. Reentrant, as the end of a connection is part of
        # making one, and a signal's handler may use it.
        self._sending = threading.RLock()
        self._reading = threading.Lock()  # held by whoever reads
        self._changed = threading.Condition(threading.Lock())
        self._followers = 0
        self.partings = Partings()

    def open(self) -> Welcome:
        """Connects, within the deadline; what the node said of itself."""
        with self._reading:
            self._restore(time.monotonic() + self.timeout_s)
        assert self._welcome is not None
        return self._welcome

    def run(self, steps: Steps[T]) -> T:
        """Performs the steps of an operation; its result."""
        try:
            step = next(steps)
            while True:
                try:
                    outcome = self._perform(step)
                except BaseException as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(outcome)
        except StopIteration as stop:
            result: T = stop.value
            return result

    def _perform(self, step: Step) -> Any:
        if isinstance(step, Request):
            pending = self.start(step)
            if isinstance(self._transport, SocketTransport):
                self._transport.make_way()
            return self.finish(pending)
        if isinstance(step, Start):
            return self.start(step.request)
        if isinstance(step, Finish):
            return self.finish(step.pending)
        if isinstance(step, Abandon):
            return self.abandon(step.pending)
        return self._finish_any(step)

    def start(self, request: Request) -> Pending:
        """Sends a request. Waits only while too many are in flight.

        Without a connection it is kept, and sent when `finish` or another call has made one.
        """
        while True:
            while self._protocol.full:
                self._make_room()
            with self._sending:
                self._check_open()
                if self._protocol.full:  # by another thread
                    continue
                pending = self._protocol.start(request, reserved=True)
                self._send(pending)
                return pending

    def subscribe(self, subscription: Subscription) -> Pending:
        """Starts a standing request; as `start`."""
        while True:
            while self._protocol.full:
                self._make_room()
            with self._sending:
                self._check_open()
                if self._protocol.full:
                    continue
                pending = self._protocol.subscribe(subscription)
                self._send(pending)
                return pending

    def credit(self, subscription: Subscription, messages: int) -> None:
        """Lets the node deliver so many more."""
        with self._sending:
            subscription.given += messages
            self._send_parts([frame(Verb.CREDIT, subscription.id, 0, CREDIT.pack(messages))])

    def cancel(self, request_id: int) -> None:
        """Tells the node that nobody waits for a request or subscription any more."""
        with self._sending:
            self._send_parts([self._protocol.cancel_frame(request_id)])

    def unsubscribe(self, subscription: Subscription) -> None:
        """Drops what still arrives for a subscription that was cancelled."""
        with self._sending:
            self._protocol.unsubscribe(subscription)

    def finish(self, pending: Pending) -> bytearray:
        """Waits for an answer; raises the error if it is one.

        DeadlineError: no answer in time. A push stays in flight and is still sent again after a
        reconnect; a pop is cancelled.
        """
        if not pending.done:
            began = time.monotonic()
            try:
                seconds = self.timeout_s + pending.request.patience_s
                if not self.wait(pending, began + seconds):
                    self._doubt(began)
                    raise DeadlineError(f"no answer within {seconds:g} s")
            except DeadlineError:
                self.abandon(pending)
                if not pending.done:  # another thread may have read the answer just now
                    raise
            except BaseException:
                self.abandon(pending)
                raise
        return pending.result()

    def wait(self, waitable: Waitable, deadline: float, patience_s: float = 0.0) -> bool:
        """Reads, or lets another thread read, until something is there; False at the deadline.

        DeadlineError if there is no connection by then, and for `patience_s` since it was lost.
        """
        while not waitable.done:
            if self._reading.acquire(blocking=False):
                try:
                    if not waitable.done and not self._read(deadline, patience_s):
                        return waitable.done
                finally:
                    self._reading.release()
                    if self._followers:
                        self._wake_followers()
            elif not self._follow(waitable, deadline, patience_s):
                return waitable.done
        return True

    def arrival(self, subscription: Subscription, idle_timeout: float | None) -> bool:
        """Waits for a subscription; False when it was idle for too long.

        An outage is not idleness: it ends with DeadlineError after the connection's own time-out.
        """
        seconds = self.timeout_s if idle_timeout is None else idle_timeout
        while True:
            connects = self.connects
            if self.wait(subscription, time.monotonic() + seconds, self.timeout_s):
                break
            if idle_timeout is not None and self.connects == connects:
                return False
        if not subscription.inbox and subscription.error is not None:
            raise subscription.error
        return True

    def abandon(self, pending: Pending) -> None:
        """Nobody waits for a pop or fetch any more: the node is told. Others stay in flight."""
        if pending.done or pending.request.resend is not Resend.ANEW:
            return
        with self._sending:
            self._protocol.forget(pending)
            self._send_parts([self._protocol.cancel_frame(pending.id)])

    @property
    def idle(self) -> bool:
        """Whether it is there, over a socket, nothing is under way, and nobody sends: then to send
        something small takes no time."""
        if not isinstance(self._transport, SocketTransport) or self._protocol.in_flight:
            return False
        if not self._sending.acquire(blocking=False):
            return False
        self._sending.release()
        return True

    @property
    def closed(self) -> bool:
        """Whether nothing works any more."""
        return self._error is not None

    def close(self) -> None:
        """Ends the connection, once loops that were left have given back what nobody has seen.
        Calls under way end with ClosedError."""
        self.partings.finish(min(self.timeout_s, PARTING_S))
        with self._sending:
            self._end(ClosedError("the fabric is closed"))
        self._dialer.stop()
        self._wake_followers()

    def forked(self, reason: ClosedError) -> None:
        """This is another process: the connection is its parent's, and goes on there."""
        self._make_locks()
        self._error = reason
        transport, self._transport = self._transport, None
        if isinstance(transport, SocketTransport):
            transport.leave()

    def poll(self) -> None:
        """Takes in what has arrived, if nobody else reads; does not wait for it.

        If the connection is lost and something is in flight, makes an attempt at another when that
        is due: perhaps nobody else will, and the node is to hear of acks. PenstockError if in vain.
        """
        if self._protocol.in_flight and self._reading.acquire(blocking=False):
            try:
                transport = self._transport
                if transport is not None:
                    self._receive(transport, 0.0)
                elif self._error is None and (made := self._dialer.connect_once()) is not None:
                    self._install(*made)
            finally:
                self._reading.release()
                if self._followers:
                    self._wake_followers()

    def _check_open(self) -> None:
        if self._error is not None:
            raise self._error

    def _make_room(self) -> None:
        self._check_open()
        if not self.wait(_Room(self._protocol), time.monotonic() + self.timeout_s):
            raise DeadlineError(f"no answer within {self.timeout_s:g} s, and too many wait for one")

    def _finish_any(self, step: FinishAny) -> None:
        self.wait(_AnyOf(step.pending), time.monotonic() + step.seconds)

    def _send(self, pending: Pending) -> None:
        if self._transport is not None:
            pending.sent, pending.since_s = True, pending.since_s or time.monotonic()
            self._send_parts(pending.parts)

    def _send_parts(self, parts: Sequence[Buffer]) -> None:
        transport = self._transport
        if transport is None:
            return
        try:
            transport.send(parts)
        except UnavailableError:
            self._drop(transport)
        except BaseException:  # half a frame may be out: nothing more can follow it
            self._drop(transport)
            raise

    def _doubt(self, since: float) -> None:
        """A node that has said nothing at all since then is looked for anew."""
        transport = self._transport
        if transport is not None and self._heard_s < since:
            self._drop(transport)

    def _drop(self, transport: Transport) -> None:
        if self._transport is transport:
            self._transport = None
        transport.close()

    def _read(self, deadline: float, patience_s: float) -> bool:
        transport = self._transport
        if transport is None:
            deadline = max(deadline, time.monotonic() + patience_s)
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            return False
        self._check_open()
        if transport is None:
            self._restore(deadline)
        else:
            self._receive(transport, remaining)
        return True

    def _receive(self, transport: Transport, timeout: float) -> None:
        try:
            frames = transport.receive(timeout, bool(self._protocol.in_flight))
            if frames:
                self._heard_s = time.monotonic()
                self._protocol.receive(frames)
                self._dialer.strikes = 0
        except UnavailableError:
            self._drop(transport)
        except ProtocolError as error:
            self._drop(transport)
            with self._sending:
                self._protocol.fail(error)
        except BaseException:  # bytes may be lost between the socket and the splitter
            self._drop(transport)
            raise

    def _follow(self, waitable: Waitable, deadline: float, patience_s: float) -> bool:
        if self._transport is None:  # who reads makes one
            deadline = max(deadline, time.monotonic() + patience_s)
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            return False
        with self._changed:
            self._followers += 1
            try:
                # The role may have become free since: then nobody would wake us.
                if not waitable.done and self._reading.locked():
                    self._changed.wait(remaining)
            finally:
                self._followers -= 1
        return True

    def _wake_followers(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _restore(self, deadline: float) -> None:
        """Connects and sends again what is in flight; only by whoever reads."""
        self._install(*self._dialer.connect(deadline))

    def _install(self, transport: Transport, welcome: Welcome) -> None:
        with self._sending:
            try:
                self._check_open()
                check_same(self._welcome, welcome)
            except PenstockError as error:
                transport.close()
                self._end(error)
                raise
            self._welcome = welcome
            self._protocol.welcome(welcome)
            self._transport = transport
            self.connects += 1
            for pending in self._protocol.resend(time.monotonic()):
                self._send(pending)

    def _end(self, error: PenstockError) -> None:
        if self._error is None:
            self._error = error
        if self._transport is not None:
            self._drop(self._transport)
        self._protocol.fail(self._error)


class _Room:
    """Done when another request may start: whichever was answered."""

    def __init__(self, protocol: Protocol) -> None:
        self._protocol = protocol

    @property
    def done(self) -> bool:
        return not self._protocol.full


class _AnyOf:
    """Done when one of several requests is."""

    def __init__(self, pendings: list[Pending]) -> None:
        self._pendings = pendings

    @property
    def done(self) -> bool:
        return any(pending.done for pending in self._pendings)
