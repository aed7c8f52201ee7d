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


async def open_puller(fabric: AsyncFabric, settings: WorkerSettings) -> Puller:
    """A puller for a task set, whose streams are made if need be. `run` it."""
    streams = await open_streams(fabric, settings.task_set, settings.durability)
    return Puller(fabric, streams, settings, worker_name())
