"""Reading ahead: what was read, and cannot be taken yet, is not passed by."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from penstock import aio
from penstock.consumers.prefetch import FetchRoom, Prefetch

SPLIT = 2  # the offset at which a child took over


class SlowTopic:
    """A topic whose answers to questions about splits wait until they are let through."""

    def __init__(self, topic: aio.AsyncTopic) -> None:
        self._topic = topic
        self.asked, self.answered = asyncio.Event(), asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._topic, name)

    async def _run(self, steps: Any) -> Any:
        if steps.__name__ != "splits_of":
            return await self._topic._run(steps)
        steps.close()
        self.asked.set()
        await self.answered.wait()
        return [(1, SPLIT)]


def test_the_last_batch_before_a_split_is_taken_before_the_split(tmp_path: Path) -> None:
    """The split is known already when the batch is read; while splits are asked for once more, the
    batch can not be taken yet, and whoever processes the partition must not think it has passed."""

    async def read() -> None:
        async with aio.open(str(tmp_path / "data")) as fabric:
            topic = await fabric.topic("t", 1)
            slow, news = SlowTopic(topic), asyncio.Event()
            slow.answered.set()
            prefetch = Prefetch(slow, 0, 0, FetchRoom(1 << 20), news)  # type: ignore[arg-type]
            try:
                await news.wait()
                assert (prefetch.splits, prefetch.at_end) == ([(1, SPLIT)], True)
                slow.answered.clear()
                slow.asked.clear()
                await topic.publish_many([b"a", b"b"], partition=0)
                await slow.asked.wait()
                assert prefetch.take(10, SPLIT) is None
                assert not prefetch.has_passed(SPLIT)
                news.clear()
                slow.answered.set()
                await news.wait()
                assert not prefetch.at_end
                taken = prefetch.take(10, SPLIT)
                assert taken is not None
                assert list(taken.values) == [b"a", b"b"]
                assert prefetch.has_passed(SPLIT)
            finally:
                await prefetch.close()

    asyncio.run(asyncio.wait_for(read(), 30))
