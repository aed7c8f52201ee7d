"""A bar for people: how many of an app's tasks have ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Self

from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from penstock.tasks.waiting import Counts


class TaskProgress(Progress):
    """Shows an app's figures, from when it is entered to when it is left, on standard error.

    It counts from its beginning: tasks that had ended before are not shown. What is submitted
    meanwhile makes the bar longer.
    """

    def __init__(
        self, counts: Callable[[], Counts], description: str, console: Console | None = None
    ) -> None:
        self._counts = counts
        self._before = counts()
        self._shown: TaskID | None = None  # it is drawn while it is made
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[failed]}", style="red"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console or Console(stderr=True),
        )
        self._shown = self.add_task(description, total=None, failed="")

    def start(self) -> None:
        """Begins to count, and to show."""
        now = self._counts()
        self._before = Counts(now.ended, now.ended, now.failed)
        super().start()

    def get_renderables(self) -> Iterable[RenderableType]:
        """Called whenever the bar is drawn: reads the figures first."""
        if self._shown is not None:
            now, before = self._counts(), self._before
            failed = now.failed - before.failed
            self.update(
                self._shown,
                total=now.submitted - before.submitted,
                completed=now.ended - before.ended,
                failed=f"{failed:,} failed" if failed else "",
            )
        yield from super().get_renderables()

    def __enter__(self) -> Self:
        self.start()
        return self
