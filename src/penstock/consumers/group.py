"""A consumer of a group in blocking programs: what `penstock.ConsumerGroup` is.

It is the member of the asyncio shell on an event loop of its own, in the thread that calls `run`,
or in one in the background.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from penstock.client.aio import connect
from penstock.client.blocking import Fabric
from penstock.consumers.calls import ErrorPolicy
from penstock.consumers.explain import Explanation
from penstock.consumers.member import GroupMember
from penstock.consumers.outlets import Targets
from penstock.consumers.rules import Rules
from penstock.consumers.settings import MAX_COMMIT_RESULTS, Guarantee, Handler, Settings
from penstock.consumers.steps import Limits
from penstock.errors import InvalidError

T = TypeVar("T")


class ConsumerGroup:
    """One member of a group that reads a topic and assembles objects from its messages.

    Start as many of them as there is work for, anywhere: they share the partitions, and go on where
    one that died stood. `stop`, `drain`, `status` and `explain` may be called from any thread.
    """

    def __init__(
        self,
        fabric: str | Fabric,
        *,
        group: str,
        topic: str,
        handler: Handler,
        to: Targets,
        guarantee: Guarantee = "exactly-once",
        late_to: Targets | None = None,
        dead_to: Targets | None = None,
        on_error: ErrorPolicy | None = None,
        start: Literal["first", "last"] = "first",
        weight: float = 1.0,
        pins: Collection[int] = (),
        drain: float | None = None,
        rules: Rules | None = None,
        limits: Limits | None = None,
        commit_every: float = 1.0,
        commit_results: int = MAX_COMMIT_RESULTS,
        prefetch_bytes: int = 32 << 20,
        name: str = "",
    ) -> None:
        """`handler`: a Stateful, its class, or a function that makes one for each partition.
        `to`: "queue:NAME", "topic:NAME", "table:NAME", a function of a result, or an Outlet; a list
        of them: all get everything; a dict: results name where they go, the first is the default.
        `start`: where a group begins that has no position yet. `drain`: leave from the start on,
        over so many seconds. The others stand where they are kept: see `Settings`, `Rules`,
        `Limits`, `ErrorPolicy`. InvalidError if it cannot work."""
        if not isinstance(fabric, str | Fabric):
            raise InvalidError(f"a group needs a URL or a Fabric, not {fabric!r}")
        self._fabric = fabric
        self.settings = Settings(
            group=group, topic=topic, handler=handler, to=to, guarantee=guarantee,
            late_to=late_to, dead_to=dead_to, on_error=on_error or ErrorPolicy(), start=start,
            weight=weight, pins=pins, drain=drain, rules=rules or Rules(),
            limits=limits or Limits(), commit_every=commit_every, commit_results=commit_results,
            prefetch_bytes=prefetch_bytes, name=name,
        )  # fmt: skip
        self._member = GroupMember(self.settings)
        self._lock = threading.Lock()
        self._begun = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop_wanted = False
        self._thread: threading.Thread | None = None
        self._outcome: Future[None] = Future()

    @property
    def id(self) -> str:
        """The name of this life of this member."""
        return self._member.id

    def run(
        self, until_idle: float | None = None, joined: Callable[[], None] | None = None
    ) -> None:
        """Works in this thread until `stop` was called and everything is handed over or committed.

        `until_idle`: also once all is read and committed and nothing came for so many seconds.
        HandlerError, or whatever else stopped it, when it has left. Ctrl-C has it leave in order,
        within some seconds; a second one at once. `joined` is called when it is in the group.
        """
        with self._lock:
            if self._begun:
                raise InvalidError("a member runs once", advice="Make another ConsumerGroup.")
            self._begun = True
        asyncio.run(self._main(until_idle, joined))

    async def _main(
        self, until_idle: float | None, joined: Callable[[], None] | None
    ) -> None:
        given = self._fabric
        opening = connect(given, name=self.id) if isinstance(given, str) else given._asynchronous()
        async with opening as fabric:
            with self._lock:
                self._loop = asyncio.get_running_loop()
                if self._stop_wanted:
                    self._member.stop()
            try:
                await self._member.run(fabric, until_idle, joined)
            finally:
                with self._lock:
                    self._loop = None

    def start(self, until_idle: float | None = None) -> Self:
        """The same in a thread in the background; it is in the group when this returns."""
        joined = threading.Event()

        def work() -> None:
            try:
                self.run(until_idle, joined.set)
            except BaseException as error:
                self._outcome.set_exception(error)
            else:
                self._outcome.set_result(None)
            joined.set()

        self._thread = threading.Thread(target=work, name=f"penstock-{self.id}", daemon=True)
        self._thread.start()
        joined.wait()
        return self

    def wait(self, timeout: float | None = None) -> None:
        """Waits until what `start` started is over; raises what stopped it. TimeoutError."""
        if self._thread is None:
            raise InvalidError("nothing was started", advice="Call start, or use run.")
        self._outcome.result(timeout)
        self._thread.join()

    def stop(self) -> None:
        """Has it hand over to those who stay, commit, and leave. Does not wait for that."""
        with self._lock:
            self._stop_wanted = True
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._member.stop)

    def drain(self, seconds: float) -> None:
        """Gives partitions away little by little over so many seconds, and leaves then."""
        with self._lock:
            if self._loop is None:
                raise InvalidError("only a member that runs can drain")
            self._loop.call_soon_threadsafe(self._member.drain, seconds)

    def status(self) -> dict[str, Any]:
        """Figures of this member, as plain data."""
        return self._asked(self._member.status)

    def explain(self, partition: int) -> Explanation:
        """Why a partition is where it is, as this member sees it."""
        return self._asked(lambda: self._member.explain(partition))

    def _asked(self, question: Callable[[], T]) -> T:
        """Asks on the loop, if it runs in another thread."""
        answer: Future[T] = Future()

        def ask() -> None:
            try:
                answer.set_result(question())
            except BaseException as error:
                answer.set_exception(error)

        with self._lock:
            loop = self._loop
            if loop is not None and not _is_running(loop):
                loop.call_soon_threadsafe(ask)
            else:
                ask()
        return answer.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        if self._thread is not None:
            self._thread.join()


def _is_running(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether this very thread runs the loop."""
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False
