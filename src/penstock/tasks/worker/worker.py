"""A whole worker, from the address of a fabric to its end: what the command line runs."""

from __future__ import annotations

import os
import socket

from penstock.client.aio import AsyncFabric
from penstock.tasks.streams import open_streams
from penstock.tasks.worker.puller import Puller
from penstock.tasks.worker.settings import WorkerSettings


def worker_name() -> str:
    """Host and process: enough for a person to find it."""
    return f"{socket.gethostname()}:{os.getpid()}"


async def open_puller(
    fabric: AsyncFabric, settings: WorkerSettings, name: str | None = None
) -> Puller:
    """A puller for a task set, whose streams are made if need be. `run` it. `name`: no other worker
    may have it; the process's, unless said otherwise."""
    streams = await open_streams(fabric, settings.task_set, settings.durability)
    return Puller(fabric, streams, settings, name or worker_name())
