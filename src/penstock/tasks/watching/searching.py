"""Looking for tasks among the messages of a task set's queues.

All of it is bounded: in a queue that is very long, only the oldest messages are seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from penstock.client.aio import AsyncFabric
from penstock.client.aio_streams import AsyncQueue
from penstock.client.messages import LeasedMessage, SeenMessage
from penstock.errors import NotFoundError, ProtocolError
from penstock.tasks.envelope import TaskCall, read_call
from penstock.tasks.gangs.envelope import read_gang
from penstock.tasks.names import streams_of
from penstock.tasks.watching.facts import Sighting

MAX_MESSAGES = 50_000  # that are looked at in each state of a queue
MAX_QUEUES = 50  # of hosts, besides the main one

Read = Callable[[bytes], TaskCall]
Looks = dict[str, Sequence[LeasedMessage]]


class Search(NamedTuple):
    """What came of a search."""

    seen: Sighting | None
    queue: AsyncQueue
    """Where it was seen."""
    whole: bool
    """Whether all messages could be looked at."""


def _read_gang(value: bytes) -> TaskCall:
    return read_gang(value).call


class Searching:
    """The queues of a task set: the main one, that of gangs, and those of hosts."""

    def __init__(self, fabric: AsyncFabric, task_set: str, queue: AsyncQueue) -> None:
        self._fabric = fabric
        self._names = streams_of(task_set)
        self.queue = queue

    async def gangs(self) -> AsyncQueue | None:
        """The queue of gangs, if there is one."""
        try:
            return await self._fabric.queue(self._names.gangs, create=False)
        except NotFoundError:
            return None

    async def find(self, task: bytes) -> Search:
        """A task's message and its queue; without one, the main queue."""
        looks = await _looks(self.queue)
        if (seen := _found(looks, task, read_call)) is not None:
            return Search(seen, self.queue, True)
        if (gangs := await self.gangs()) is not None:
            seen = _found(await _looks(gangs), task, _read_gang)
            if seen is not None:
                return Search(seen, gangs, True)
        for queue in await self._of_hosts():
            seen = _found(await _looks(queue), task, read_call)
            if seen is not None:
                return Search(seen, queue, True)
        return Search(None, self.queue, await self._whole(looks))

    async def _whole(self, looks: Looks) -> bool:
        figures = await self.queue.stats()
        return sum(map(len, looks.values())) >= int(figures["messages"])

    async def _of_hosts(self) -> list[AsyncQueue]:
        prefix = f"{self._names.queue}.at."
        names = [each.name for each in await self._fabric.queues() if each.name.startswith(prefix)]
        return [await self._fabric.queue(name, create=False) for name in names[:MAX_QUEUES]]

    async def all(self) -> tuple[list[Sighting], bool]:
        """All messages of the main queue that can be seen, dead letters included; and whether they
        are all that there are."""
        looks = await _looks(self.queue)
        seen = [
            Sighting(state, call, message.deliveries)
            for state, messages in looks.items()
            for message in messages
            if (call := _call(message, read_call)) is not None
        ]
        return seen, await self._whole(looks)

    async def dead(self, limit: int) -> list[TaskCall]:
        """The oldest dead letters that can be read as tasks."""
        found = await self.queue.dead.peek(limit)
        calls = [_call(message, read_call) for message in found]
        return [call for call in calls if call is not None]


async def _looks(queue: AsyncQueue) -> Looks:
    """Messages by state, each as one answer of every node gives them."""
    held, delayed, leased, ready, dead = await asyncio.gather(
        queue.look("held", MAX_MESSAGES),
        queue.look("delayed", MAX_MESSAGES),
        queue.look("leased", MAX_MESSAGES),
        queue.peek(MAX_MESSAGES),
        queue.dead.peek(MAX_MESSAGES),
    )
    return {"held": held, "delayed": delayed, "ready": ready, "leased": leased, "dead": dead}


def _found(looks: Looks, task: bytes, read: Read) -> Sighting | None:
    for state, messages in looks.items():
        for ahead, message in enumerate(messages):
            if task not in message.value:  # in a call that mentions it, perhaps as a parent
                continue
            call = _call(message, read)
            if call is None or call.task != task:
                continue
            until_us = message.until_us if isinstance(message, SeenMessage) else 0
            members = message._granted.batch.header.members
            before = ahead if state == "ready" else 0
            return Sighting(state, call, message.deliveries, until_us, before, members)
    return None


def _call(message: LeasedMessage, read: Read) -> TaskCall | None:
    try:
        return read(message.value)
    except ProtocolError:
        return None
