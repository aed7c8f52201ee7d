"""Executors of each kind, without a worker: whatever a function does, its end is heard of, and that
of its executor."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.tasks.forks import FUNCTIONS as FORKS
from tests.tasks.forks import Fork

from penstock.tasks.codec import Codec
from penstock.tasks.envelope import Status, TaskCall, encode, read_failure, read_outcome
from penstock.tasks.worker.crew import MAKERS
from penstock.tasks.worker.executors import AnyExecutor, hang_up_after
from penstock.tasks.worker.jobs import Job
from penstock.tasks.worker.protocol import Broken, Ready, Results, Setup, ToPuller
from penstock.tasks.worker.settings import Kind

FUNCTIONS = Path(__file__).with_name("unruly_functions.py")
KINDS: list[Kind] = ["process", "thread", "async"]
LONG_S = 60.0
CODEC = Codec(lambda _: True)
CANCELLED = "asyncio.exceptions.CancelledError"


class Said(NamedTuple):
    """By executors, in order; None: it is gone."""

    executor: int
    message: ToPuller | None


class Bench:
    """Executors of one kind, and what they say."""

    def __init__(self, kind: Kind, count: int, module: Path = FUNCTIONS) -> None:
        numbers = range(1, count + 1)
        self.said: list[Said] = []
        self._more = asyncio.Event()
        self._jobs = itertools.count(1)
        self._module = module
        self.executors = [MAKERS[kind](number, self._note, self._note) for number in numbers]

    async def start(self) -> None:
        """Starts them, and waits until all are ready, or not."""
        for each in self.executors:
            await each.start(Setup([str(self._module)], [], f"w/{each.number}"))
        await self.until(lambda: self._count(Ready) + self._count(Broken) == len(self.executors))

    def send(self, executor: AnyExecutor, calls: Iterable[tuple[str, tuple[Any, ...]]]) -> None:
        """Gives it calls of functions."""
        jobs: list[Job] = []
        for function, args in calls:
            name = f"{self._module.stem}:{function}"
            call = TaskCall(name, CODEC.pack_call(args, {})[0], bytes(16))
            jobs.append(Job(next(self._jobs), 1, 0, call, encode(call), 1, 0))
        executor.send(jobs)

    async def until(self, look: Callable[[], bool]) -> None:
        """Waits until what was said is enough."""
        while not look():
            self._more.clear()
            await self._more.wait()

    def gone(self) -> list[int]:
        """Executors that are."""
        return [executor for executor, message in self.said if message is None]

    def ends(self) -> dict[int, str]:
        """How jobs ended: nothing, or the kind of failure and what it says."""
        results = [each.message for each in self.said if isinstance(each.message, Results)]
        ended = [each for message in results for each in message.ended]
        return {each.number: _end_of(each.outcome) for each in ended}

    def _count(self, kind: type[ToPuller]) -> int:
        return sum(isinstance(each.message, kind) for each in self.said)

    def _note(self, executor: AnyExecutor, message: ToPuller | None = None) -> None:
        self.said.append(Said(executor.number, message))
        self._more.set()


def _end_of(packed: bytes) -> str:
    outcome = read_outcome(packed)
    if outcome.status == Status.DONE:
        return ""
    failure = read_failure(outcome.result)
    assert failure.kind not in failure.text
    return f"{failure.kind}: {failure.text}"


def run(bench: Callable[[], Bench], script: Callable[[Bench], Awaitable[None]]) -> None:
    async def main() -> None:
        made = bench()
        try:
            await made.start()
            await script(made)
        finally:
            for each in made.executors:
                await each.close()

    asyncio.run(asyncio.wait_for(main(), LONG_S))


UNRULY: dict[tuple[str, tuple[Any, ...]], str] = {
    ("leak_cancellation", ()): f"{CANCELLED}: ",
    ("cancel_itself", (False,)): f"{CANCELLED}: ",
    ("cancel_itself", (True,)): f"{CANCELLED}: ",
    ("raise_cancellation", ()): f"{CANCELLED}: ",
    ("leave", ()): "SystemExit: enough",
    ("leave_async", ()): "SystemExit: enough",
    ("leave_in_a_task", ()): "SystemExit: enough",
    ("leave_afterwards", ()): "",
    ("interrupt", ()): "KeyboardInterrupt: ",
    ("interrupt_async", ()): "KeyboardInterrupt: ",
    ("stop_the_loop", ()): "",
    ("raise_stop_iteration", ()): "StopIteration: ",
    ("raise_unspeakable", ()): (
        "unruly_functions._UnspeakableError: (what it says is not known: SystemExit)"
    ),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("call", UNRULY, ids=lambda call: "-".join(map(str, [call[0], *call[1]])))
def test_whatever_a_function_lets_out_is_its_own_end_and_no_others(
    kind: Kind, call: tuple[str, tuple[Any, ...]]
):
    """What comes after it on its executor, and on one beside it, is run."""

    async def script(bench: Bench) -> None:
        one, other = bench.executors
        bench.send(one, [("tame", ()), call, ("tame_async", ()), ("tame", ())])
        await bench.until(lambda: len(bench.ends()) == 4)
        bench.send(other, [("tame_async", ()), ("tame", ())])
        await bench.until(lambda: len(bench.ends()) == 6)
        assert bench.ends() == {1: "", 2: UNRULY[call], 3: "", 4: "", 5: "", 6: ""}
        assert not bench.gone()

    run(lambda: Bench(kind, 2), script)


@pytest.mark.parametrize("kind", KINDS)
def test_a_module_that_cannot_be_imported_is_the_end_of_its_executor(kind: Kind, tmp_path: Path):
    module = tmp_path / f"a_module_that_exits_{kind}.py"
    module.write_text("import sys\nsys.exit('enough')\n", "utf-8")

    async def script(bench: Bench) -> None:
        await bench.until(lambda: bool(bench.gone()))
        assert bench.said == [Said(1, Broken("SystemExit: enough")), Said(1, None)]

    run(lambda: Bench(kind, 1, module), script)


def test_coroutines_that_a_stranger_cancels_are_missed():
    """Executors that share a loop with a function which cancels all that is there."""

    async def script(bench: Bench) -> None:
        bench.send(bench.executors[0], [("cancel_all", ())])
        await bench.until(lambda: len(bench.gone()) == 2)
        assert sorted(bench.gone()) == [1, 2]
        assert not bench.ends()

    run(lambda: Bench("async", 2), script)


def test_a_coroutine_that_is_given_up_is_cancelled_and_not_heard_of(tmp_path: Path):
    begun, ended = tmp_path / "begun", tmp_path / "ended"
    os.mkfifo(begun)
    os.mkfifo(ended)

    async def script(bench: Bench) -> None:
        (executor,) = bench.executors
        bench.send(executor, [("wait_to_be_cancelled", (str(begun), str(ended)))])
        await asyncio.to_thread(begun.read_bytes)
        executor.kill()
        await asyncio.to_thread(ended.read_bytes)
        await bench.until(lambda: bool(bench.gone()))
        assert (bench.gone(), bench.ends()) == ([1], {})

    run(lambda: Bench("async", 1), script)


def test_a_process_that_is_killed_is_missed_though_one_that_it_has_forked_lives(tmp_path: Path):
    async def script(bench: Bench) -> None:
        (executor,) = bench.executors
        bench.send(executor, [("wait_for_a_fork", fork.pipes)])
        await fork.begun()
        executor.kill()
        await bench.until(lambda: bool(bench.gone()))
        assert (bench.gone(), bench.ends()) == ([1], {})

    with Fork(tmp_path) as fork:
        run(lambda: Bench("process", 1, FORKS), script)


def test_what_a_process_said_last_is_heard_though_one_that_it_has_forked_lives(tmp_path: Path):
    module = tmp_path / "a_module_that_forks.py"

    async def script(bench: Bench) -> None:
        await fork.begun()
        await bench.until(lambda: bool(bench.gone()))
        assert bench.said == [Said(1, Broken("SystemExit: enough")), Said(1, None)]

    with Fork(tmp_path) as fork:
        module.write_text(
            f"import sys\nsys.path.insert(0, {str(FORKS.parent)!r})\n"
            f"from {FORKS.stem} import fork\nfork(*{fork.pipes!r})\nsys.exit('enough')\n",
            "utf-8",
        )
        run(lambda: Bench("process", 1, module), script)


def test_a_channel_ends_after_what_was_said_though_nobody_has_read_it_yet():
    async def script() -> None:
        process = await asyncio.create_subprocess_exec(sys.executable, "-S", "-c", "")
        ours, theirs = socket.socketpair()
        with ours, theirs:  # whoever else has that side keeps it open
            theirs.sendall(b"last")
            await hang_up_after(process, ours)
            assert (ours.recv(99), ours.recv(99)) == (b"last", b"")
        await hang_up_after(process, ours)

    asyncio.run(asyncio.wait_for(script(), LONG_S))
