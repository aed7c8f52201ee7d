"""What ends with its `with` block, and how an event loop does."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

END_SECONDS = 5.0  # for what was cancelled


class Closing:
    """Closes itself at the end of a `with` block, whatever happened in it."""

    def close(self) -> None:
        """Ends it; once more does nothing."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class AsyncClosing:
    """Closes itself at the end of an `async with` block, whatever happened in it."""

    async def close(self) -> None:
        """Ends it; once more does nothing."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


def end_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Cancels what a loop that has stopped was doing: whoever waits for it would wait for ever."""
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.wait(left, timeout=END_SECONDS))
