"""The results of a `map`, for event loops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar

from penstock.errors import LimitError, PenstockError
from penstock.tasks.envelope import TaskOutcome
from penstock.tasks.mapping import Failed, Mapping, Unread, checked
from penstock.tasks.outbox import Parcel
from penstock.wire.buffers import Buffer

R = TypeVar("R")


class AsyncTaskResults(Generic[R]):
    """The results of a `map`; as `TaskResults`. The first items are sent when iterating begins."""

    def __init__(
        self,
        items: Mapping,
        offer: Callable[[Parcel], Awaitable[None]],
        arrived: asyncio.Event,
        read: Callable[[TaskOutcome], Awaitable[Sequence[Buffer]]],
    ) -> None:
        self._items = items
        self._offer = offer
        self._arrived = arrived
        self._read = read

    @property
    def submitted(self) -> int:
        """How many items were taken and sent."""
        return self._items.submitted

    @property
    def done(self) -> int:
        """How many of them have ended, with a result or without."""
        return self._items.done

    @property
    def failed(self) -> int:
        """How many have ended without a result, among those that were looked at."""
        return self._items.failed

    def __aiter__(self) -> AsyncIterator[R]:
        return self.results()

    async def results(
        self,
        timeout: float | None = None,  # noqa: ASYNC109  # as its twin
        return_exceptions: bool = False,
    ) -> AsyncIterator[R]:
        """The results in the order of the items; as `TaskResults.results`."""
        async for _, result in self._numbered(True, timeout):
            yield checked(result, return_exceptions)

    async def as_completed(
        self,
        timeout: float | None = None,  # noqa: ASYNC109  # as its twin
        return_exceptions: bool = False,
    ) -> AsyncIterator[tuple[int, R]]:
        """Numbers of items and their results, as they come; otherwise as `results`."""
        async for number, result in self._numbered(False, timeout):
            yield number, checked(result, return_exceptions)

    async def _numbered(
        self, ordered: bool, within_s: float | None
    ) -> AsyncIterator[tuple[int, Any]]:
        loop, items = asyncio.get_running_loop(), self._items
        ends = None if within_s is None else loop.time() + within_s
        while not items.finished:
            self._arrived.clear()
            taken = items.take(ordered)
            while (parcel := items.next_parcel()) is not None:
                try:
                    await self._offer(parcel)
                except LimitError as error:
                    items.fail_all(parcel, error)
            for number, result in taken:
                yield number, await self._opened(result) if isinstance(result, Unread) else result
            if not taken and not items.arrived and not items.finished:  # there may be no items
                async with asyncio.timeout_at(ends):
                    await self._arrived.wait()

    async def _opened(self, result: Unread) -> Any:
        try:
            return self._items.opened(result, await self._read(result.outcome))
        except PenstockError as error:
            return Failed(error)
