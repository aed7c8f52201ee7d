"""The schedules of a task set, as programs see them: `app.schedules`, blocking and async."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from penstock.client.aio_streams import AsyncTable
from penstock.client.push import now_us
from penstock.errors import InvalidError
from penstock.tasks.calls import Caller, CallOptions
from penstock.tasks.names import TASK_BYTES
from penstock.tasks.portal import Portal
from penstock.tasks.schedules.schedule import (
    SCHEDULE_PREFIX,
    Schedule,
    last_key,
    new_schedule,
    pack_schedule,
    read_schedule,
    schedule_key,
)
from penstock.tasks.signatures import check_arguments

_ANY_TASK = bytes(TASK_BYTES)  # every run gets an id of its own


class AsyncSchedules:
    """Schedules are kept by the fabric: they go on when this program has ended, as long as there is
    a worker of the task set."""

    def __init__(self, caller: Caller, control: AsyncTable) -> None:
        self._caller = caller
        self._control = control

    async def add(
        self,
        name: str,
        function: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        cron: str | None = None,
        every: float | None = None,
        zone: str = "",
        missed: str = "once",
        until: datetime | float | None = None,
        keep: float | None = None,
        retries: int | None = None,
        timeout: float | None = None,  # noqa: ASYNC109  # of the task
    ) -> None:
        """Has the function called again and again, as `Schedules.add`."""
        if isinstance(args, str | bytes) or not isinstance(args, Sequence):
            raise InvalidError(
                f"the arguments of a schedule are a list, not {args!r}", advice="Use [value]."
            )
        options = CallOptions(keep=keep, retries=retries, timeout=timeout)
        form = self._caller.form(function, options, reply=False)
        check_arguments(function, args, kwargs)
        call, parents = self._caller.call(form, args, kwargs or {}, _ANY_TASK)
        if parents:
            raise InvalidError("a schedule cannot depend on the result of a task")
        schedule = new_schedule(call, now_us(), cron, every, zone, missed, until)
        await self._control.put(schedule_key(name), pack_schedule(schedule))
        await self._control.delete(last_key(name))

    async def remove(self, name: str) -> bool:
        """Ends a schedule; whether there was one. Runs that were submitted are not taken back."""
        found = await self._control.delete(schedule_key(name))
        await self._control.delete(last_key(name))
        return found

    async def all(self) -> dict[str, Schedule]:
        """The schedules by name."""
        return {
            key.removeprefix(SCHEDULE_PREFIX).decode(): read_schedule(value)
            async for key, value in self._control.items(SCHEDULE_PREFIX)
        }


class Schedules:
    """As `AsyncSchedules`, for programs that block."""

    def __init__(self, inner: AsyncSchedules, portal: Portal) -> None:
        self._inner = inner
        self._portal = portal

    def add(
        self,
        name: str,
        function: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        cron: str | None = None,
        every: float | None = None,
        zone: str = "",
        missed: str = "once",
        until: datetime | float | None = None,
        keep: float | None = None,
        retries: int | None = None,
        timeout: float | None = None,
    ) -> None:
        """Has the function called with `args` and `kwargs` again and again; kept when this returns.
        A schedule of this name is replaced, and begins anew.

        `cron`: `"30 2 * * mon-fri"`, by the wall clock of `zone` (UTC unless given); or `every` so
        many seconds from now on. `missed`: what becomes of runs while there was no worker: `once`
        for the last of them, `all`, or `skip`. `until`: the end. The others as for `submit`.
        """
        adding = self._inner.add(
            name, function, args, kwargs, cron=cron, every=every, zone=zone, missed=missed,
            until=until, keep=keep, retries=retries, timeout=timeout,
        )  # fmt: skip
        self._portal.call(adding)

    def remove(self, name: str) -> bool:
        """Ends a schedule; whether there was one. Runs that were submitted are not taken back."""
        return self._portal.call(self._inner.remove(name))

    def all(self) -> dict[str, Schedule]:
        """The schedules by name."""
        return self._portal.call(self._inner.all())
