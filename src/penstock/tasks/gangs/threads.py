"""Members whose functions run in a thread of the worker's process."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from penstock.tasks.envelope import Status
from penstock.tasks.gangs.envelope import GangCall
from penstock.tasks.gangs.member import GangMember, MemberFailedError
from penstock.tasks.gangs.running import MemberRunner, MemberWork


class ThreadMembers:
    """Runs one member after the other, each in the same thread. A function that does not end when
    its gang does keeps the worker busy; one that keeps the interpreter's lock for longer than a
    session lasts is taken for dead."""

    def __init__(self, runner: MemberRunner) -> None:
        self._runner = runner
        self._thread = ThreadPoolExecutor(1, "penstock-gang")

    async def prepare(self) -> None:
        """There is nothing to prepare."""

    async def run(self, member: GangMember, gang: GangCall) -> bytes:
        """The packed outcome of this member; MemberFailedError, with that, if its function raised.
        Cancelled, it waits for the function: the worker is not free before."""
        loop = asyncio.get_running_loop()

        def meet(value: bytes, timeout: float | None) -> list[bytes]:
            return asyncio.run_coroutine_threadsafe(member.meet(value, timeout), loop).result()

        work = MemberWork.of(member, gang)
        running = loop.run_in_executor(self._thread, self._runner.perform, work, meet)
        try:
            ended = await asyncio.shield(running)
        except asyncio.CancelledError:
            await asyncio.wait([running])
            raise
        if ended.status != Status.DONE:
            raise MemberFailedError(ended.outcome)
        return ended.outcome

    async def close(self) -> None:
        """No more. Does not wait for a function that runs."""
        self._thread.shutdown(wait=False, cancel_futures=True)
