"""A disk that can be filled: a file system in memory with a bound, in a namespace of this program's
own, which goes with it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from penstock.cli.faulting.namespaces import enter

DISK_BYTES = 256 << 20
_SECONDS = 10.0


def enter_mounts(arguments: list[str]) -> str:
    """Starts `make soak` anew where it may mount things; see `namespaces.enter`."""
    trial = 'd=$(mktemp -d) && mount -t tmpfs -o size=1m penstock "$d" && umount "$d" && rmdir "$d"'
    return enter("penstock.cli.soak", arguments, "mount", trial)


class SmallDisk:
    """A folder on a disk of its own, which can be filled up and emptied."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"
        path.mkdir()
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "penstock", str(path)],
            check=True, timeout=_SECONDS,
        )  # fmt: skip

    def fill(self) -> None:
        """Nothing more fits."""
        with self._ballast.open("ab") as file:
            while room := _free_bytes(self.path):
                os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), room)

    def free(self) -> None:
        """As much room as before."""
        self._ballast.unlink(missing_ok=True)

    def close(self) -> None:
        """Nothing may use it any more."""
        subprocess.run(["umount", "--lazy", str(self.path)], check=True, timeout=_SECONDS)


def _free_bytes(path: Path) -> int:
    stats = os.statvfs(path)
    return stats.f_bavail * stats.f_frsize
