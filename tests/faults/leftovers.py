"""What a run left behind."""

from __future__ import annotations

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
