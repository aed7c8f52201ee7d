"""The blocking shell: what `penstock.connect` gives."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from penstock.client import ops_fabric, ops_stage, transaction
from penstock.client.background import Background
from penstock.client.blocking_cluster import ClusterConnection
from penstock.client.blocking_streams import Queue, Table, Topic
from penstock.client.closing import Closing
from penstock.client.connection import Connection
from penstock.client.dialer import Dial
from penstock.client.inputs import addresses_of, check_timeout
from penstock.client.leaving import forget, remember
from penstock.client.producer import Producer
from penstock.client.settle import flush_settler
from penstock.client.shells import blocking
from penstock.client.state import (
    FabricState,
)
from penstock.client.transport import SeedDial
from penstock.client.welcome import is_of_cluster, new_hello
from penstock.errors import ClosedError, InvalidError
from penstock.machine import may_spin
from penstock.wire.messages import Welcome

if TYPE_CHECKING:
    from penstock.client.aio import Connecting
    from penstock.tasks.app import TaskApp


def _nothing() -> None:
    """A fabric over a socket owns nothing but the socket."""


def connect(url: str, timeout: float = 30.0, namespace: str = "default", name: str = "") -> Fabric:
    """Connects to a node, `penstock://host:port` or `host:port`, or to the cluster it is part of.

    Several nodes of a cluster may be given, `penstock://host:port,host:port`: the first that
    answers counts. The client then finds all others by itself.
    `timeout` is the deadline of every call, in seconds; a lost connection is restored within it.
    `name` is shown in the node's figures. DeadlineError if there is no connection in time.
    """
    seeds = addresses_of(url)
    hello = new_hello(name, wakes=may_spin())
    connection = Connection(SeedDial(seeds), hello, check_timeout(timeout))
    welcome = connection.open()
    if is_of_cluster(welcome):
        connection.close()
        connection = ClusterConnection(seeds, name, timeout)
        welcome = connection.open()

    def asynchronous() -> Connecting:
        from penstock.client import aio  # asyncio takes its time to import; few need both

        return aio.connect(url, timeout, namespace, name)

    return _fabric(connection, welcome, namespace, _nothing, asynchronous)


def fabric_over(
    dial: Dial,
    timeout: float,
    namespace: str,
    name: str,
    on_close: Callable[[], None] = _nothing,
    asynchronous: Callable[[], Connecting] | None = None,
) -> Fabric:
    """A fabric over any transport; `dial` is called again when the connection is lost.

    `on_close` is called last when the fabric is closed. `asynchronous`: the same for event loops.
    """
    connection = Connection(dial, new_hello(name), check_timeout(timeout))
    return _fabric(connection, connection.open(), namespace, on_close, asynchronous)


def _fabric(
    connection: Connection,
    welcome: Welcome,
    namespace: str,
    on_close: Callable[[], None],
    asynchronous: Callable[[], Connecting] | None,
) -> Fabric:
    identity = secrets.randbits(63) | 1
    producer = Producer(identity, welcome.shards, secrets.randbits(64))
    return Fabric(connection, namespace, producer, on_close, asynchronous)


def _no_twin() -> Connecting:
    raise InvalidError("this fabric cannot be used by an event loop too")


class Fabric(FabricState, Closing):
    """A connection to a fabric. Threads may share it. Close it, or use it as a context manager."""

    def __init__(
        self,
        connection: Connection,
        namespace: str,
        producer: Producer,
        on_close: Callable[[], None] = _nothing,
        asynchronous: Callable[[], Connecting] | None = None,
    ) -> None:
        super().__init__(namespace, producer)
        self._on_close = on_close
        self._asynchronous = asynchronous or _no_twin  # opens the same for an event loop
        self._connection = connection
        self._routes = connection.routes
        self._run = connection.run
        self._background = Background(connection)
        self._apps: list[TaskApp] = []
        remember(self)

    def queue(self, name: str, *, create: bool = True, **options: Any) -> Queue:
        """Opens a queue, and creates it if it is not there (else NotFoundError, if not `create`).

        Options: durability, lease, max_deliveries, max_messages, max_bytes, ttl, ordered (True: the
        whole queue, "key": every key), id_window, stealing (False: in a cluster, messages do not
        move to nodes where consumers wait), gangs (True: for `push_gang` and `park`).
        ExistsError if it is there with other settings.
        """
        return Queue(self, self._run(ops_fabric.open_stream(self, "queue", name, options, create)))

    def topic(
        self, name: str, partitions: int | None = None, *, create: bool = True, **options: Any
    ) -> Topic:
        """Opens a topic, and creates it if it is not there (else NotFoundError, if not `create`).

        Options: partitions, durability, retention, retention_bytes, keep ("all" or "latest").
        """
        if partitions is not None:
            options["partitions"] = partitions
        return Topic(self, self._run(ops_fabric.open_stream(self, "topic", name, options, create)))

    def table(self, name: str, *, create: bool = True, **options: Any) -> Table:
        """Opens a table, and creates it if it is not there (else NotFoundError, if not `create`).

        Options: durability, max_bytes.
        """
        return Table(self, self._run(ops_fabric.open_stream(self, "table", name, options, create)))

    queues = blocking(ops_fabric.queues)
    topics = blocking(ops_fabric.topics)
    tables = blocking(ops_fabric.tables)
    delete_queue = blocking(ops_fabric.delete_queue)
    delete_topic = blocking(ops_fabric.delete_topic)
    delete_table = blocking(ops_fabric.delete_table)
    stats = blocking(ops_fabric.stats)
    publish_staged = blocking(ops_stage.publish_staged)
    discard_staged = blocking(ops_stage.discard_staged)
    publications = blocking(ops_stage.publications)
    forget_publication = blocking(ops_stage.forget_publication)

    def transaction(self) -> Transaction:
        """A transaction; as a context manager it commits on a clean exit."""
        return Transaction(self)

    def session(self, ttl: float = 10.0) -> Session:
        """A session, kept alive in the background: entries bound to it go when it ends."""
        return Session(self, ttl)

    def tasks(
        self,
        name: str = "default",
        *,
        durability: str | None = None,
        pickle_key: bytes | None = None,
        allow: Iterable[str] = (),
        outstanding: int = 100_000,
        patience: float | None = None,
        directory: str | os.PathLike[str] | None = None,
    ) -> TaskApp:
        """Opens a task set, and creates what it needs: submit functions to it, workers run them.

        `durability`: of its streams; ExistsError if they are there with another. `pickle_key`: at
        least 16 bytes that the workers were given too; then what cannot be sent otherwise is
        pickled, and signed with it. `allow`: packages whose classes results may be of, besides
        those of the functions. `outstanding`: tasks that may be waited for at a time; submitting
        more blocks, and raises LimitError after `patience` seconds, if that is given. `directory`:
        shared with the workers, for values of more than 64 MiB. It is closed with the fabric, if
        not before.
        """
        from penstock.tasks.app import TaskApp  # of a layer above, and only for those who use it

        app = TaskApp(
            self, name, durability=durability, pickle_key=pickle_key, allow=allow,
            outstanding=outstanding, patience=patience, directory=directory,
        )  # fmt: skip
        self._apps.append(app)
        return app

    def close(self) -> None:
        """Closes its task apps, sends buffered acks, waits for them, and ends the connection. A
        program that ends before does it then, and waits a few seconds at most."""
        forget(self)
        try:
            for app in self._apps:
                app.close()
            for settler in self._background.close():
                self._run(flush_settler(settler))
        finally:
            self._connection.close()
            self._on_close()

    def _hurry(self, seconds: float) -> None:
        """Waits no longer than this for an answer from now on."""
        self._connection.timeout_s = min(self._connection.timeout_s, seconds)
        for app in self._apps:
            app._hurry(seconds)

    def _forked(self, reason: ClosedError) -> None:
        """This is another process than the one that opened it: nothing works here but `close`."""
        self._connection.forked(reason)
        self._background.forked(reason)
        for app in self._apps:
            app._forked(reason)


class Transaction(transaction.TransactionState):
    """A transaction. As a context manager it commits on a clean exit, else nothing is sent."""

    commit = blocking(transaction.commit)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None and not self._done:
            self.commit()
        self._done = True


class Session(Closing):
    """A session, kept alive in the background until `close`. `alive` turns False if it was lost."""

    def __init__(self, fabric: Fabric, ttl: float) -> None:
        self._fabric = fabric
        self.id: int = fabric._run(ops_fabric.new_session(fabric, ttl))
        self.alive = True
        self._period_s = ttl / 3
        self._due = time.monotonic() + self._period_s
        fabric._background.add_session(self)

    def keep_due(self, now: float) -> bool:
        """Whether it is time to keep it alive."""
        return self.alive and now >= self._due

    def keep(self) -> None:
        """Keeps it alive; the background does that by itself."""
        self._due = time.monotonic() + self._period_s
        kept = self._fabric._run(ops_fabric.keep_session(self.id))
        self.alive = self.alive and kept  # it may have been closed meanwhile

    def close(self) -> None:
        """Ends the session: entries bound to it go now, or, in a cluster, a moment later."""
        self._fabric._background.remove_session(self)
        if self.alive:
            self.alive = False
            self._fabric._run(ops_fabric.close_session(self.id))
