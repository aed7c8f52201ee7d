"""Whether 'durable' is true: the sync calls of a server while messages are pushed one by one; and
what has to wait for them, seen when each takes a while."""

from __future__ import annotations

import re
import shutil
import signal
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.folders import data_folder
from benchmarks.loads import WARM_UP
from benchmarks.servers import Server
from benchmarks.system import System
from benchmarks.workloads import Amounts, Job, together
from penstock.cli.benchmarks.figures import Figure, Figures

HELD_UP_MS = 50  # so long every one of them takes, at least
_HELD_UP = 10  # messages
_HELD_UP_RATE = 5  # a second, so that none waits for the one before it
_ATTACH_SECONDS = 1.0
# Penstock writes and syncs in one call, which counts if its flags say so. (Each is held up: strace
# does not look at flags.)
_CALL = re.compile(r"\b(?:(?:fsync|fdatasync|sync_file_range|msync)\(|pwritev2\(.*RWF_D?SYNC)")


def count_calls(trace: str) -> int:
    """Sync calls in what strace wrote; a call that was cut in two counts once."""
    return sum(bool(_CALL.search(line)) for line in trace.splitlines())


def syncs(system: System, amounts: Amounts) -> Figures:
    """Sync calls for each single push; and how long a push, a pop and a message on its way to a
    consumer take if a sync takes HELD_UP_MS: what takes less does not wait for one. Nothing without
    strace."""
    if shutil.which("strace") is None:
        return {}
    given = {"n": amounts.traced, "seconds": 4 * amounts.seconds, "reset": True}
    system.start()
    with _strace(system) as trace:
        [run] = together(system, [Job("single_pushes", given)])
    system.stop()
    calls = count_calls(trace.read_text())
    figures = {"syncs of a single push": Figure(calls / (len(run["ns"]) + WARM_UP), "calls")}
    given = {"n": _HELD_UP, "rate": _HELD_UP_RATE, "seconds": 4 * amounts.seconds}
    first = {**given, "reset": True}
    system.start()
    with _strace(system, f"delay_enter={HELD_UP_MS * 1000}"):
        for name, jobs in {
            "push": [Job("single_pushes", first)],
            "pop": [Job("single_pops", first)],
            "handed over": [Job("consume_paced", first), Job("produce_paced", given)],
        }.items():
            took_ms = statistics.median(together(system, jobs)[0]["ns"] or [0]) / 1e6
            figures[f"syncs of {HELD_UP_MS} ms/{name}"] = Figure(took_ms, "ms")
    return figures


@contextmanager
def _strace(system: System, inject: str = "") -> Iterator[Path]:
    """Writes the sync calls of a server to a file; with `inject`, does that to each."""
    path = data_folder() / "strace.txt"
    path.unlink(missing_ok=True)
    pids = set().union(*(server.family() for server in system.servers))
    calls = ",".join(system.sync_calls)
    argv = ["strace", "-f", "-qq", "-e", f"trace={calls}", "-s", "0", "-o", str(path)]
    argv += ["-e", f"inject={calls}:{inject}"] if inject else []
    argv += [word for pid in pids for word in ("-p", str(pid))]
    tracer = Server(argv, data_folder() / "strace.log", ask_to_end=signal.SIGINT)
    try:
        time.sleep(_ATTACH_SECONDS)
        yield path
    finally:
        tracer.stop()
