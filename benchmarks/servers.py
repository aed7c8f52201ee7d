"""Processes of the servers that are measured; each is ended by its own id, and nothing else is."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from pwd import getpwnam

from benchmarks.install import debian_folder
from penstock.cli.benchmarks.foreign import all_usage, family
from penstock.cli.benchmarks.processes import anonymous_bytes

START_SECONDS = 90.0
_STOP_SECONDS = 20.0
_POLL_SECONDS = 0.05


class Server:
    """A program. `ask_to_end` is the signal that ends it in good order."""

    def __init__(
        self,
        argv: Sequence[str | Path],
        log: Path,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        ask_to_end: int = signal.SIGTERM,
    ) -> None:
        with log.open("ab") as output:
            self._popen = subprocess.Popen(
                list(map(str, argv)),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})},
                cwd=log.parent,
                user=user,
                group=getpwnam(user).pw_gid if user else None,
                extra_groups=[] if user else None,
            )
        self._ask_to_end = ask_to_end
        self._inner: int | None = None
        self.log = log
        self.pid = self._popen.pid

    def is_inside(self, pid: int) -> None:
        """Says which process gets signals, where a shell stands around the program."""
        self._inner = pid

    def family(self) -> set[int]:
        """It and all that it has started."""
        return family(all_usage(), self.pid) if self._popen.poll() is None else set()

    def stop(self) -> None:
        """Asks it to end, and kills it if it does not."""
        if self._popen.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self._inner or self.pid, self._ask_to_end)
        try:
            self._popen.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """Ends it and all that it has started, as a crash would."""
        for pid in self.family():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._popen.wait(_STOP_SECONDS)

    def await_port(self, port: int) -> None:
        """Returns when something listens; RuntimeError if it ends before, or takes too long."""
        self._await(socket.AF_INET, ("127.0.0.1", port))

    def await_socket(self, path: Path) -> None:
        """The same of a Unix socket."""
        self._await(socket.AF_UNIX, str(path))

    def _await(self, family: socket.AddressFamily, address: str | tuple[str, int]) -> None:
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end and self._popen.poll() is None:
            with suppress(OSError), socket.socket(family) as probe:
                probe.settimeout(1)
                probe.connect(address)
                return
            time.sleep(_POLL_SECONDS)
        tail = self.log.read_bytes()[-1000:].decode(errors="replace")
        raise RuntimeError(f"{self._popen.args!r} does not listen:\n{tail}")


def anonymous_of(servers: Sequence[Server]) -> int:
    """Memory of servers that is not a view on files, in bytes."""
    total = 0
    for pid in set().union(*(server.family() for server in servers)):
        with suppress(OSError, RuntimeError):  # it has ended; a kernel's helper has none
            total += anonymous_bytes(pid)
    return total


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def socket_folder(name: str) -> Path:
    """Where a server may listen beside its port: as Penstock's clients, those whose library can
    go the way that does not pass through TCP. The paths of such sockets must be short."""
    folder = _sockets() / name
    folder.mkdir(exist_ok=True)
    return folder


@cache
def _sockets() -> Path:
    made = Path(tempfile.mkdtemp(prefix="peers-"))
    made.chmod(0o755)
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


def library_path(module: str) -> dict[str, str]:
    """Lets unpacked programs find the libraries that were unpacked with them."""
    folders = debian_folder(module).glob("usr/lib/*-linux-gnu")
    return {"LD_LIBRARY_PATH": ":".join(map(str, folders))}


def first_line(argv: Sequence[str | Path], module: str) -> str:
    """The first line that an unpacked program prints: its version."""
    done = subprocess.run(
        list(map(str, argv)), capture_output=True, text=True, timeout=20, check=False,
        env={**os.environ, **library_path(module)},
    )  # fmt: skip
    return next(iter((done.stdout or done.stderr).strip().splitlines()), "unknown")
