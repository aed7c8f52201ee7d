"""What a system has to fill in: a server that can be started and killed, and a client of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import ClassVar, NamedTuple

from benchmarks.folders import data_folder, fresh_folder
from benchmarks.install import Needs, python_folder
from benchmarks.servers import Server, free_port

Body = bytes | memoryview
Sink = Callable[[Sequence[Body]], bool]
"""Takes the messages of a delivery (none: nothing came for a moment). False: take no more."""

MIB = 1 << 20


class Place(NamedTuple):
    """What a client is told: where the server is, and what it will be used for."""

    endpoint: str
    size: int = 50  # bytes of a message
    consumers: int = 1
    number: int = 0  # which of the consumers, or of the producers, it is


class Client(ABC):
    """One connection, in a process of its own.

    Libraries that block do so inside of these coroutines, which costs them nothing; asyncio's run
    on the loop that they are given.
    """

    uvloop: ClassVar[bool] = False

    def __init__(self, place: Place, variant: str) -> None:
        self.place = place
        self.variant = variant

    def window(self, most: int, budget: int = 8 * MIB) -> int:
        """How many messages to have under way: `most`, or as many as are `budget` bytes."""
        return max(2, min(most, budget // self.place.size))

    @abstractmethod
    async def open(self) -> None:
        """Connects; raises if the server is not there."""

    @abstractmethod
    async def close(self) -> None:
        """Ends the connection; also after an `open` that failed."""

    @abstractmethod
    async def reset(self) -> None:
        """Makes the queue, empty."""

    @abstractmethod
    async def push_all(self, bodies: Iterable[bytes]) -> int:
        """Pushes with the fastest calls of the library; how many, when all are confirmed."""

    @abstractmethod
    async def push_one(self, body: bytes) -> None:
        """Pushes a message, and waits until it is confirmed."""

    async def push_due(self, bodies: list[bytes]) -> None:
        """Pushes what is due by now; need not wait for confirmations."""
        await self.push_all(bodies)

    @abstractmethod
    async def pop_one(self) -> Body:
        """Takes a message and acknowledges it, confirmed if the system confirms that."""

    async def prepare(self) -> None:
        """Opens what a consumer needs beyond the connection; takes no message yet."""
        return None

    @abstractmethod
    async def consume(self, sink: Sink) -> None:
        """Delivers and acknowledges until the sink wants no more."""

    async def make_queue(self, name: str) -> None:
        """Makes one of many queues."""
        raise NotImplementedError

    async def push_to(self, name: str, body: bytes) -> None:
        """Pushes a message to one of many queues, confirmed."""
        raise NotImplementedError


class Peer(ABC):
    """What is measured, with its settings; one variant of a system is one object."""

    module: ClassVar[str]  # in which it is defined; names what is installed, too
    needs: ClassVar[Needs] = Needs()
    library: ClassVar[str] = ""  # the distribution of the client

    def __init__(self, name: str, variant: str) -> None:
        self.name = name
        self.variant = variant
        self.servers: list[Server] = []
        self.endpoint = ""

    def installs(self) -> dict[str, Needs]:
        """All that it needs, by the folder that it goes to."""
        return {self.module: self.needs}

    @property
    @abstractmethod
    def durable(self) -> str:
        """What is true of a message or task once it was accepted."""

    @property
    @abstractmethod
    def settings(self) -> str:
        """All that is not a default."""

    @abstractmethod
    def version(self) -> str:
        """Of the server, as it says itself."""

    def client_version(self) -> str:
        """Of the client library."""
        found = metadata.distributions(name=self.library, path=[str(python_folder(self.module))])
        return next((f"{self.library} {each.version}" for each in found), self.library)

    def stop(self) -> None:
        """Ends what was started, in good order."""
        while self.servers:
            self.servers.pop().stop()

    def kill(self) -> None:
        """Ends it as a crash would."""
        while self.servers:
            self.servers.pop().kill()


class System(Peer):
    """A broker: a server that can be started again on what it left behind."""

    max_queues: ClassVar[int] = 0  # how many queues are tried; 0: not measured
    sync_calls: Sequence[str] = ("fsync", "fdatasync", "sync_file_range", "msync")
    counts_memory: ClassVar[bool] = False  # waiting messages are in the process's own memory
    recovers = True  # the time from a start after a kill to the first message is measured
    moves_only = False  # there is no queue: only the rates of many messages are measured

    def __init__(self, name: str, variant: str) -> None:
        super().__init__(name, variant)
        self._port = 0

    def place(self, fresh: bool) -> tuple[Path, int]:
        """A folder and a port; what is started again has those that it had."""
        if fresh or not self._port:
            self._port = free_port()
        return fresh_folder(self.name) if fresh else data_folder() / self.name, self._port

    def rates(self, size: int, count: int) -> tuple[float, float | None]:
        """Of one that only moves messages: so many a second there, and back if they come back."""
        raise NotImplementedError

    @abstractmethod
    def start(self, fresh: bool = True) -> None:
        """Starts it, on an empty folder or on what it left behind. It listens on return."""


def chunks(bodies: Iterable[bytes], count: int) -> Iterator[list[bytes]]:
    """The same in lists of `count`, the last one perhaps shorter."""
    source = iter(bodies)
    while chunk := list(islice(source, count)):
        yield chunk
