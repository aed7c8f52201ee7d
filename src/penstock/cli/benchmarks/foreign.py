"""Whether somebody else used the processors during a measurement."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

from penstock.cli.benchmarks.processes import TICKS

_KERNEL_THREADS = 2  # the parent of all of them


class Usage(NamedTuple):
    """What a process has used, and whose child it is."""

    parent: int
    ticks: int  # its own and of the children that it has waited for


class ForeignCpu:
    """Counts from its creation. Kernel threads are taken for ours: they write our data."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._others, self._stolen = _foreign_ticks()

    def cores(self) -> float:
        """Processors that others have used since, on average; what the hypervisor took included."""
        others, stolen = _foreign_ticks()
        ticks = max(others - self._others, 0) + max(stolen - self._stolen, 0)
        return ticks / TICKS / max(time.perf_counter() - self._started, 1e-3)


def _foreign_ticks() -> tuple[int, int]:
    line = Path("/proc/stat").read_text().splitlines()[0]
    user, nice, system, _, _, irq, softirq, stolen, *_ = map(int, line.split()[1:])
    usage = all_usage()
    ours = sum(usage[pid].ticks for pid in family(usage, os.getpid()))
    kernel = sum(each.ticks for each in usage.values() if each.parent == _KERNEL_THREADS)
    return user + nice + system + irq + softirq - ours - kernel, stolen


def all_usage() -> dict[int, Usage]:
    """What every process of this machine has used, by its id."""
    usage: dict[int, Usage] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = Path("/proc", name, "stat").read_bytes().rpartition(b")")[2].split()
        except OSError:  # it has ended
            continue
        usage[int(name)] = Usage(int(fields[1]), sum(map(int, fields[11:15])))
    return usage


def family(usage: dict[int, Usage], root: int) -> set[int]:
    """A process and all that descend from it."""
    members = {root}
    grown = True
    while grown:
        more = {pid for pid, each in usage.items() if each.parent in members} - members
        members |= more
        grown = bool(more)
    return members
