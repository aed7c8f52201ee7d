"""A node in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock


class NodeProcess:
    """Starts, kills and restarts one node on one directory and port."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.listen = "127.0.0.1:0"
        self.url = ""
        self.module = "penstock.node"
        self.options: list[str] = []
        self.environment: dict[str, str] = {}
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> str:
        command = [sys.executable, "-m", self.module, "--data", str(self.data)]
        self.process = subprocess.Popen(
            [*command, "--listen", self.listen, *self.options], stdout=subprocess.PIPE, text=True,
            env={**os.environ, **self.environment},
        )  # fmt: skip
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        assert self.url.startswith("penstock://"), "the node did not start"
        self.listen = self.url.removeprefix("penstock://")  # the same port after a restart
        return self.url

    def end(self, number: int = signal.SIGKILL) -> int:
        assert self.process is not None
        assert self.process.stdout is not None
        os.kill(self.process.pid, number)
        code = self.process.wait(30)
        self.process.stdout.close()
        self.process = None
        return code

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.listen.rsplit(":", 1)
        return host, int(port)

    def connect(self, timeout: float = 20.0) -> penstock.Fabric:
        return penstock.connect(self.url, timeout=timeout)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    process = NodeProcess(tmp_path / "data")
    process.start()
    yield process
    if process.process is not None:
        process.end()
