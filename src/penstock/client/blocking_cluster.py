"""The blocking shell of a cluster: the asyncio one, on an event loop in a thread of its own.

Operations run in the thread that calls, step by step; only what waits for nodes happens in the
loop. So an iterable given to `push_many` may itself use the fabric.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import CancelledError
from typing import Any, TypeVar

from penstock.client.aio_cluster import AsyncCluster
from penstock.client.aio_link import Address, DialTo, dial_to
from penstock.client.closing import END_SECONDS, end_tasks
from penstock.client.connection import PARTING_S, Connection
from penstock.client.requests import Pending, Request, Subscription
from penstock.client.steps import Finish, FinishAny, Start, Step
from penstock.client.transport import Transport
from penstock.client.welcome import new_hello
from penstock.errors import ClosedError
from penstock.wire.messages import Welcome

T = TypeVar("T")
_JOIN_S = END_SECONDS + 1.0


class ClusterConnection(Connection):
    """As `Connection`, but to all nodes of a cluster. Thread safe; but nothing may be called in the
    loop's own thread, which would wait for itself: what ends there is left to `partings`."""

    def __init__(
        self, seeds: Sequence[Address], name: str, timeout_s: float, dial: DialTo = dial_to
    ) -> None:
        super().__init__(_no_dial, new_hello(name), timeout_s)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._work, name="penstock-cluster", daemon=True)
        self._thread.start()
        self._cluster = self._await(self._made(seeds, name, dial))
        self.routes = self._cluster.routes

    def _make_locks(self) -> None:
        super()._make_locks()
        self._ending = threading.RLock()  # nothing is handed to the loop once it is to stop

    def _work(self) -> None:
        self._loop.run_forever()
        end_tasks(self._loop)
        self._loop.close()

    async def _made(self, seeds: Sequence[Address], name: str, dial: DialTo) -> AsyncCluster:
        return AsyncCluster(seeds, name, self.timeout_s, dial)

    def _await(self, work: Coroutine[Any, Any, T]) -> T:
        """Has it done in the loop; what it returns or raises. An interrupt cancels it."""
        with self._ending:
            if self._error is not None:
                work.close()
                raise self._error
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except CancelledError:
            raise self._error or ClosedError("the fabric is closed") from None
        except BaseException:
            future.cancel()
            raise

    def _call(self, act: Callable[..., T], *args: Any) -> T:
        async def called() -> T:
            return act(*args)

        return self._await(called())

    def open(self) -> Welcome:
        """Learns the map, within the deadline; what the node that told it said of itself."""
        try:
            return self._await(self._cluster.open())
        except BaseException:
            self.close()
            raise

    def _perform(self, step: Step) -> Any:
        if isinstance(step, Finish) and step.pending.done:
            return step.pending.result()
        if isinstance(step, Request | Start | Finish | FinishAny):
            return self._await(self._cluster.perform(step))
        return self.abandon(step.pending)

    def start(self, request: Request) -> Pending:
        """Sends a request, as soon as its shard has an owner."""
        return self._await(self._cluster.start(request))

    def finish(self, pending: Pending) -> bytearray:
        """Waits for an answer; raises the error if it is one. DeadlineError: no answer in time."""
        return pending.result() if pending.done else self._await(self._cluster.finish(pending))

    def arrival(self, subscription: Subscription, idle_timeout: float | None) -> bool:
        """Waits for a subscription; False when it was idle for too long."""
        if subscription.inbox:
            return True
        return self._await(self._cluster.arrival(subscription, idle_timeout))

    def subscribe(self, subscription: Subscription) -> Pending:
        """Subscribes on every node that owns shards, from now on and as they change."""
        return self._call(self._cluster.subscribe, subscription)

    def credit(self, subscription: Subscription, messages: int) -> None:
        """Lets the nodes deliver so many more, in all."""
        self._call(self._cluster.credit, subscription, messages)

    def cancel(self, request_id: int) -> None:
        """Tells the nodes that nobody waits for a subscription any more."""
        self._call(self._cluster.cancel, request_id)

    def unsubscribe(self, subscription: Subscription) -> None:
        """What still arrives for a cancelled subscription is late."""
        self._call(self._cluster.unsubscribe, subscription)

    def abandon(self, pending: Pending) -> None:
        """Nobody waits for a pop or fetch any more: the node is told. Others stay in flight."""
        if not pending.done:
            self._call(self._cluster.abandon, pending)

    def poll(self) -> None:
        """The loop takes in what arrives, at any time."""

    def close(self) -> None:
        """Ends all connections and the thread; calls under way end with ClosedError."""
        if self._error is not None:
            return
        self.partings.finish(min(self.timeout_s, PARTING_S))
        try:
            self._await(self._cluster.close())
        finally:
            with self._ending:
                if self._error is None:
                    self._error = ClosedError("the fabric is closed")
                    self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_JOIN_S)


def _no_dial(seconds: float) -> Transport:
    raise AssertionError("links dial for themselves")
