from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from tests.cli.conftest import Run


def test_publish_and_read(run: Run):
    run("topic", "create", "t", "--partitions", "2", "--retention", "1d", "--keep", "all")
    stored = run("topic", "publish", "t", "a", "b", "--partition", "1", "--json").json
    assert stored["receipts"] == [
        {"shard": stored["receipts"][0]["shard"], "partition": 1, "base": 0, "count": 2}
    ]
    run("topic", "publish", "t", "--lines", "--partition", "0", input=b"x\ny\nz\n")
    assert run("topic", "read", "t").out == "x\ny\nz\na\nb\n"
    assert run("topic", "read", "t", "-n", "4").out == "x\ny\nz\na\n"
    assert run("topic", "read", "t", "-p", "0", "--from", "2").out == "z\n"
    assert run("topic", "read", "t", "--from", "end").out == ""
    assert run("topic", "read", "t", "--from", "1h", "-p", "1").out == "a\nb\n"
    assert run("topic", "read", "t", "-p", "1", "--raw").raw == b"ab"
    last = run("topic", "read", "t", "-p", "1", "--from", "1", "--json").lines
    assert [(each["partition"], each["offset"], each["value"]) for each in last] == [(1, 1, "b")]


def test_groups(run: Run):
    run("topic", "create", "g", "--partitions", "2")
    run("topic", "publish", "g", "a", "b", "c", "--partition", "0")
    assert run("topic", "read", "g", "--group", "one", "--commit", "-n", "2").out == "a\nb\n"
    assert run("topic", "read", "g", "--group", "one").out == "c\n"
    rows = run("topic", "offsets", "g", "--group", "one", "--json").json
    assert rows[0] == {"partition": 0, "first": 0, "next": 3, "committed": 2, "lag": 1}
    assert rows[1]["committed"] is None
    assert run("topic", "commit", "g", "--group", "one", "--to", "end", "--json").json["0"] == 3
    assert run("topic", "commit", "g", "--group", "one", "0=1").code == 0
    assert run("topic", "read", "g", "--group", "one").out == "b\nc\n"
    assert run("topic", "commit", "g", "--group", "one", "--to", "1h", "--json").json["0"] == 0
    assert run("topic", "commit", "g", "--group", "one", "0=99").code == 1
    assert "partition" in run("topic", "offsets", "g").out


def test_settings(run: Run):
    run("topic", "create", "s", "--partitions", "3", "--retention-bytes", "1GiB")
    changed = run("topic", "configure", "s", "--retention", "2h", "--json").json
    assert changed["options"]["retention_ms"] == 7_200_000
    assert changed["options"]["retention_bytes"] == 1 << 30
    shown = run("topic", "show", "s").out
    assert "2 h" in shown
    assert "partition" in shown
    assert len(run("topic", "show", "s", "--json").json["figures"]["partitions"]) == 3
    assert "s" in [each["name"] for each in run("topic", "list", "--json").json]
    assert run("topic", "delete", "s").out == "deleted topic s\n"
    assert run("topic", "delete", "s").code == 1


def test_a_topic_grows(run: Run):
    run("topic", "create", "more", "--partitions", "2")
    run("topic", "publish", "more", "a", "b", "--partition", "1")
    told = run("topic", "grow", "more", "--partitions", "4")
    assert told.out == "topic more has 4 partitions, before 2\n"
    assert run("topic", "grow", "more", "--partitions", "4", "--json").json["before"] == 4
    assert run("topic", "grow", "more", "--partitions", "3").code == 1
    assert run("topic", "grow", "more").code == 2
    rows = [line.split() for line in run("topic", "show", "more").out.splitlines()[-4:]]
    assert [row[4:] for row in rows] == [
        ["the", "beginning", "-", "25", "%", "at", "0", "for", "2"],
        ["the", "beginning", "-", "25", "%", "at", "2", "for", "3"],
        ["growth", "1", "0", "25", "%"],
        ["growth", "1", "1", "25", "%"],
    ]
    family = run("topic", "show", "more", "--json").json["figures"]["family"]
    assert [(each["parent"], each["origin"]) for each in family[2:]] == [(0, 0), (1, 2)]
    assert family[1]["splits"][0]["children"] == [3]


def test_a_follower_ends_by_ctrl_c(run: Run, node_url):
    run("topic", "publish", "f", "first", "--partition", "0")
    command = [sys.executable, "-m", "penstock.cli.app", "topic", "read", "f", "--follow", "--json"]
    command += ["--url", node_url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        assert '"first"' in reader.stdout.readline()
        run("topic", "publish", "f", "second", "--partition", "0")
        assert '"second"' in reader.stdout.readline()
        reader.send_signal(signal.SIGINT)
        assert reader.wait(30) == 0


def test_a_follower_stops_at_a_count(run: Run):
    run("topic", "publish", "h", "a", "b", "--partition", "0")
    read = run("topic", "read", "h", "-f", "-n", "2", "--group", "x", "--commit")
    assert read.out == "a\nb\n"
    assert run("topic", "offsets", "h", "--group", "x", "--json").json[0]["committed"] == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ("read", "t", "--commit"),
        ("read", "t", "--from", "somewhere"),
        ("commit", "t", "--group", "g"),
        ("commit", "t", "--group", "g", "0=1", "--to", "end"),
        ("commit", "t", "--group", "g", "first=1"),
        ("commit", "t", "0=1"),
        ("create", "t", "--partitions", "0"),
        ("create", "t", "--keep", "some"),
    ],
)
def test_usage_errors_have_exit_code_2(run: Run, arguments):
    run("topic", "create", "t")
    assert run("topic", *arguments).code == 2
