"""Places of which there are only so many, and a line of calls that wait for one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class Places:
    """First come, first served. Whoever has a place takes it by itself, without waiting further;
    `free` knows then."""

    def __init__(self, free: Callable[[], int]) -> None:
        """`free`: how many places nobody has taken. `admit` must be called when there are more."""
        self._free = free
        self._line: deque[asyncio.Future[None]] = deque()
        self._admitted = 0  # out of the line, and has not taken its place yet

    def __len__(self) -> int:
        """How many stand in line."""
        return len(self._line)

    @property
    def scarce(self) -> bool:
        """Whether who comes now must stand in line."""
        return bool(self._line) or self._free() <= self._admitted

    @asynccontextmanager
    async def turn(self, seconds: float) -> AsyncIterator[None]:
        """Stands in line; within it, a place is there to be taken at once. TimeoutError if there
        was none for so long."""
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append(place)
        try:
            async with asyncio.timeout(seconds):
                await place
            yield
        finally:
            if place.done() and not place.cancelled():
                self._admitted -= 1
                self.admit()  # the place, if it was not taken after all

    def admit(self) -> None:
        """Gives free places to those in line; they take them as soon as the loop gets to them."""
        while self._line and self._free() > self._admitted:
            place = self._line.popleft()
            if not place.done():
                place.set_result(None)
                self._admitted += 1
