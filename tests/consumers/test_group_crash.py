"""Members that are cut off from the fabric at any moment, again and again: what they had stored,
and not committed, does not count; what they had committed does."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.consumers import clicks

import penstock
from penstock import aio
from penstock.consumers.assembler import Assembler
from penstock.consumers.fragments import Fragment, Fragments
from penstock.consumers.progress import Progress, SnapshotRef
from penstock.consumers.rules import Rules
from penstock.consumers.saving import Saving
from penstock.consumers.snapshot import Snapshot
from penstock.consumers.stateful import About, Completion, Stateful
from penstock.consumers.steps import Limits
from penstock.consumers.storage import Storage
from penstock.errors import ClosedError

TINY = Rules(
    lease_us=300_000, margin_us=50_000, quiet_us=5_000, check_us=20_000, audit_us=200_000,
    answer_us=100_000, handover_us=200_000,
)  # fmt: skip


def group_of(fabric: aio.AsyncFabric, guarantee: str) -> aio.ConsumerGroup:
    """Snapshots are made all the time."""
    return aio.ConsumerGroup(
        fabric, group="g", topic="clicks", handler=clicks.sessions, to="queue:sessions",
        guarantee=guarantee, rules=TINY, commit_every=0.02, limits=Limits(ignored=3),
    )  # fmt: skip


async def crash_again_and_again(
    fabric: penstock.Fabric, guarantee: str, chance: random.Random, crashes: int, grows: bool
) -> int:
    """How many messages were read again."""
    topic = fabric.topic("clicks", 2)
    feed = clicks.publish(topic, 40)
    again = 0
    for crash in range(crashes):
        if grows and crash % 2:
            topic.grow(topic.partitions + 2)
        reached = await fabric._asynchronous()
        group = group_of(reached, guarantee)
        task = asyncio.create_task(group.run())
        for _ in zip(range(12), feed, strict=False):
            await asyncio.sleep(chance.uniform(0.0, 0.06))
        await reached.close()
        with pytest.raises(ClosedError):
            await task
        again += int(group.status()["read_again"])
    list(feed)
    async with fabric._asynchronous() as reached:
        await group_of(reached, guarantee).run(until_idle=0.4)
    return again


@pytest.mark.parametrize("grows", [False, True], ids=["", "grows"])
@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once", "at-most-once"])
def test_crashes_keep_the_guarantee(tmp_path: Path, guarantee: str, grows: bool):
    chance = random.Random(guarantee)
    with penstock.open(str(tmp_path / "data")) as fabric:
        again = asyncio.run(crash_again_and_again(fabric, guarantee, chance, 5, grows))
        assert clicks.mistakes(clicks.delivered(fabric.queue("sessions")), guarantee) == []
        assert again > 0


# --- what is stored ------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path / "data")


async def tables(folder: str) -> AsyncIterator[Any]:
    async with aio.open(folder) as fabric:
        yield await fabric.table("states")


async def keys_of(table: Any) -> list[bytes]:
    return [key async for key, _ in table.items()]


def snapshot(storage: Storage, full: bool, **objects: bytes | None) -> Snapshot:
    ref = SnapshotRef(storage.next_reference(), 0, 0, 0)
    return Snapshot(ref, [(name.encode(), packed) for name, packed in objects.items()], full)


def test_a_snapshot_that_was_not_committed_does_not_change_the_one_before(folder: str):
    async def run() -> None:
        async for table in tables(folder):
            first = Storage(table, "g", "t", 0)
            one = snapshot(first, True, a=b"1", b=b"1", c=b"1")
            await first.drop(await first.put_snapshot(one))
            two = snapshot(first, False, a=b"2", b=None, d=b"2")
            superseded = await first.put_snapshot(two)

            late = Storage(table, "g", "t", 0)
            assert sorted(await late.get_snapshot(one.ref)) == [b"1", b"1", b"1"]
            assert sorted(await late.get_snapshot(two.ref)) == [b"1", b"2", b"2"]
            assert not late.is_own(two.ref)
            assert first.is_own(two.ref)

            await first.drop(superseded)
            assert sorted(await late.get_snapshot(two.ref)) == [b"1", b"2", b"2"]
            assert len(await keys_of(table)) == 3

            anew = snapshot(late, True, a=b"3")
            superseded = await late.put_snapshot(anew)
            assert sorted(await first.get_snapshot(two.ref)) == [b"1", b"2", b"2"]
            await late.drop(superseded)
            assert await first.get_snapshot(anew.ref) == [b"3"]
            assert len(await keys_of(table)) == 1

    asyncio.run(run())


class Offsets(Stateful[list[int]]):
    """What each key had, when its end comes."""

    completion = Completion(lambda fragment: fragment.value == b"end")

    def open(self, key: bytes) -> list[int]:
        return []

    def on_message(self, state: list[int], fragment: Fragment) -> list[int]:
        return [*state, fragment.offset]

    def finish(self, state: list[int], about: About) -> Iterator[bytes]:
        yield b" ".join(b"%d" % offset for offset in state)


def fragments(first: int, end: int) -> Fragments:
    """Of two keys by turns; the last of each ends it."""
    offsets = np.arange(first, end, dtype=np.int64)
    keys = [b"ab"[offset % 2 : offset % 2 + 1] for offset in range(first, end)]
    values = [b"end" if offset >= 10 else b"x" for offset in range(first, end)]
    return Fragments(keys, values, offsets, offsets, offsets)


async def stored(saving: Saving, assembler: Assembler[Any], first: int, end: int) -> Progress:
    """What may be committed when these are read."""
    assembler.take(fragments(first, end), 0)
    await saving.snapshot(assembler)
    return await saving.progress(assembler, 0)


def test_what_was_stored_for_a_commit_that_failed_is_not_committed_later(folder: str):
    """The worker goes back to its last commit, and makes its next snapshot before the place where
    it made the one that failed: it may take other turns this time."""

    async def run() -> None:
        async for table in tables(folder):
            storage = Storage(table, "g", "t", 0)
            saving = Saving(storage)

            before = await stored(saving, Assembler(Offsets()), 0, 4)
            await saving.committed()
            ref = before.snapshot
            assert ref is not None
            lost = Assembler(Offsets(), before, await storage.get_snapshot(ref))
            await stored(saving, lost, before.offset, 10)
            saving.opened(None)
            again = Assembler(Offsets(), before, await storage.get_snapshot(ref))
            after = await stored(saving, again, before.offset, 5)
            await saving.committed()

            assert after.snapshot is not None
            other = Storage(table, "g", "t", 0)
            resumed = Assembler(Offsets(), after, await other.get_snapshot(after.snapshot))
            step = resumed.take(fragments(after.offset, 12), 0)
            found = {result.key: result.value for result in step.results}
            assert found == {b"a": b"0 2 4 6 8 10", b"b": b"1 3 5 7 9 11"}

    asyncio.run(run())


def test_a_dump_is_there_as_it_was_or_not_at_all(folder: str, monkeypatch):
    monkeypatch.setattr("penstock.consumers.storage.CHUNK_BYTES", 10)

    async def run() -> None:
        async for table in tables(folder):
            storage = Storage(table, "a/b", "t", 3)
            packed = bytes(range(95))
            ref = await storage.put_dump(packed, None)
            assert await Storage(table, "a/b", "t", 3).get_dump(ref) == packed
            keys = await keys_of(table)
            assert len(keys) == ref.count == 10
            assert all(key.startswith(b"a%2Fb/t/3/dump/") for key in keys)
            await table.put(keys[4], b"0123456789")
            assert await storage.get_dump(ref) is None
            await storage.drop_dumps(None)
            assert await storage.get_dump(ref) is None
            assert await keys_of(table) == []

    asyncio.run(run())
