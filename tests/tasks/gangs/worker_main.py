"""A worker of gangs in a process of its own: `python -m … URL KIND SESSION_S`.

Its address is its process id, so that a test can find and kill a member of a gang.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from penstock import aio
from penstock.tasks.gangs.opening import open_gang_worker
from penstock.tasks.worker.settings import WorkerSettings

MODULES = ("tests.tasks.gangs.functions",)


async def main(url: str, kind: Any, session_s: str) -> None:
    pid = str(os.getpid())
    settings = WorkerSettings(MODULES, kind=kind)
    async with await aio.connect(url, timeout=30.0) as fabric:
        worker = await open_gang_worker(fabric, settings, f"worker-{pid}", pid, float(session_s))
        print("ready", flush=True)
        await worker.run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
