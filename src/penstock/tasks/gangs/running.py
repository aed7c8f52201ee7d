"""Running a member's function: in a thread of the worker's process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from penstock.tasks.codec import Codec
from penstock.tasks.declare import Registry, Task
from penstock.tasks.envelope import Status, TaskCall, encode
from penstock.tasks.errors import SerialisationError
from penstock.tasks.gangs.envelope import GangCall
from penstock.tasks.gangs.gang import AsyncGang, Gang
from penstock.tasks.gangs.member import MAX_MEETING_BYTES, GangMember, MemberFailedError
from penstock.tasks.worker.protocol import Work
from penstock.tasks.worker.running import Runner, wall_us


class MemberRunner(Runner):
    """Calls functions as a `Runner` does, with their gang before the other arguments."""

    def __init__(
        self, registry: Registry, codec: Codec, worker: str, allowed: Collection[str] = ()
    ) -> None:
        super().__init__(registry, codec, worker, allowed)
        self.gang: Gang | AsyncGang | None = None

    def _called(self, call: TaskCall, work: Work) -> Any:
        args, kwargs = self._codec.unpack_call(call.arguments)
        return self._function(call.function)(self.gang, *args, **kwargs)

    def _packed(self, result: Any, call: TaskCall) -> bytes:
        assert self.gang is not None
        packed, limit = self._codec.pack(result), MAX_MEETING_BYTES // self.gang.size
        if len(packed) > limit:
            raise SerialisationError(
                f"a result of {len(packed):,} bytes; each of {self.gang.size} members may return "
                f"{limit:,}",
                advice="Write it to a file or a queue, and return where it is.",
            )
        return packed


class ThreadMembers:
    """Runs one member after the other, each in the same thread. A function that does not end when
    its gang does keeps the worker busy; one that keeps the interpreter's lock for longer than a
    session lasts is taken for dead."""

    def __init__(
        self, registry: Registry, codec: Codec, worker: str, allowed: Collection[str] = ()
    ) -> None:
        """`allowed`: top-level packages whose functions need not be declared as tasks."""
        self._registry = registry
        self._codec = codec
        self._runner = MemberRunner(registry, codec, worker, allowed)
        self._thread = ThreadPoolExecutor(1, "penstock-gang")

    async def run(self, member: GangMember, gang: GangCall) -> bytes:
        """The packed outcome of this member; MemberFailedError, with that, if its function raised.
        Cancelled, it waits for the function: the worker is not free before."""
        seat = member.seat
        work = Work(0, encode(gang.call), seat.attempt, wall_us(), None)
        self._runner.gang = self._gang(member, gang)
        loop = asyncio.get_running_loop()
        running = loop.run_in_executor(self._thread, self._runner.run, work, _waited)
        try:
            ended = await asyncio.shield(running)
        except asyncio.CancelledError:
            await asyncio.wait([running])
            raise
        if ended.status != Status.DONE:
            raise MemberFailedError(ended.outcome)
        return ended.outcome

    def _gang(self, member: GangMember, gang: GangCall) -> Gang | AsyncGang:
        loop, seat = asyncio.get_running_loop(), member.seat
        about = (seat.rank, seat.addresses, seat.attempt, self._codec)

        def meet(value: bytes, timeout: float | None) -> list[bytes]:
            return asyncio.run_coroutine_threadsafe(member.meet(value, timeout), loop).result()

        async def meet_async(value: bytes, timeout: float | None) -> list[bytes]:  # noqa: ASYNC109
            met = asyncio.run_coroutine_threadsafe(member.meet(value, timeout), loop)
            return await asyncio.wrap_future(met)

        declared = self._registry.find(gang.call.function)
        is_async = isinstance(declared, Task) and declared.is_async
        return AsyncGang(*about, meet_async) if is_async else Gang(*about, meet)

    def close(self) -> None:
        """No more. Does not wait for a function that runs."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def _waited(result: Awaitable[Any]) -> Any:
    async def main() -> Any:
        return await result

    return asyncio.run(main())
