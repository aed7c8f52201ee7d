from __future__ import annotations

from tests.cli.conftest import Run

import penstock


def test_groups_of_topics(run: Run, node_url: str):
    assert run("group", "list", "--json").json == []
    assert "none" in run("group", "list").err
    run("topic", "create", "one", "--partitions", "2")
    run("topic", "create", "two", "--partitions", "1")
    run("topic", "publish", "one", "a", "b", "c", "--partition", "0")
    with penstock.connect(node_url) as fabric:
        topic = fabric.topic("one")
        token = topic.claim(0, "g", "ann", 30).token
        topic.commit("g", {0: 1}, token, {0: b"state"})
        topic.claim(1, "g", "bob", 30)
        topic.unclaim(1, "g", 1, to="cid", reserve=30)
        fabric.topic("two").commit("h", {0: 0})
    rows = run("group", "list", "--json").json
    assert rows == [
        {"topic": "one", "group": "g", "partitions": 1, "owners": 1, "lag": 2},
        {"topic": "two", "group": "h", "partitions": 1, "owners": 0, "lag": 0},
    ]
    assert run("group", "list", "two", "--json").json == rows[1:]
    assert "one    g" in run("group", "list", "one").out
    first, second = run("group", "show", "one", "g", "--json").json
    assert first.pop("oldest_ms") >= 0
    assert first == {
        "partition": 0, "offset": 1, "lag": 2, "owner": "ann", "reserved": None, "token": 1,
    }  # fmt: skip
    assert (second["offset"], second["owner"], second["reserved"]) == (None, None, "cid")
    shown = run("group", "show", "one", "g").out.splitlines()
    assert shown[0].split() == [
        "partition", "offset", "lag", "owner", "reserved", "token", "oldest",
    ]  # fmt: skip
    assert shown[2].split() == ["1", "-", "0", "-", "cid", "1", "-"]


def test_what_is_not_there(run: Run):
    assert run("group", "show", "nosuch", "g").code == 1
    assert run("group", "list", "nosuch").code == 1
