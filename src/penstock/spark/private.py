"""A node for a data directory: started by the first that needs it, ended with the Spark session.

`python -m penstock.spark.private DIR PID NOTE` runs the node for as long as process PID lives.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from penstock.errors import DeadlineError, InvalidError

START_S = 60.0  # recovery of a large directory takes its time
LOOK_S = 0.2
WAIT_S = 0.02
STOP_S = 10.0

_keepers: list[subprocess.Popen[bytes]] = []  # held, because they outlive who started them


def url_of(path: str) -> str:
    """Where the node of a data directory listens; starts it if it is not there yet.

    Called in a Python process of Spark's driver: the node ends with the parent of that process,
    which Spark ends with the session. InvalidError if the node does not start.
    """
    note = _notes() / f"{hashlib.sha256(os.path.realpath(path).encode()).hexdigest()[:24]}.json"
    with note.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two planners may ask at the same time
        until = time.monotonic() + STOP_S + 1
        while (found := _told(note)) is not None and is_running(found["pid"]):
            if found["url"]:
                return str(found["url"])
            if time.monotonic() > until:
                raise DeadlineError(f"the node of an earlier session still runs for {path}")
            time.sleep(WAIT_S)
        note.unlink(missing_ok=True)
        return str(_start(path, note)["url"])


def _notes() -> Path:
    folder = Path(tempfile.gettempdir()) / f"penstock-spark-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise InvalidError(f"{folder} belongs to somebody else", advice="Set TMPDIR to another.")
    return folder


def _told(note: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(note.read_text())
    except (FileNotFoundError, ValueError):
        return None
    return found


def _start(path: str, note: Path) -> dict[str, Any]:
    errors = note.with_suffix(".log")
    with errors.open("wb") as log:
        keeper = subprocess.Popen(
            [sys.executable, "-m", "penstock.spark.private", path, str(os.getppid()), str(note)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C is for the driver; the node ends after it
        )
    _keepers.append(keeper)
    until = time.monotonic() + START_S
    while (found := _told(note)) is None:
        if keeper.poll() is not None:
            said = errors.read_text(errors="replace").strip().splitlines()[-1:] or ["no reason"]
            raise InvalidError(f"no node could be started for {path}: {said[0]}", advice=" ")
        if time.monotonic() > until:
            keeper.terminate()
            raise DeadlineError(f"the node of {path} was not ready within {START_S:.0f} s")
        time.sleep(WAIT_S)
    return found


def is_running(process: int) -> bool:
    """Whether a process is there; one that has ended and waits to be noticed is not."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return True  # no such files on this system


def keep(path: str, process: int, note: Path) -> int:
    """Runs a node until it ends, a process is gone, or this one is asked to stop."""
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopping.append(number))
    command = [sys.executable, "-m", "penstock.node", "--data", path, "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as node:
        assert node.stdout is not None
        url = node.stdout.readline().strip()
        if url:
            _tell(note, url)
        while node.poll() is None and not stopping and is_running(process):
            time.sleep(LOOK_S)
        if url:
            _tell(note, "")  # who wants the directory now waits until it is free
        _end(node)
    note.unlink(missing_ok=True)
    return 0 if url else 1


def _tell(note: Path, url: str) -> None:
    """Writes where the node is, all at once; an empty address: it is about to end."""
    new = note.with_suffix(".new")
    new.write_text(json.dumps({"url": url, "pid": os.getpid()}))
    new.replace(note)


def _end(node: subprocess.Popen[str]) -> None:
    if node.poll() is None:
        node.terminate()
        try:
            node.wait(STOP_S)
        except subprocess.TimeoutExpired:
            node.kill()


if __name__ == "__main__":
    sys.exit(keep(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])))
