"""Namespaces of `make faults`: what is said where there can be none, and that cuts cut."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.cli.faulting.network import enter_network

_OWN = "PENSTOCK_OWN_NET"
CUT = """
import socket
import subprocess
import sys
from penstock.cli.faulting.network import PORT, Namespaces

network = Namespaces()
for place in (1, 2):
    network.add(place)
listening = '''
import socket
server = socket.create_server(("0.0.0.0", %d))
print("up", flush=True)
input()
'''
server = subprocess.Popen(
    [*network.inside(1), sys.executable, "-c", listening % PORT],
    stdin=subprocess.PIPE, stdout=subprocess.PIPE,
)
server.stdout.readline()


def reached(place):
    host = network.address(1).split(":")[0]
    call = f"import socket; socket.create_connection(({host!r}, {PORT}), 0.5)"
    done = subprocess.run([*network.inside(place), sys.executable, "-c", call], capture_output=True)
    return done.returncode == 0


found = [(reached(0), reached(1), reached(2))]
network.cut(1)
found.append((reached(0), reached(1), reached(2)))
network.heal(1)
found.append((reached(0), reached(1), reached(2)))
server.communicate(b"")
network.close()
print(found)
"""


def fake(folder: Path, script: str) -> None:
    (folder / "unshare").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "unshare").chmod(0o755)


def test_without_the_tools_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(_OWN, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert enter_network([]).startswith("a net namespace cannot be made: [Errno 2]")


def test_where_it_is_not_allowed_it_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(tmp_path, "echo 'unshare failed: Operation not permitted' >&2; exit 1")
    monkeypatch.delenv(_OWN, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert enter_network([]).endswith("cannot be made: unshare failed: Operation not permitted")


def test_inside_its_own_network_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(_OWN, "1")
    assert enter_network([]) == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="namespaces without root may not be allowed")
def test_a_place_that_is_cut_off_reaches_only_itself() -> None:
    probe = subprocess.run(
        ["unshare", "--net", "ip", "link", "add", "x", "type", "bridge"], capture_output=True
    )
    if probe.returncode:
        pytest.skip("namespaces cannot be made here")
    done = subprocess.run(
        ["unshare", "--net", sys.executable, "-c", CUT], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == str([(True,) * 3, (False, True, False), (True,) * 3]), done.stderr
