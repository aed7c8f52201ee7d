"""The task systems by name. Each is one module, which is loaded on demand.

It has what starts workers, `SYSTEM`, for the process that runs all, and `CLIENT` for the process
that has its library.
"""

from __future__ import annotations

from importlib import import_module
from typing import NamedTuple

from benchmarks.interleaved import chosen
from benchmarks.tasks.system import TaskClient, TaskSystem


class Entry(NamedTuple):
    """Where a system is defined, and in which variant."""

    module: str
    variant: str


SYSTEMS = {
    "penstock-written": Entry("penstock_tasks", "written"),
    "penstock": Entry("penstock_tasks", "synced"),
    "celery": Entry("celery_redis", "prefork"),
    "dask": Entry("dask_cluster", "processes"),
    "ray": Entry("ray_node", "processes"),
    "dramatiq": Entry("dramatiq_redis", "processes"),
    "spark": Entry("spark_local", "local"),
    "process-pool": Entry("process_pool", "processes"),
}
BASE = "penstock-written"  # what ratios refer to: most of the others sync no more than it does


def system_of(name: str) -> TaskSystem:
    """A system by its name."""
    entry = SYSTEMS[name]
    system: TaskSystem = import_module(f"{__name__}.{entry.module}").SYSTEM(name, entry.variant)
    return system


def client_of(name: str, endpoint: str, workers: int) -> TaskClient:
    """A client of a system, in a process that has its library."""
    entry = SYSTEMS[name]
    make = import_module(f"{__name__}.{entry.module}").CLIENT
    client: TaskClient = make(endpoint, workers, entry.variant)
    return client


def choose(text: str) -> list[str]:
    """Names separated by commas, or all; ValueError if one is unknown."""
    return chosen(text, SYSTEMS) or list(SYSTEMS)
