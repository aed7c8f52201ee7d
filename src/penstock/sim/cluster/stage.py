"""What the actors of a cluster share, and small steps that all of them use."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from penstock.client.aio import AsyncFabric
from penstock.client.aio_streams import AsyncQueue, AsyncTable, AsyncTopic
from penstock.errors import PenstockError, UnavailableError
from penstock.sim.actors import Stream
from penstock.sim.history import History
from penstock.sim.world import World

RETRY_S = 0.5


@dataclass
class Stage:
    """What every actor can see."""

    world: World
    history: History
    over: bool = False  # no new work

    def now_us(self) -> int:
        """The world's time."""
        return self.world.now_us


@dataclass
class Actor:
    """One role of one life of a process, on one stream."""

    stage: Stage
    fabric: AsyncFabric
    name: str  # of the process and its life
    stream: Stream

    @property
    def world(self) -> World:
        """The world."""
        return self.stage.world

    @property
    def history(self) -> History:
        """Where everything is noted."""
        return self.stage.history

    @property
    def busy(self) -> bool:
        """Whether to go on."""
        return not self.stage.over

    async def rest(self, typical_us: int) -> None:
        """A pause of a random length."""
        await asyncio.sleep(self.world.latency(typical_us) / 1e6)

    async def open(self) -> Any:
        """The stream, made if it is not there; tried until it works."""
        stream = self.stream
        make: Callable[..., Awaitable[Any]] = getattr(self.fabric, stream.kind)
        while True:
            try:
                return await make(stream.name, **stream.options)
            except UnavailableError:
                await asyncio.sleep(RETRY_S)

    async def open_queue(self) -> AsyncQueue:
        """The stream as a queue."""
        queue: AsyncQueue = await self.open()
        return queue

    async def open_topic(self) -> AsyncTopic:
        """The stream as a topic."""
        topic: AsyncTopic = await self.open()
        return topic

    async def open_table(self) -> AsyncTable:
        """The stream as a table."""
        table: AsyncTable = await self.open()
        return table


def in_doubt(error: PenstockError) -> bool:
    """Whether nobody knows what became of a call that ended so; anything else is an answer."""
    return isinstance(error, UnavailableError)
