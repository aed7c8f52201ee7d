"""What a function of a gang sees of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from penstock.tasks.codec import Codec

Meet = Callable[[bytes, float | None], list[bytes]]
AsyncMeet = Callable[[bytes, float | None], Awaitable[list[bytes]]]


class GangState:
    """Who is in the gang. Base of both kinds."""

    def __init__(self, rank: int, addresses: Sequence[str], attempt: int, codec: Codec) -> None:
        self.rank = rank
        """0 is the manager; each member has another."""
        self.addresses = list(addresses)
        """Of all members, by rank, as their workers were started with."""
        self.attempt = attempt
        """How often the gang has been granted, this time included."""
        self._codec = codec

    @property
    def size(self) -> int:
        """How many members there are."""
        return len(self.addresses)

    @property
    def manager(self) -> bool:
        """Whether this is the member of rank 0."""
        return self.rank == 0

    def __repr__(self) -> str:
        return f"<member {self.rank} of {self.size}, attempt {self.attempt}>"


class Gang(GangState):
    """A gang, for functions; its first argument. Only the function's own thread may use it.

    All members must meet equally often: who waits for a member that has returned fails the gang.
    GangOverError if the gang has ended, DeadlineError after `timeout` seconds: then the member can
    meet the others no more. Values are as those of arguments, and small: together, what a table's
    entry may have, 1 MiB.
    """

    def __init__(
        self, rank: int, addresses: Sequence[str], attempt: int, codec: Codec, meet: Meet
    ) -> None:
        super().__init__(rank, addresses, attempt, codec)
        self._meet = meet

    def barrier(self, timeout: float | None = None) -> None:
        """Returns when all members have called it, as often as this one has."""
        self._meet(b"", timeout)

    def gather(self, value: Any, timeout: float | None = None) -> list[Any]:
        """A barrier that everybody brings a value to: all of them, by rank, for everybody."""
        found = self._meet(self._codec.pack(value), timeout)
        return [self._codec.unpack(each) for each in found]

    def broadcast(self, value: Any = None, timeout: float | None = None) -> Any:
        """A barrier that gives everybody the manager's value; that of others does not matter."""
        brought = self._codec.pack(value) if self.manager else b""
        return self._codec.unpack(self._meet(brought, timeout)[0])


class AsyncGang(GangState):
    """A gang, for `async def` functions. As `Gang`; whatever waits is awaited."""

    def __init__(
        self, rank: int, addresses: Sequence[str], attempt: int, codec: Codec, meet: AsyncMeet
    ) -> None:
        super().__init__(rank, addresses, attempt, codec)
        self._meet = meet

    async def barrier(self, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Returns when all members have called it, as often as this one has."""
        await self._meet(b"", timeout)

    async def gather(
        self,
        value: Any,
        timeout: float | None = None,  # noqa: ASYNC109  # as in the blocking kind
    ) -> list[Any]:
        """A barrier that everybody brings a value to: all of them, by rank, for everybody."""
        found = await self._meet(self._codec.pack(value), timeout)
        return [self._codec.unpack(each) for each in found]

    async def broadcast(
        self,
        value: Any = None,
        timeout: float | None = None,  # noqa: ASYNC109  # as in the blocking kind
    ) -> Any:
        """A barrier that gives everybody the manager's value; that of others does not matter."""
        brought = self._codec.pack(value) if self.manager else b""
        return self._codec.unpack((await self._meet(brought, timeout))[0])
