"""The progress of a long run, as a person follows it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

TICK_SECONDS = 0.5
_WIDTH = 66


class Watch:
    """A bar, what happens now, and what was done so far."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task

    def say(self, text: str) -> None:
        """What happens now."""
        self._progress.update(self._task, description=text)

    @contextmanager
    def following(
        self, done: Callable[[], str], position: Callable[[], float] | None = None
    ) -> Iterator[None]:
        """Shows what was done so far, every now and then; the bar moves to `position`, or with the
        time."""
        over = threading.Event()

        def tick() -> None:
            while not over.wait(TICK_SECONDS):
                if position is None:
                    self._progress.update(self._task, advance=TICK_SECONDS, done=done())
                else:
                    self._progress.update(self._task, completed=position(), done=done())

        ticker = threading.Thread(target=tick, daemon=True)
        ticker.start()
        try:
            yield
        finally:
            over.set()
            ticker.join()


@contextmanager
def watched(console: Console, total: float) -> Iterator[Watch]:
    """A bar of so many seconds, or whatever is counted."""
    progress = Progress(
        TextColumn(f"{{task.description:{_WIDTH}}}"), BarColumn(),
        TextColumn("{task.fields[done]}"), TimeElapsedColumn(), console=console,
    )  # fmt: skip
    with progress:
        yield Watch(progress, progress.add_task("", total=total, done=""))


def done_so_far(consumed: int, seen: int) -> str:
    """Of a queue and a topic."""
    return f"{consumed:,} consumed, {seen:,} read"
