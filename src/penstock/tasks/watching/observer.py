"""Finds out about tasks and workers of a task set, on an event loop; concludes nothing itself."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

from penstock.client.aio import AsyncFabric
from penstock.errors import NotFoundError, ProtocolError
from penstock.tasks.envelope import TaskCall, TaskOutcome
from penstock.tasks.names import cancel_key
from penstock.tasks.streams import OpenStreams
from penstock.tasks.watching.explaining import Explanation, explain
from penstock.tasks.watching.facts import ENDINGS, Facts
from penstock.tasks.watching.graphs import MAX_SHOWN, Node, TaskGraph, around
from penstock.tasks.watching.outcomes import MAX_OUTCOMES, Outcomes
from penstock.tasks.watching.overview import Overview, overview_of
from penstock.tasks.watching.reports import WORKER_PREFIX, WorkerReport, read_report
from penstock.tasks.watching.searching import Searching
from penstock.tasks.watching.status import TaskStatus, status_of
from penstock.tasks.watching.timeline import Timeline, laid_out
from penstock.tasks.worker.limits import rate_key, read_free

MAX_PARENTS = 20  # of a task that are looked for
MAX_WORKERS = 10_000


class Observer:
    """Reads a task set's streams, and changes nothing. What it tells was so a moment ago."""

    def __init__(self, fabric: AsyncFabric, task_set: str, streams: OpenStreams) -> None:
        self._streams = streams
        self._searching = Searching(fabric, task_set, streams.queue)
        self._outcomes = Outcomes(streams.replies, streams.results)

    async def workers(self) -> list[WorkerReport]:
        """What workers say of themselves: those that are there, or were a few seconds ago."""
        found: list[WorkerReport] = []
        async for _, value in self._streams.control.items(WORKER_PREFIX):
            try:
                found.append(read_report(value))
            except ProtocolError:
                continue  # of a release that is newer than this one
            if len(found) >= MAX_WORKERS:
                break
        return found

    async def facts(self, task: bytes, closely: bool = True) -> Facts:
        """What is to be known of one task. `closely`: of its parents and children, too."""
        # In this order: a message that is there after its outcome was sent again.
        outcome = await self._outcomes.find(task)
        seen, queue, whole = await self._searching.find(task)
        if seen is None and outcome is None:
            outcome = await self._outcomes.find(task)  # it has ended between the two looks
        held = await queue.held(task) if seen is None or seen.state == "held" else None
        workers, counts, cancel = await asyncio.gather(
            self.workers(), queue.stats(), self._streams.control.get(cancel_key(task))
        )
        facts = Facts(
            task, time.time_ns() // 1000, outcome, seen,
            () if held is None else tuple(key for _, key in held.edges),
            0 if held is None else held.count, workers=tuple(workers),
            counts={name: count for name, count in counts.items() if isinstance(count, int)},
            cancelled=cancel is not None, whole=whole,
        )  # fmt: skip
        return await self._closely(facts) if closely else facts

    async def _closely(self, facts: Facts) -> Facts:
        known, whole = await self._known()
        after = list(facts.waits_for or facts.after)[:MAX_PARENTS]
        states = await asyncio.gather(*[self._state(each, known, whole) for each in after])
        free = await self._streams.control.get(rate_key(facts.function)) if facts.function else None
        return replace(
            facts,
            parents=dict(zip(after, states, strict=True)),
            children=tuple(node.task for node in known.values() if facts.task in node.after),
            free_us=0 if free is None else read_free(free),
        )

    async def _state(self, task: bytes, known: dict[bytes, Node], whole: bool) -> str:
        if task in known:
            return known[task].state
        if (outcome := await self._outcomes.kept(task)) is not None:
            return ENDINGS[outcome.status]
        if await self._streams.queue.held(task) is not None:
            return "held"
        return "unknown" if whole else "not seen"

    async def status(self, task: bytes) -> TaskStatus:
        """A task's state and stages."""
        return status_of(await self.facts(task))

    async def explain(self, task: bytes) -> Explanation:
        """Why a task is where it is."""
        return explain(await self.facts(task))

    async def graph(self, task: bytes, limit: int = MAX_SHOWN) -> TaskGraph:
        """Tasks around one of them, as far as they can be seen. NotFoundError if it cannot be."""
        known, _ = await self._known()
        if task not in known:
            facts = await self.facts(task, closely=False)
            if facts.state == "unknown":
                raise NotFoundError("there is no such task, or no trace of it any more")
            known[task] = Node(task, facts.function, facts.state, facts.after)
        await self._add_ancestors(known, task, limit)
        return around(known[task], known, limit)

    async def _add_ancestors(self, known: dict[bytes, Node], task: bytes, limit: int) -> None:
        """Looks for outcomes of what comes before, one by one, where those are not known."""
        wanted, seen = [task], {task}
        while wanted and len(seen) <= limit:
            parents = [each for one in wanted for each in known[one].after if each not in seen]
            wanted = list(dict.fromkeys(parents))[:limit]
            seen.update(wanted)
            missing = [each for each in wanted if each not in known]
            found = await asyncio.gather(*map(self._outcomes.kept, missing))
            for each, outcome in zip(missing, found, strict=True):
                known[each] = _node_of(each, outcome)

    async def _known(self) -> tuple[dict[bytes, Node], bool]:
        """All tasks that can be seen at once, with their parents; and whether all messages of the
        queue were."""
        kept, (seen, whole), workers = await asyncio.gather(
            self._outcomes.kept_ones(), self._searching.all(), self.workers()
        )
        known = {task: _node_of(task, outcome) for task, outcome in kept.items()}
        running = {begun.task for report in workers for begun in report.running}
        for each in seen:
            call, state = each.call, each.state
            if state == "dead" and call.task in known:
                continue
            if state == "leased" and call.task in running:
                state = "running"
            known[call.task] = Node(call.task, call.function, state, call.after)
        return known, whole

    async def overview(self) -> Overview:
        """The whole task set."""
        gangs = await self._searching.gangs()
        figures, workers = await asyncio.gather(self._streams.queue.stats(), self.workers())
        waiting = 0 if gangs is None else (await gangs.stats())["ready"]
        return overview_of(figures, waiting, workers, time.time_ns() // 1000)

    async def timeline(
        self, since: float | None = None, limit: int = MAX_OUTCOMES
    ) -> Timeline:
        """What executors did in the last `since` seconds, or as far back as outcomes can be
        read."""
        outcomes = await self._outcomes.last(limit)
        since_us = 0 if since is None else int((time.time() - since) * 1e6)
        return laid_out(outcomes.values(), since_us)

    async def dead(self, limit: int = 100) -> list[tuple[TaskCall, TaskOutcome | None]]:
        """The oldest tasks among the dead letters, each with its outcome, if that is kept or was
        told to whoever waited for it in the last hour."""
        calls = await self._searching.dead(limit)
        outcomes = await asyncio.gather(*[self._outcomes.kept(call.task) for call in calls])
        told = {} if all(outcomes) else await self._outcomes.last()
        return [
            (call, outcome or told.get(call.task))
            for call, outcome in zip(calls, outcomes, strict=True)
        ]


def _node_of(task: bytes, outcome: TaskOutcome | None) -> Node:
    if outcome is None:
        return Node(task, "", "unknown", [])
    return Node(task, outcome.function, ENDINGS[outcome.status], outcome.after)
