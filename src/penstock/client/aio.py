"""The asyncio shell: what `penstock.aio.connect` gives. The same names as in the blocking shell."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from itertools import cycle, islice
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from penstock.client import ops_fabric, ops_stage, transaction
from penstock.client.aio_cluster import AsyncCluster
from penstock.client.aio_connection import AsyncConnection, Dial
from penstock.client.aio_link import Address, dial_to
from penstock.client.aio_streams import AsyncQueue, AsyncTable, AsyncTopic
from penstock.client.aio_wire import Wire
from penstock.client.closing import AsyncClosing
from penstock.client.inputs import addresses_of, check_timeout
from penstock.client.producer import Producer
from penstock.client.settle import Settler, flush_settler
from penstock.client.shells import awaitable
from penstock.client.state import (
    FabricState,
)
from penstock.client.welcome import is_of_cluster, new_hello
from penstock.errors import ClosedError, PenstockError

if TYPE_CHECKING:
    from penstock.tasks.aio_app import AsyncTaskApp

_FLUSH_S = 0.05


def connect(
    url: str, timeout: float = 30.0, namespace: str = "default", name: str = ""
) -> Connecting:
    """Connects to a node, or to the cluster it is part of; await it, or use it with `async with`.

    As `penstock.connect`.
    """
    seeds = addresses_of(url)
    turns = cycle(seeds)

    async def dial(wire: Wire) -> None:
        for tried, address in enumerate(islice(turns, len(seeds)), start=1):
            try:
                return await dial_to(wire, address)
            except OSError:
                if tried == len(seeds):
                    raise

    async def reach() -> Reached:
        return Reached(dial, _nothing, seeds)

    return Connecting(reach, check_timeout(timeout), namespace, name)


async def _nothing() -> None:
    """A fabric over a socket owns nothing but the socket."""


class Reached(NamedTuple):
    """How to connect to a node, and what to do when the fabric is closed."""

    dial: Dial
    on_close: Callable[[], Awaitable[None]]
    seeds: Sequence[Address] = ()


class Connecting:
    """A connection to be: `fabric = await connect(…)`, or `async with connect(…) as fabric`."""

    def __init__(
        self,
        reach: Callable[[], Awaitable[Reached]],
        timeout: float,
        namespace: str,
        name: str,
    ) -> None:
        self._reach = reach
        self._timeout = timeout
        self._namespace = namespace
        self._name = name
        self._fabric: AsyncFabric | None = None

    def __await__(self) -> Generator[Any, None, AsyncFabric]:
        return self._open().__await__()

    async def _open(self) -> AsyncFabric:
        dial, on_close, seeds = await self._reach()
        connection: AsyncConnection = AsyncConnection(dial, new_hello(self._name), self._timeout)
        try:
            welcome = await connection.open()
            if seeds and is_of_cluster(welcome):
                await connection.close()
                connection = AsyncCluster(seeds, self._name, self._timeout)
                welcome = await connection.open()
        except BaseException:
            await on_close()
            raise
        identity = secrets.randbits(63) | 1
        producer = Producer(identity, welcome.shards, secrets.randbits(64))
        return AsyncFabric(connection, self._namespace, producer, on_close)

    async def __aenter__(self) -> AsyncFabric:
        self._fabric = await self._open()
        return self._fabric

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._fabric is not None:
            await self._fabric.close()


class AsyncFabric(FabricState, AsyncClosing):
    """A connection to a fabric, for the tasks of one event loop. Close it, or use `async with`."""

    def __init__(
        self,
        connection: AsyncConnection,
        namespace: str,
        producer: Producer,
        on_close: Callable[[], Awaitable[None]] = _nothing,
    ) -> None:
        super().__init__(namespace, producer)
        self._on_close = on_close
        self._connection = connection
        self._routes = connection.routes
        self._run = connection.run
        self._attended: set[Settler] = set()
        self._apps: list[AsyncTaskApp] = []

    async def queue(self, name: str, *, create: bool = True, **options: Any) -> AsyncQueue:
        """Opens a queue, and creates it if it is not there; options as `Fabric.queue`."""
        info = await self._run(ops_fabric.open_stream(self, "queue", name, options, create))
        return AsyncQueue(self, info)

    async def topic(
        self, name: str, partitions: int | None = None, *, create: bool = True, **options: Any
    ) -> AsyncTopic:
        """Opens a topic, and creates it if it is not there; options as `Fabric.topic`."""
        if partitions is not None:
            options["partitions"] = partitions
        info = await self._run(ops_fabric.open_stream(self, "topic", name, options, create))
        return AsyncTopic(self, info)

    async def table(self, name: str, *, create: bool = True, **options: Any) -> AsyncTable:
        """Opens a table, and creates it if it is not there; options as `Fabric.table`."""
        info = await self._run(ops_fabric.open_stream(self, "table", name, options, create))
        return AsyncTable(self, info)

    queues = awaitable(ops_fabric.queues)
    topics = awaitable(ops_fabric.topics)
    tables = awaitable(ops_fabric.tables)
    delete_queue = awaitable(ops_fabric.delete_queue)
    delete_topic = awaitable(ops_fabric.delete_topic)
    delete_table = awaitable(ops_fabric.delete_table)
    stats = awaitable(ops_fabric.stats)
    publish_staged = awaitable(ops_stage.publish_staged)
    discard_staged = awaitable(ops_stage.discard_staged)
    publications = awaitable(ops_stage.publications)
    forget_publication = awaitable(ops_stage.forget_publication)

    def transaction(self) -> AsyncTransaction:
        """A transaction; with `async with` it commits on a clean exit."""
        return AsyncTransaction(self)

    async def session(self, ttl: float = 10.0) -> AsyncSession:
        """A session, kept alive by a task: entries bound to it go when it ends."""
        return AsyncSession(self, await self._run(ops_fabric.new_session(self, ttl)), ttl)

    async def tasks(
        self,
        name: str = "default",
        *,
        durability: str | None = None,
        pickle_key: bytes | None = None,
        allow: Iterable[str] = (),
        outstanding: int = 100_000,
        patience: float | None = None,
        directory: str | os.PathLike[str] | None = None,
    ) -> AsyncTaskApp:
        """Opens a task set, and creates what it needs; as `Fabric.tasks`."""
        from penstock.tasks.aio_app import AsyncTaskApp  # of a layer above, for those who use it

        made = AsyncTaskApp(
            self, name, durability=durability, pickle_key=pickle_key, allow=allow,
            outstanding=outstanding, patience=patience, directory=directory,
        )  # fmt: skip
        self._apps.append(await made._open())
        return made

    async def close(self) -> None:
        """Closes its task apps, sends buffered acks, waits for them, and ends the connection."""
        try:
            for app in self._apps:
                await app.close()
            for settler in [each for each in self._attended if each.busy]:
                await self._run(flush_settler(settler))
            for settler in self._attended:
                settler.attended = False  # as in the background of the blocking one
        finally:
            await self._connection.close()
            await self._on_close()

    def _hurry(self, seconds: float) -> None:
        """Waits no longer than this for an answer from now on."""
        self._connection.timeout_s = min(self._connection.timeout_s, seconds)

    def _attend(self, settler: Settler) -> None:
        settler.attended = not self._connection.closed
        if not settler.attended:
            return
        self._attended.add(settler)
        asyncio.get_running_loop().call_later(_FLUSH_S, self._flush, settler)

    def _flush(self, settler: Settler) -> None:
        if self._connection.closed:
            return
        try:
            settler.flush_unheard()
        finally:  # whatever happens: acks to come rely on being attended, or on being told that not
            if settler.busy:
                self._attend(settler)
            else:
                settler.attended = False
                self._attended.discard(settler)


class AsyncTransaction(transaction.TransactionState):
    """A transaction. With `async with` it commits on a clean exit, else nothing is sent."""

    commit = awaitable(transaction.commit)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None and not self._done:
            await self.commit()
        self._done = True


class AsyncSession(AsyncClosing):
    """A session, kept alive by a task until `close`. `alive` turns False if it was lost."""

    def __init__(self, fabric: AsyncFabric, session: int, ttl: float) -> None:
        self._fabric = fabric
        self.id = session
        self.alive = True
        self._task = asyncio.get_running_loop().create_task(self._keep(ttl / 3))

    async def _keep(self, period_s: float) -> None:
        while self.alive:
            await asyncio.sleep(period_s)
            try:
                self.alive = await self._fabric._run(ops_fabric.keep_session(self.id))
            except ClosedError:
                self.alive = False
            except PenstockError:
                continue  # no answer now; the session may still be there

    async def close(self) -> None:
        """Ends the session: entries bound to it go now, or, in a cluster, a moment later."""
        self._task.cancel()
        if self.alive:
            self.alive = False
            await self._fabric._run(ops_fabric.close_session(self.id))
