"""What every kind of executor is to the puller; and executors that are processes."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from penstock.tasks.blobs.carrier import Piece
from penstock.tasks.worker.beacon import Beacon, beacon_file
from penstock.tasks.worker.jobs import Job, Running
from penstock.tasks.worker.protocol import (
    Frames,
    Return,
    Run,
    Setup,
    ToPuller,
    Work,
    pack,
)

_STANDARD_ERROR = 2
Heard = Callable[["AnyExecutor", ToPuller], None]
Gone = Callable[["AnyExecutor"], None]


class AnyExecutor(Protocol):
    """Runs jobs, one after the other, in the order in which they come.

    It calls `heard` for what it has to say (the first is Ready or Broken) and, once, `gone` when it
    is no more; both on the puller's event loop.
    """

    number: int

    async def start(self, setup: Setup) -> None:
        """Begins; OSError if the system refuses. What follows is said to `heard` and `gone`."""

    def send(self, jobs: Sequence[Job]) -> None:
        """Gives it jobs."""

    def take_back(self, jobs: int) -> None:
        """Asks for so many that are not begun."""

    def answer(self, piece: Piece) -> None:
        """Gives it what it has asked for."""

    def running(self) -> Running | None:
        """What it is at, or was last."""

    def kill(self) -> None:
        """Ends it, whatever it is doing; `gone` follows."""

    async def close(self) -> None:
        """Ends it, and waits until it is gone. It should have nothing to do."""


def work_of(job: Job) -> Work:
    """What an executor needs to know of a job."""
    return Work(job.number, job.packed, job.attempt, job.popped_us, job.parents)


async def hang_up_after(process: asyncio.subprocess.Process, channel: socket.socket) -> None:
    """Waits for the end of a process, and ends the channel to it: who reads there gets what was
    said last, then the end. By itself the channel lives on in processes that this one has
    forked."""
    await process.wait()
    with suppress(OSError):  # it has ended
        channel.shutdown(socket.SHUT_RDWR)


class ProcessExecutor(asyncio.Protocol):
    """A fresh interpreter at the other end of a socket pair. A task that crashes it, or has to be
    killed, takes nothing else along."""

    def __init__(self, number: int, heard: Heard, gone: Gone) -> None:
        self.number = number
        self._heard = heard
        self._gone = gone
        self._frames: Frames[ToPuller] = Frames(ToPuller)
        self._transport: asyncio.Transport | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._ending: asyncio.Task[None] | None = None
        self._beacon: Beacon | None = None

    async def start(self, setup: Setup) -> None:
        """Starts the process, and tells it what to import."""
        ours, theirs = socket.socketpair()
        file = beacon_file()
        try:
            self._beacon = Beacon(file)
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "penstock.tasks.worker.executor_main",
                str(theirs.fileno()), str(file), pass_fds=(theirs.fileno(), file),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=_STANDARD_ERROR,  # what the worker itself prints there is for programs
            )  # fmt: skip
        finally:
            os.close(file)
            theirs.close()
        loop = asyncio.get_running_loop()
        self._ending = loop.create_task(hang_up_after(self._process, ours))
        self._transport, _ = await loop.create_connection(lambda: self, sock=ours)
        self._transport.write(pack(setup))

    @property
    def pid(self) -> int | None:
        """Of the process."""
        return None if self._process is None else self._process.pid

    # --- asyncio.Protocol ------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """It says something."""
        for message in self._frames.feed(data):
            self._heard(self, message)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone, or as good as: nobody can talk to it any more."""
        self.kill()
        self._gone(self)

    # --- AnyExecutor -----------------------------------------------------------------------

    def send(self, jobs: Sequence[Job]) -> None:
        """Gives it jobs."""
        assert self._transport is not None
        self._transport.write(pack(Run([work_of(job) for job in jobs])))

    def take_back(self, jobs: int) -> None:
        """Asks for so many that are not begun."""
        assert self._transport is not None
        self._transport.write(pack(Return(jobs)))

    def answer(self, piece: Piece) -> None:
        """Gives it what it has asked for, unless it is gone by now."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(pack(piece))

    def running(self) -> Running | None:
        """What it is at, or was last; known also when it is dead."""
        return None if self._beacon is None else self._beacon.look()

    def kill(self) -> None:
        """SIGKILL: there is no function that could refuse it."""
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGKILL)

    async def close(self) -> None:
        """Hangs up, which ends the process, and waits for its end."""
        if self._transport is not None:
            self._transport.abort()
        if self._ending is not None:
            await asyncio.wait([self._ending])
        if self._beacon is not None:
            self._beacon.close()
            self._beacon = None
