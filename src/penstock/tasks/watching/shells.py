"""Watching as methods: of the apps, and of watchers that open a task set only to look at it."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.client.aio import AsyncFabric
from penstock.client.closing import Closing
from penstock.tasks.codec import Parent
from penstock.tasks.envelope import TaskCall, TaskOutcome
from penstock.tasks.portal import Portal
from penstock.tasks.streams import open_streams
from penstock.tasks.submitting import task_id_of
from penstock.tasks.watching.explaining import Explanation
from penstock.tasks.watching.graphs import MAX_SHOWN, TaskGraph
from penstock.tasks.watching.observer import Observer
from penstock.tasks.watching.overview import Overview
from penstock.tasks.watching.reports import WorkerReport
from penstock.tasks.watching.status import TaskStatus
from penstock.tasks.watching.timeline import Timeline

if TYPE_CHECKING:
    from penstock.client.blocking import Fabric

T = TypeVar("T")
AnyTask = str | bytes | Parent
"""A task by its name, its id, a future or a reference."""


class Watched:
    """Looks at tasks and workers, for programs that block. Nothing is changed by it, and what it
    tells was so a moment ago."""

    def _observer(self) -> Observer:
        raise NotImplementedError

    def _look(self, work: Coroutine[Any, Any, T]) -> T:
        raise NotImplementedError

    def status(self, task: AnyTask) -> TaskStatus:
        """A task's state, its stages with their times, its attempt, worker, error, and what it
        comes after and before, as far as that is known."""
        return self._look(self._observer().status(task_id_of(task)))

    def explain(self, task: AnyTask) -> Explanation:
        """Why a task has not finished, or how it has, and what to do about it."""
        return self._look(self._observer().explain(task_id_of(task)))

    def graph(self, task: AnyTask, limit: int = MAX_SHOWN) -> TaskGraph:
        """Tasks that a task depends on, and that depend on it: the nearest `limit`, as far as they
        can be seen. NotFoundError if there is no trace of the task."""
        return self._look(self._observer().graph(task_id_of(task), limit))

    def workers(self) -> list[WorkerReport]:
        """What workers say of themselves, about once a second. One that was killed is seen for some
        seconds more."""
        return self._look(self._observer().workers())

    def overview(self) -> Overview:
        """What waits, functions with how long their tasks wait and take, and workers."""
        return self._look(self._observer().overview())

    def timeline(self, since: float | None = None) -> Timeline:
        """What executors did in the last `since` seconds, or as far back as outcomes are kept."""
        return self._look(self._observer().timeline(since))


class AsyncWatched:
    """As `Watched`, for event loops."""

    def _observer(self) -> Observer:
        raise NotImplementedError

    async def status(self, task: AnyTask) -> TaskStatus:
        """As `Watched.status`."""
        return await self._observer().status(task_id_of(task))

    async def explain(self, task: AnyTask) -> Explanation:
        """As `Watched.explain`."""
        return await self._observer().explain(task_id_of(task))

    async def graph(self, task: AnyTask, limit: int = MAX_SHOWN) -> TaskGraph:
        """As `Watched.graph`."""
        return await self._observer().graph(task_id_of(task), limit)

    async def workers(self) -> list[WorkerReport]:
        """As `Watched.workers`."""
        return await self._observer().workers()

    async def overview(self) -> Overview:
        """As `Watched.overview`."""
        return await self._observer().overview()

    async def timeline(self, since: float | None = None) -> Timeline:
        """As `Watched.timeline`."""
        return await self._observer().timeline(since)


class TaskWatcher(Watched, Closing):
    """Opens a task set only to look at it: it makes no streams. NotFoundError if they are not
    there."""

    def __init__(self, fabric: Fabric, name: str = "default") -> None:
        self.name = name
        self._portal = Portal(f"penstock-watcher-{name}")
        try:
            self._fabric, self.observer = self._portal.call(self._open(fabric))
        except BaseException:
            self._portal.close()
            raise

    async def _open(self, fabric: Fabric) -> tuple[AsyncFabric, Observer]:
        twin = await fabric._asynchronous()
        try:
            streams = await open_streams(twin, self.name, create=False)
        except BaseException:
            await twin.close()
            raise
        return twin, Observer(twin, self.name, streams)

    def _observer(self) -> Observer:
        return self.observer

    def _look(self, work: Coroutine[Any, Any, T]) -> T:
        return self._portal.call(work)

    def dead(self, limit: int = 100) -> list[tuple[TaskCall, TaskOutcome | None]]:
        """The oldest tasks among the dead letters, each with its outcome if that is kept."""
        return self._look(self._observer().dead(limit))

    def close(self) -> None:
        """Ends it."""
        try:
            self._portal.call(self._fabric.close())
        finally:
            self._portal.close()
