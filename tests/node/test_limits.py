"""Files that the system lets a node have: it takes all, and refuses clients before they run out."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from penstock.errors import UnavailableError
from penstock.node.node import RESERVED_FILES
from penstock.wire.frames import FRAME_BYTES, Flag, read_error

_NODE = """
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[2]), int(sys.argv[3])))
sys.argv = ["node", "--data", sys.argv[1], "--listen", "127.0.0.1:0"]
runpy.run_module("penstock.node", run_name="__main__")
"""


@contextmanager
def limited(data: Path, soft: int, hard: int) -> Iterator[tuple[int, tuple[str, int]]]:
    """A node that may open so many files; its process and its address."""
    command = [sys.executable, "-c", _NODE, str(data), str(soft), str(hard)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        host, port = process.stdout.readline().strip().removeprefix("penstock://").split(":")
        try:
            yield process.pid, (host, int(port))
        finally:
            os.kill(process.pid, signal.SIGTERM)


@pytest.mark.skipif(not Path("/proc/self/limits").exists(), reason="needs /proc")
def test_a_node_may_open_as_many_files_as_the_system_allows(tmp_path: Path) -> None:
    with limited(tmp_path / "data", 200, 300) as (pid, _):
        limits = Path(f"/proc/{pid}/limits").read_text()
        (line,) = [line for line in limits.splitlines() if line.startswith("Max open files")]
        assert line.split()[3:5] == ["300", "300"]


def test_who_finds_no_room_is_told_so(tmp_path: Path) -> None:
    room = 10
    limit = RESERVED_FILES + room
    with limited(tmp_path / "data", limit, limit) as (_, address), ExitStack() as stack:
        connections = [
            stack.enter_context(socket.create_connection(address, 10)) for _ in range(room + 30)
        ]
        for refused in connections[room:]:
            refused.settimeout(10)
            answer = b""
            while part := refused.recv(4096):
                answer += part
            assert answer[5] == Flag.RESPONSE | Flag.ERROR
            error = read_error(answer[FRAME_BYTES:])
            assert isinstance(error, UnavailableError)
            assert "no more connections" in error.message
