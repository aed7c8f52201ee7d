"""Clients that placed messages before a topic grew: refusals in a lane, and readers that wait."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import penstock
from penstock import aio
from penstock.client.descent import Descent
from penstock.client.push import PushRequest, Terms
from penstock.client.rows import Rows
from penstock.errors import NotFoundError, StaleError
from penstock.wire.growth import ANY_GENERATION


def test_hundreds_under_way_are_all_placed_anew(tmp_path: Path):
    async def script() -> None:
        async with aio.open(str(tmp_path)) as fabric:
            topic, other = await fabric.topic("t", 1), await fabric.topic("t", 1)
            for partitions in (2, 5, 9):
                await topic.grow(partitions)
                keys = [b"%d" % number for number in range(300)]
                receipts = await asyncio.gather(*(other.publish(k, key=k) for k in keys))
                places = [receipt.partition for receipt in receipts]
                assert places == [topic._layout.partition_of(key) for key in keys]
            assert (await topic.stats())["messages"] == 900

    asyncio.run(script())


def test_what_is_meant_for_a_partition_is_never_placed_anew(tmp_path: Path):
    with penstock.open(str(tmp_path)) as fabric:
        topic = fabric.topic("t", 2)
        place = topic._explicit(1)
        assert (place.generation, place.topic) == (ANY_GENERATION, None)
        stale = topic._place(1, 0)._replace(topic=None)  # as of an older client
        topic.grow(4)
        request = PushRequest(stale, Rows([b"v"], [b"k"]), Terms(), 0)
        with pytest.raises(StaleError):
            fabric._connection.finish(fabric._connection.start(request))


def test_a_topic_that_was_created_anew_is_another(tmp_path: Path):
    with penstock.open(str(tmp_path)) as fabric:
        topic = fabric.topic("t", 2)
        topic.delete()
        with pytest.raises(NotFoundError):
            topic.refresh()
        fabric.topic("t", 2)
        with pytest.raises(NotFoundError):
            topic.refresh()


def test_a_grandchild_waits_though_its_parent_begins_after_the_split(tmp_path: Path):
    with penstock.open(str(tmp_path)) as fabric:
        topic = fabric.topic("t", 1)
        topic.publish(b"v")
        topic.grow(2)
        topic.grow(4)
        now = 0.0
        descent = Descent(topic, None, False, lambda: now)
        descent.hold(range(4))
        begun = {0: 0, 1: 1, 2: 1, 3: 1}
        assert fabric._run(descent.released(begun)) == [0]
        assert fabric._run(descent.released({**begun, 0: 1})) == [1, 2, 3]
        assert not descent.holds
        positions = {3: 5, 1: 4, 0: 1}
        assert descent.by_generation(positions) == [{0: 1}, {1: 4}, {3: 5}]
