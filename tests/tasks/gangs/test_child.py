"""The process of a member, without its worker."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from tests.tasks.forks import FUNCTIONS, Fork

from penstock.tasks.codec import Codec
from penstock.tasks.envelope import TaskCall, encode
from penstock.tasks.gangs.member import MemberLostError
from penstock.tasks.gangs.processes import Child
from penstock.tasks.gangs.running import MemberWork
from penstock.tasks.worker.protocol import Setup

LONG_S = 60.0


def test_a_process_that_is_killed_is_missed_though_one_that_it_has_forked_lives(tmp_path: Path):
    async def script() -> None:
        arguments, _ = Codec(lambda _: True).pack_call(fork.pipes, {})
        call = TaskCall(f"{FUNCTIONS.stem}:wait_for_a_fork", arguments, bytes(16))
        child = await Child.start(Setup([str(FUNCTIONS)], [], "w"))
        try:
            child.tell(MemberWork(encode(call), 0, ["here"], 1, 1))
            await fork.begun()
            os.kill(child.pid, signal.SIGKILL)
            with pytest.raises(MemberLostError):
                await child.next()
        finally:
            await child.end()

    with Fork(tmp_path) as fork:
        asyncio.run(asyncio.wait_for(script(), LONG_S))
