"""Members whose functions run in a process: whatever they do, their worker hears of it."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections import deque
from contextlib import suppress

from penstock.errors import InvalidError, PenstockError, UnavailableError
from penstock.tasks.blobs.carrier import GetPiece, PutPiece, carry
from penstock.tasks.blobs.pieces import PatientPieces
from penstock.tasks.envelope import Status
from penstock.tasks.gangs.envelope import GangCall
from penstock.tasks.gangs.member import GangMember, MemberFailedError, MemberLostError
from penstock.tasks.gangs.protocol import Meet, Met, NotMet, Returned, ToChild, ToWorker
from penstock.tasks.gangs.running import MemberWork
from penstock.tasks.worker.executors import hang_up_after
from penstock.tasks.worker.protocol import Broken, Frames, Setup, pack

_PROGRAM = "penstock.tasks.gangs.child"
_RECEIVE_BYTES = 1 << 18


class Child:
    """A fresh interpreter at the other end of a socket pair."""

    def __init__(
        self, process: asyncio.subprocess.Process, channel: socket.socket,
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter,
    ) -> None:  # fmt: skip
        self._process = process
        ending = hang_up_after(process, channel)
        self._ending = asyncio.get_running_loop().create_task(ending)
        self._reader = reader
        self._writer = writer
        self._frames: Frames[ToWorker] = Frames(ToWorker)
        self._said: deque[ToWorker] = deque()

    @classmethod
    async def start(cls, setup: Setup) -> Child:
        """One that has imported its modules; InvalidError, with the reason, if it cannot."""
        ours, theirs = socket.socketpair()
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", _PROGRAM, str(theirs.fileno()), pass_fds=(theirs.fileno(),),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=sys.stderr.fileno(),  # what the worker itself prints there is for programs
            )  # fmt: skip
        finally:
            theirs.close()
        child = cls(process, ours, *await asyncio.open_connection(sock=ours))
        try:
            child.tell(setup)
            said = await child.next()
            if isinstance(said, Broken):
                raise InvalidError(
                    f"the functions of gangs cannot be run: {said.text}",
                    advice="Check that the module can be imported here; see above for details.",
                )
        except MemberLostError as error:
            await child.end()
            raise UnavailableError("the process for a member of gangs died at its start") from error
        except BaseException:
            await child.end()
            raise
        return child

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def tell(self, message: ToChild) -> None:
        """Tells it something."""
        self._writer.write(pack(message))

    async def next(self) -> ToWorker:
        """What it says next; MemberLostError if it is gone."""
        while not self._said:
            try:
                data = await self._reader.read(_RECEIVE_BYTES)
            except OSError:
                data = b""
            if not data:
                raise MemberLostError("its process died")
            self._said.extend(self._frames.feed(data))
        return self._said.popleft()

    async def end(self) -> None:
        """Ends it, whatever it is doing, and waits until it is gone."""
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGKILL)
        await asyncio.wait([self._ending])
        self._writer.transport.abort()


class ProcessMembers:
    """Runs one member after the other, each in the same process, unless that has to be killed."""

    def __init__(self, setup: Setup, pieces: PatientPieces) -> None:
        self._setup = setup
        self._pieces = pieces
        self._child: Child | None = None

    @property
    def pid(self) -> int | None:
        """Of the process that is there."""
        return None if self._child is None else self._child.pid

    async def prepare(self) -> None:
        """Starts the process, if there is none: before the worker waits for a gang."""
        if self._child is None:
            self._child = await Child.start(self._setup)

    async def run(self, member: GangMember, gang: GangCall) -> bytes:
        """The packed outcome of this member; MemberFailedError, with that, if its function raised,
        MemberLostError if the process died. Cancelled, it kills the function."""
        await self.prepare()
        assert self._child is not None
        try:
            returned = await self._performed(self._child, member, gang)
        except BaseException:
            await asyncio.shield(self.close())
            raise
        if returned.status != Status.DONE:
            raise MemberFailedError(returned.outcome)
        return returned.outcome

    async def close(self) -> None:
        """Ends the process."""
        child, self._child = self._child, None
        if child is not None:
            await child.end()

    async def _performed(self, child: Child, member: GangMember, gang: GangCall) -> Returned:
        child.tell(MemberWork.of(member, gang))
        while True:
            said = await child.next()
            if isinstance(said, Returned):
                return said
            if isinstance(said, PutPiece | GetPiece):
                child.tell(await carry(self._pieces, said))
                continue
            assert isinstance(said, Meet)
            try:
                child.tell(Met(await member.meet(said.value, said.timeout_s)))
            except PenstockError as error:
                child.tell(NotMet(error.code, error.message))
