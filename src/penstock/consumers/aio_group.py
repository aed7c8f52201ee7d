"""A consumer of a group, for asyncio: what `penstock.aio.ConsumerGroup` is."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from penstock.client.aio import AsyncFabric, connect
from penstock.consumers.explain import Explanation
from penstock.consumers.member import GroupMember
from penstock.consumers.settings import Settings
from penstock.errors import InvalidError


class AsyncConsumerGroup:
    """One member of a group that reads a topic; arguments and calls as `penstock.ConsumerGroup`."""

    def __init__(self, fabric: str | AsyncFabric, **settings: Any) -> None:
        if not isinstance(fabric, str | AsyncFabric):
            raise InvalidError(f"a group needs a URL or an AsyncFabric, not {fabric!r}")
        self._fabric = fabric
        self.settings = Settings(**settings)
        self._member = GroupMember(self.settings)
        self._begun = False

    @property
    def id(self) -> str:
        """The name of this life of this member."""
        return self._member.id

    async def run(
        self, until_idle: float | None = None, joined: Callable[[], None] | None = None
    ) -> None:
        """Works until `stop` was called and everything is handed over or committed.

        `until_idle`: also once all is read and committed and nothing came for so many seconds.
        HandlerError, or whatever else stopped it, when it has left. If the task is cancelled it
        still leaves in order, within some seconds. `joined` is called when it is in the group.
        """
        if self._begun:
            raise InvalidError("a member runs once", advice="Make another ConsumerGroup.")
        self._begun = True
        if isinstance(self._fabric, AsyncFabric):
            await self._member.run(self._fabric, until_idle, joined)
            return
        async with connect(self._fabric, name=self.id) as fabric:
            await self._member.run(fabric, until_idle, joined)

    def stop(self) -> None:
        """Has `run` hand over to those who stay, commit, leave, and return."""
        self._member.stop()

    def drain(self, seconds: float) -> None:
        """Gives partitions away little by little over so many seconds; then `run` returns."""
        self._member.drain(seconds)

    def status(self) -> dict[str, Any]:
        """Figures of this member, as plain data."""
        return self._member.status()

    def explain(self, partition: int) -> Explanation:
        """Why a partition is where it is, as this member sees it."""
        return self._member.explain(partition)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
