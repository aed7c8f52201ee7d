from __future__ import annotations

import base64
import json
import subprocess
import sys

from tests.cli.conftest import Run


def test_put_and_get(run: Run):
    first = run("table", "put", "t", "k", "v", "--json").json["version"]
    assert run("table", "get", "t", "k").out == "v\n"
    assert run("table", "append", "t", "k", "-", input=b"+\xff").code == 0
    assert run("table", "get", "t", "k", "--raw").raw == b"v+\xff"
    entry = run("table", "get", "t", "k", "--json").json
    assert base64.b64decode(entry["value_base64"]) == b"v+\xff"
    assert entry["version"] > first
    stale = run("table", "put", "t", "k", "x", "--if-version", str(first))
    assert stale.code == 1
    assert "Read the current state" in stale.err
    assert run("table", "put", "t", "k", "x", "--if-version", str(entry["version"])).code == 0
    assert run("table", "get", "t", "nothing").code == 1


def test_keys(run: Run):
    for key in ("a1", "a2", "b1"):
        run("table", "put", "keys", key, f"value of {key}")
    assert run("table", "keys", "keys").out == "a1\na2\nb1\n"
    assert run("table", "keys", "keys", "--prefix", "a", "-n", "1").out == "a1\n"
    assert run("table", "keys", "keys", "--prefix", "b", "--values").out == "b1\tvalue of b1\n"
    listed = run("table", "keys", "keys", "--values", "--json").lines
    assert listed[0] == {"key": "a1", "value": "value of a1"}
    assert run("table", "delete-key", "keys", "a1").out == "deleted a1\n"
    assert run("table", "delete-key", "keys", "a1").code == 1
    assert [each["key"] for each in run("table", "keys", "keys", "--json").lines] == ["a2", "b1"]


def test_definitions(run: Run):
    assert run("table", "create", "d", "--max-bytes", "1MiB").out == "table d is ready\n"
    assert "1.0 MiB" in run("table", "show", "d").out
    assert (
        run("table", "configure", "d", "--max-bytes", "2MiB", "--json").json["options"]["max_bytes"]
        == 2 << 20
    )
    assert "d" in [each["name"] for each in run("table", "list", "--json").json]
    assert run("table", "delete", "d", "--yes").code == 0


def test_watch(run: Run, node_url):
    run("table", "create", "w")
    command = [sys.executable, "-m", "penstock.cli.app", "table", "watch", "w", "-n", "2"]
    with subprocess.Popen(
        [*command, "--url", node_url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as watcher:
        assert watcher.stderr is not None
        assert watcher.stdout is not None
        assert watcher.stderr.readline() == "watching w\n"
        version = json.loads(run("table", "put", "w", "k", "v", "--json").out)["version"]
        run("table", "delete-key", "w", "k")
        assert watcher.stdout.read() == f"k\tversion {version}\tv\nk\tdeleted\n"
        assert watcher.wait(30) == 0
