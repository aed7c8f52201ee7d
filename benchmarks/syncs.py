"""Whether 'durable' is true: the sync calls of a server while messages are pushed one by one."""

from __future__ import annotations

import re
import shutil
import signal
import time

from benchmarks.folders import data_folder
from benchmarks.servers import Server
from benchmarks.system import System
from benchmarks.workloads import Amounts, Job, together
from penstock.cli.benchmarks.figures import Figure, Figures

CALLS = ("fsync", "fdatasync", "sync_file_range", "msync", "pwritev2")
_ATTACH_SECONDS = 1.0
# Penstock writes and syncs in one call, which counts if its flags say so.
_CALL = re.compile(r"\b(?:(?:fsync|fdatasync|sync_file_range|msync)\(|pwritev2\(.*RWF_D?SYNC)")


def count_calls(trace: str) -> int:
    """Sync calls in what strace wrote; a call that was cut in two counts once."""
    return sum(bool(_CALL.search(line)) for line in trace.splitlines())


def syncs(system: System, amounts: Amounts) -> Figures:
    """Sync calls for each single push. Nothing without strace."""
    if shutil.which("strace") is None:
        return {}
    system.start()
    path = data_folder() / "strace.txt"
    path.unlink(missing_ok=True)
    pids = set().union(*(server.family() for server in system.servers))
    argv = ["strace", "-f", "-qq", "-e", f"trace={','.join(CALLS)}", "-s", "0", "-o", str(path)]
    argv += [word for pid in pids for word in ("-p", str(pid))]
    given = {"n": amounts.traced, "seconds": 4 * amounts.seconds, "reset": True}
    tracer = Server(argv, data_folder() / "strace.log", ask_to_end=signal.SIGINT)
    try:
        time.sleep(_ATTACH_SECONDS)
        [run] = together(system, [Job("single_pushes", given)])
    finally:
        tracer.stop()
        system.stop()
    pushed = len(run["ns"])
    return {"syncs of a single push": Figure(count_calls(path.read_text()) / pushed, "calls")}
