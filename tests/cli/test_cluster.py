"""`penstock cluster`, against a cluster of processes that it starts itself."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.conftest import invoke, serving


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Two nodes that run on without the command that started them."""
    data = tmp_path_factory.mktemp("cluster")
    command = [sys.executable, "-m", "penstock.cli.app", "cluster"]
    up = subprocess.run(
        [*command, "up", "--data", str(data), "--nodes", "2", "--detach", "--json"],
        capture_output=True, text=True, timeout=90,
    )  # fmt: skip
    assert up.returncode == 0, up.stderr
    started, status = map(json.loads, up.stdout.splitlines())
    assert started["event"] == "started"
    assert [node["status"] for node in status["nodes"]] == ["up", "up"]
    yield data
    stopped = invoke("cluster", "down", "--data", str(data), "--json")
    assert stopped.json == {"stopped": 2}


@pytest.fixture
def url(folder: Path) -> str:
    notes = json.loads((folder / "nodes.json").read_text())
    return "penstock://" + ",".join(note["address"] for note in notes.values())


def test_status_for_people_and_programs(url: str) -> None:
    shown = invoke("cluster", "status", "--url", url)
    assert shown.code == 0
    assert shown.out.splitlines()[0].split()[:3] == ["node", "address", "status"]
    assert "256 shards, replication 3" in shown.out
    told = invoke("cluster", "status", "--url", url, "--json").json
    assert sum(node["owns"] for node in told["nodes"]) == 256
    assert told["consensus"]["leader"] in (1, 2)


def test_one_dead_address_among_several_does_no_harm(url: str) -> None:
    shown = invoke("cluster", "status", "--url", f"penstock://127.0.0.1:1,{url[11:]}", "--json")
    assert shown.json["shards"] == 256
    refused = invoke("cluster", "status", "--url", "penstock://127.0.0.1:1")
    assert refused.code == 1
    assert "no node answers: 127.0.0.1:1" in refused.err


def test_changes(url: str) -> None:
    assert "penstock serve --data DIR" in invoke("cluster", "add", "--url", url).out
    assert invoke("cluster", "rebalance", "--url", url, "--json").json["plan"] == []
    refused = invoke("cluster", "remove", "2", "--url", url)
    assert refused.code == 1
    assert "drain it first" in refused.err
    assert "there is no node 9" in invoke("cluster", "drain", "9", "--url", url).err
    assert invoke("cluster", "drain", "2", "--url", url).code == 0
    assert invoke("cluster", "undrain", "2", "--url", url, "--json").json["version"] > 0
    assert invoke("cluster", "replication", "2", "--url", url).code == 0
    assert invoke("cluster", "status", "--url", url, "--json").json["replication"] == 2


def test_a_cluster_that_is_up_is_not_started_twice(folder: Path) -> None:
    refused = invoke("cluster", "up", "--data", str(folder))
    assert refused.code == 1
    assert "is up" in refused.err


def test_a_node_alone_has_no_cluster(tmp_path: Path) -> None:
    with serving(tmp_path) as (_, start):
        refused = invoke("cluster", "status", "--url", start["url"])
    assert "this node is not part of a cluster" in refused.err


def test_serve_founds_and_starts_again_without_being_told(tmp_path: Path) -> None:
    with serving(tmp_path, "--cluster") as (_, start):
        assert start["node"] == 1
    with serving(tmp_path) as (_, again):
        assert again["cluster"] == start["cluster"]
    refused = invoke("serve", "--data", str(tmp_path), "--listen", "0.0.0.0:0")
    assert "--advertise" in refused.err


def test_up_in_the_foreground_ends_with_ctrl_c(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "penstock.cli.app", "cluster", "up", "--nodes", "1"]
    with subprocess.Popen(
        [*command, "--data", str(tmp_path), "--json"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["event"] == "started"
        assert len(json.loads(process.stdout.readline())["nodes"]) == 1
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=30)
        assert json.loads(out) == {"event": "stopped"}
        assert process.returncode == 0
