from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tests.cli.conftest import Run

import penstock
from penstock.consumers.sessions import Sessionizer


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
    nothing_said = dict.fromkeys(["open", "held", "state", "rate", "last"])
    assert first == {
        "partition": 0, "offset": 1, "lag": 2, "owner": "ann", "reserved": None, "token": 1,
        **nothing_said,
    }  # fmt: skip
    assert (second["offset"], second["owner"], second["reserved"]) == (None, None, "cid")
    shown = run("group", "show", "one", "g").out.splitlines()
    assert shown[0].split() == [
        "partition", "offset", "lag", "owner", "reserved", "token", "oldest",
    ]  # fmt: skip
    assert shown[2].split() == ["1", "-", "0", "-", "cid", "1", "-"]


def test_a_group_of_stateful_consumers(run: Run, node_url: str):
    run("topic", "create", "clicks", "--partitions", "2")
    run("topic", "publish", "clicks", "a", "b", "c", "--partition", "0")
    assert "none" in run("group", "members", "clicks", "s").err
    with penstock.connect(node_url) as fabric:
        group = penstock.ConsumerGroup(
            fabric, group="s", topic="clicks", handler=Sessionizer(timeout=60.0),
            to="queue:sessions", name="ann", commit_every=0.1,
        )  # fmt: skip
        with group.start():
            until(lambda: said(run("group", "members", "clicks", "s", "--json").json, 3))
            (told,) = run("group", "members", "clicks", "s", "--json").json
            assert (told["id"], told["lag"], told["read_again"]) == (group.id, 0, 0)
            assert group.id in run("group", "members", "clicks", "s").out
            first, _ = run("group", "show", "clicks", "s", "--json").json
            assert (first["owner"], first["open"], first["offset"]) == (group.id, 1, 3)
            assert first["last"]["what"] == "claimed"
            assert "claimed: token 1" in run("group", "show", "clicks", "s").out
            why = run("group", "explain", "clicks", "s", "1", "--json").json
            assert why["where"].startswith(f"{group.id} has it under token 1")
            assert why["why"] == f"it stays with {group.id}, whose share is 2 of 2"
            assert [move["what"] for move in why["moves"]] == ["claimed"]
            assert "nothing is to be done" in run("group", "explain", "clicks", "s", "1").out
    assert run("group", "members", "clicks", "s", "--json").json == []
    assert "nowhere" in run("group", "explain", "clicks", "s", "7").out


def until(holds: Callable[[], bool]) -> None:
    ends = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < ends
        time.sleep(0.1)


def said(members: list[dict[str, Any]], messages: int) -> bool:
    return [each.get("messages") for each in members] == [messages]


def test_what_is_not_there(run: Run):
    assert run("group", "show", "nosuch", "g").code == 1
    assert run("group", "list", "nosuch").code == 1
