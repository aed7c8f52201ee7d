"""Processes that benchmarks, the demo and `make faults` start; each is ended by its own id."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

START_SECONDS = 60.0
STOP_SECONDS = 30.0
_LOG_TAIL_BYTES = 2000
TICKS = os.sysconf("SC_CLK_TCK")


class Child:
    """`python -m MODULE ARGUMENTS`, which prints a line when it is ready: `line`.

    What it writes to its standard error goes to the file `log`. RuntimeError if it ends before it
    is ready, or takes longer than `patience` seconds. `inside`: what stands before the command, and
    becomes it. `aside`: Ctrl-C and other signals for this program's group do not reach it; this
    program must then end it whatever happens.
    """

    def __init__(
        self,
        module: str,
        *arguments: str,
        log: Path,
        patience: float = START_SECONDS,
        inside: Sequence[str] = (),
        aside: bool = False,
    ) -> None:
        started = time.perf_counter()
        with log.open("ab") as errors:
            self._popen = subprocess.Popen(
                [*inside, sys.executable, "-m", module, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                process_group=0 if aside else None,
            )
        self.pid = self._popen.pid
        try:
            self.line = self._next_line(patience)
        except BaseException:
            self.kill()
            raise
        if not self.line:
            self._ended()
            code = self._popen.returncode
            tail = log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")
            raise RuntimeError(f"{module} ended with {code} before it was ready:\n{tail}")
        self.start_seconds = time.perf_counter() - started

    def _next_line(self, patience: float) -> str:
        assert self._popen.stdout is not None
        ready, _, _ = select.select([self._popen.stdout], [], [], patience)
        if not ready:
            raise RuntimeError(f"a process said nothing for {patience:g} s")
        return self._popen.stdout.readline().decode().strip()

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._popen.poll() is None

    def say(self, line: str) -> None:
        """Writes a line to its standard input, unless it has ended."""
        assert self._popen.stdin is not None
        with suppress(BrokenPipeError):
            self._popen.stdin.write(f"{line}\n".encode())
            self._popen.stdin.flush()

    def answer(self, patience: float = START_SECONDS) -> str:
        """The next line that it prints; RuntimeError if none comes. Empty if it has ended."""
        return self._next_line(patience)

    def hang_up(self) -> None:
        """Ends its standard input."""
        assert self._popen.stdin is not None
        with suppress(BrokenPipeError):
            self._popen.stdin.close()

    def wait(self, seconds: float) -> int | None:
        """Its exit code; None if it does not end in time."""
        try:
            return self._popen.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def send(self, number: int) -> None:
        """Sends a signal, unless it has ended."""
        if self.running:
            self._popen.send_signal(number)

    def stop(self) -> None:
        """Asks it to end, and kills it if it does not."""
        if self.running:
            self._popen.terminate()
            try:
                self._popen.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._popen.kill()
        self._ended()

    def kill(self) -> None:
        """Ends it as a crash would."""
        if self.running:
            self._popen.send_signal(signal.SIGKILL)
        self._ended()

    def _ended(self) -> None:
        self._popen.wait(STOP_SECONDS)
        self.hang_up()
        if self._popen.stdout is not None:
            self._popen.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


class NodeProcess(Child):
    """A node. `url` is what clients connect to. `options` take the place of where it listens."""

    def __init__(
        self,
        data: Path,
        listen: str = "127.0.0.1:0",
        patience: float = START_SECONDS,
        options: Sequence[str] = (),
        inside: Sequence[str] = (),
        aside: bool = False,
    ) -> None:
        log = data.with_name(data.name + ".log")
        given = options or ("--listen", listen)
        super().__init__(
            "penstock.node", "--data", str(data), *given, log=log, patience=patience,
            inside=inside, aside=aside,
        )  # fmt: skip
        self.url = self.line
        self.address = self.url.removeprefix("penstock://")


def cpu_seconds(pid: int) -> float:
    """Processor time that a process has used so far, in steps of a clock tick."""
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def anonymous_bytes(pid: int) -> int:
    """Memory of a process that is not a view on files: what it costs beyond the page cache."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    raise RuntimeError("this system does not tell the anonymous memory of a process")


@contextmanager
def pinned(pids: Collection[int], cpus: Collection[int]) -> Iterator[None]:
    """Binds all threads of these processes to `cpus`, and undoes it. No CPUs: binds nothing."""
    before = {thread: os.sched_getaffinity(thread) for thread in _threads(pids)} if cpus else {}
    for thread in before:
        os.sched_setaffinity(thread, cpus)
    try:
        yield
    finally:
        for thread, old in before.items():
            with suppress(ProcessLookupError):
                os.sched_setaffinity(thread, old)


def _threads(pids: Collection[int]) -> list[int]:
    return [int(thread) for pid in pids for thread in os.listdir(f"/proc/{pid}/task")]
