"""What a run left behind."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path


def processes_in(folder: Path) -> list[str]:
    """Command lines of processes that have to do with a folder."""
    found: list[str] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it has ended
            continue
        if str(folder) in line:
            found.append(line)
    return found


def check_interrupt(command: Sequence[str], kept: Path, begun: str, seconds: float) -> None:
    """Interrupts a command that keeps its files in a folder, once there are some that match: it
    says so by its exit code, and none of its processes is left."""
    line = [*command, "--keep", str(kept)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as running:
        while running.poll() is None and not any(kept.glob(begun)):
            try:
                running.wait(0.1)
            except subprocess.TimeoutExpired:
                continue
        assert processes_in(kept)
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=seconds)
    assert running.returncode == 130
    assert processes_in(kept) == []
