from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys

import pytest
from tests.cli.conftest import invoke, serving

import penstock
from penstock.cli.serve import found_text, is_exposed


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve_use_stop_and_serve_again(tmp_path, number):
    with serving(tmp_path / "data") as (process, start):
        assert start["event"] == "started"
        assert start["recovered"]["records"] == 0
        with penstock.connect(start["url"]) as fabric:
            fabric.queue("q").push(b"kept")
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
        assert process.returncode == 0
        assert json.loads(out) == {"event": "stopped"}
        assert err == ""
    with serving(tmp_path / "data") as (_, start), penstock.connect(start["url"]) as fabric:
        message = fabric.queue("q", create=False).pop()
        assert message is not None
        assert message.value == b"kept"


def test_the_start_line_for_people(tmp_path):
    command = [sys.executable, "-m", "penstock.cli.app", "serve", "--listen", "127.0.0.1:0"]
    command += ["--data", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.terminate()
        assert process.wait(30) == 0
        assert line.startswith("serving penstock://127.0.0.1:")
        assert f"from {tmp_path}: 0 records replayed, ready in" in line
        assert process.stdout.read() == "stopped; all that was acknowledged is on the disk\n"


def test_a_directory_that_is_in_use(tmp_path):
    with penstock.open(str(tmp_path)):
        refused = invoke("serve", "--data", str(tmp_path), "--listen", "127.0.0.1:0")
    assert refused.code == 1
    assert "is open in another process" in refused.err
    assert refused.err.count("\n") == 1


def test_an_address_that_is_in_use(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        refused = invoke("serve", "--data", str(tmp_path), "--listen", address)
    assert refused.code == 1
    assert refused.err == (
        f"error: cannot listen on {address}: Address already in use (Stop what uses it, or choose "
        "another address with --listen.)\n"
    )
    with penstock.open(str(tmp_path)):
        """The directory was let go."""


def test_bad_input(tmp_path):
    assert "HOST:PORT" in invoke("serve", "--listen", "1.2.3.4:http").err
    (tmp_path / "file").touch()
    refused = invoke("serve", "--data", str(tmp_path / "file"), "--listen", "127.0.0.1:0")
    assert refused.code == 1
    assert "cannot open" in refused.err
    assert invoke("serve", "--log-level", "loud").code == 2


@pytest.mark.parametrize(
    ("address", "exposed"),
    [("127.0.0.1", False), ("127.1.2.3", False), ("::1", False), ("0.0.0.0", True), ("::", True)],
)
def test_who_may_reach_it(address, exposed):
    assert is_exposed(address) == exposed


def test_what_recovery_found():
    found = {"records": 1200, "damages": ["x"], "cut": "j-1 at 5", "lost_messages": 3}
    text = found_text(found)
    assert text.startswith("1,200 records replayed, torn end cut off (j-1 at 5)")
    assert "doctor" in text
