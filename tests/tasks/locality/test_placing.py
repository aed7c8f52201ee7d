"""Locality on a real fabric: hosts that take tasks over, refuse them, and die."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from penstock import aio
from penstock.tasks.locality.directory import Directory
from penstock.tasks.locality.placing import Placing
from penstock.tasks.names import streams_of

NAMES = streams_of("set")
LONG_S = 10.0


class Hosts:
    """A fabric, the task set's queue, and workers, each on a host of its own."""

    def __init__(self, fabric: aio.AsyncFabric, stack: AsyncExitStack) -> None:
        self.fabric = fabric
        self._stack = stack

    async def start(self, host: str, depth: int = 2) -> Placing[None]:
        control = await self.fabric.table(NAMES.control)
        placing: Placing[None] = Placing(
            self.fabric, control, "set", host, f"{host}:1", depth, session_s=1.0
        )
        await placing.open()
        self._stack.push_async_callback(placing.close)
        return placing

    async def submit(self, *values: bytes) -> None:
        await (await self.fabric.queue(NAMES.queue)).push_many(values)


@asynccontextmanager
async def hosts_on(folder: Path) -> AsyncIterator[Hosts]:
    async with aio.open(str(folder)) as fabric, AsyncExitStack() as stack:
        yield Hosts(fabric, stack)


def run(folder: Path, story: Callable[[Hosts], Awaitable[None]]) -> None:
    async def told() -> None:
        async with hosts_on(folder) as hosts, asyncio.timeout(LONG_S):
            await story(hosts)

    asyncio.run(told())


async def pull(placing: Placing[None], hosts: Hosts, block: str, most: int = 100) -> None:
    queue = await hosts.fabric.queue(NAMES.queue)
    delivery = await queue.pop_batch(most)
    assert delivery is not None
    for row in range(len(delivery)):
        placing.found(None, delivery, row, block)


async def ran(placing: Placing[None], room: int = 100) -> list[tuple[bytes, str]]:
    """Runs, and acknowledges."""
    found = []
    for each in (await placing.due(room)).runs:
        task = each.task
        found.append((task.delivery.values[task.row], each.fetch_from))
        await task.delivery.ack(wait=True, rows=[task.row])
    return found


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110  # another's word, which nothing here announces
        await asyncio.sleep(0.005)


def knows(directory: Directory, block: str, host: str) -> Callable[[], bool]:
    return lambda: directory.find(block, "nobody")[1] == host


def test_tasks_go_to_their_data_until_its_host_is_full(tmp_path: Path) -> None:
    async def story(hosts: Hosts) -> None:
        here, there = await hosts.start("here"), await hosts.start("there", depth=2)
        await there.own(["block"])
        await until(knows(here.directory, "block", "there"))
        await hosts.submit(b"1", b"2", b"3")
        await pull(here, hosts, "block")
        assert [fetched for _, fetched in await ran(here)] == ["there"]
        assert (await there.queue.stats())["messages"] == 2
        delivery = await there.queue.pop_batch(10)
        assert delivery is not None
        for row in range(len(delivery)):
            there.found(None, delivery, row, "block", moved=True)
        assert [fetched for _, fetched in await ran(there)] == ["", ""]
        main = await hosts.fabric.queue(NAMES.queue)
        assert [(await q.stats())["messages"] for q in (main, there.queue)] == [0, 0]

    run(tmp_path, story)


def test_data_of_a_worker_that_has_gone_is_nowhere_and_its_tasks_are_not_lost(
    tmp_path: Path,
) -> None:
    async def story(hosts: Hosts) -> None:
        here, there = await hosts.start("here"), await hosts.start("there")
        await there.own(["block"])
        await until(knows(here.directory, "block", "there"))
        await hosts.submit(b"sent")
        await pull(here, hosts, "block")
        assert await ran(here) == []
        await there.close()
        await until(knows(here.directory, "block", ""))
        [left] = await here.orphaned()
        delivery = await left.pop_batch(10)
        assert delivery is not None
        here.found(None, delivery, 0, "block", moved=True)
        assert await ran(here) == [(b"sent", "")]

    run(tmp_path, story)


def test_who_comes_later_knows_what_was_said_before(tmp_path: Path) -> None:
    async def story(hosts: Hosts) -> None:
        there = await hosts.start("there")
        await there.own(["a", "b"])
        await there.disown(["b"])
        here = await hosts.start("here")
        await until(knows(here.directory, "a", "there"))
        assert knows(here.directory, "b", "")()

    run(tmp_path, story)


def test_a_task_that_was_tried_before_stays(tmp_path: Path) -> None:
    async def story(hosts: Hosts) -> None:
        here, there = await hosts.start("here"), await hosts.start("there")
        await there.own(["block"])
        await until(knows(here.directory, "block", "there"))
        await hosts.submit(b"again")
        queue = await hosts.fabric.queue(NAMES.queue)
        first = await queue.pop()
        assert first is not None
        await first.nack()
        await pull(here, hosts, "block")
        assert await ran(here) == [(b"again", "there")]

    run(tmp_path, story)


def test_a_task_whose_lease_was_lost_is_not_sent(tmp_path: Path) -> None:
    async def story(hosts: Hosts) -> None:
        here, there = await hosts.start("here"), await hosts.start("there")
        await there.own(["block"])
        await until(knows(here.directory, "block", "there"))
        await hosts.submit(b"task")
        queue = await hosts.fabric.queue(NAMES.queue)
        delivery = await queue.pop_batch(1)
        assert delivery is not None
        await delivery.ack(wait=True)  # as if another had taken it over, and was done
        here.found(None, delivery, 0, "block")
        assert await ran(here) == []
        assert here.engine.held == 0
        assert (await there.queue.stats())["messages"] == 0

    run(tmp_path, story)


def test_a_worker_that_was_taken_for_dead_says_again_what_it_has(tmp_path: Path) -> None:
    async def story(hosts: Hosts) -> None:
        here, there = await hosts.start("here"), await hosts.start("there")
        await there.own(["block"])
        await until(knows(here.directory, "block", "there"))
        assert there._session is not None
        await there._session.close()  # as if it had slept for too long
        await until(knows(here.directory, "block", ""))
        await until(knows(here.directory, "block", "there"))

    run(tmp_path, story)
