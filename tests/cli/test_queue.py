from __future__ import annotations

import base64

import pytest
from tests.cli.conftest import Run, invoke


def test_push_pop_round(run: Run):
    pushed = run("queue", "push", "round", "one", "two")
    assert (pushed.code, pushed.out) == (0, "2 messages stored, synced\n")
    assert "created queue round" in pushed.err
    assert run("queue", "peek", "round", "-n", "5").out == "one\ntwo\n"
    assert run("queue", "pop", "round").out == "one\n"
    assert run("queue", "pop", "round", "-n", "5").out == "two\n"
    empty = run("queue", "pop", "round")
    assert (empty.code, empty.out) == (0, "")
    assert "no message" in empty.err


def test_values_come_from_standard_input(run: Run):
    run("queue", "push", "stdin", "--lines", input=b"a\nb\r\n\nlast")
    run("queue", "push", "stdin", "-", input=b"whole\ninput\n")
    popped = run("queue", "pop", "stdin", "-n", "9", "--json").lines
    assert sorted(each["value"] for each in popped) == ["", "a", "b", "last", "whole\ninput\n"]


def test_any_bytes_go_in_and_out(run: Run):
    data = bytes(range(256))
    run("queue", "push", "binary", "-", input=data)
    assert run("queue", "peek", "binary", "--raw").raw == data
    assert run("queue", "peek", "binary", "--raw", "--lines").raw == data + b"\n"
    assert run("queue", "peek", "binary").out.count("\n") == 1
    (message,) = run("queue", "pop", "binary", "--json").lines
    assert base64.b64decode(message["value_base64"]) == data


def test_all_that_is_known_of_a_message(run: Run):
    run("queue", "push", "known", "v", "--key", "k", "--header", "h=1", "--header", "i=a=b")
    assert "key=k" in run("queue", "peek", "known", "-v").out
    (message,) = run("queue", "pop", "known", "--json").lines
    assert message["key"] == "k"
    assert message["headers"] == {"h": "1", "i": "a=b"}
    assert message["deliveries"] == 1


def test_what_becomes_of_popped_messages(run: Run):
    run("queue", "push", "then", "v")
    run("queue", "pop", "then", "--then", "nack")
    run("queue", "pop", "then", "--then", "keep", "--lease", "1h")
    assert run("queue", "show", "then", "--json").json["figures"]["leased"] == 1
    run("queue", "push", "then", "w")
    run("queue", "pop", "then", "--then", "dead")
    assert run("queue", "dead", "then").out == "w\n"
    assert run("queue", "redrive", "then", "--json").json == {"moved": 1}
    run("queue", "pop", "then", "--then", "dead")
    assert run("queue", "purge", "then", "--dead", "--json").json == {"dropped": 1}
    assert "no dead letters" in run("queue", "dead", "then").err


def test_held_messages(run: Run):
    run("queue", "push", "held", "v", "--id", "x", "--hold", "--key", "k")
    assert run("queue", "pop", "held").out == ""
    states = run("queue", "release", "held", "x", "nobody", "--json").json
    assert states == {"x": "released", "nobody": "unknown"}
    assert "done" in run("queue", "release", "held", "x").out
    assert run("queue", "pop", "held", "--json").lines[0]["key"] == "k"


def test_an_id_is_stored_once(run: Run):
    run("queue", "push", "ids", "v", "--id", "x")
    again = run("queue", "push", "ids", "v", "--id", "x", "--json").json
    assert (again["count"], again["duplicates"]) == (1, 1)
    assert len(run("queue", "pop", "ids", "-n", "5").out.splitlines()) == 1


def test_settings(run: Run):
    created = run(
        "queue", "create", "set", "--lease", "90s", "--ttl", "7d", "--max-bytes", "64MiB",
        "--ordered", "key", "--max-deliveries", "3", "--durability", "written", "--json",
    ).json  # fmt: skip
    assert created["created"] is True
    options = created["options"]
    assert (options["lease_ms"], options["ttl_ms"]) == (90_000, 604_800_000)
    assert (options["max_bytes"], options["ordered"]) == (64 << 20, "key")
    assert run("queue", "create", "set", "--lease", "90s", "--json").json["created"] is False
    changed = run("queue", "configure", "set", "--lease", "5m", "--json").json
    assert changed["options"]["lease_ms"] == 300_000
    shown = run("queue", "show", "set").out
    assert "5 m" in shown
    assert "64.0 MiB" in shown
    assert "set" in run("queue", "list").out
    assert "set" in [each["name"] for each in run("queue", "list", "--json").json]


def test_delete_and_purge(run: Run):
    run("queue", "push", "gone", "a", "b")
    assert run("queue", "purge", "gone").out == "2 waiting messages dropped\n"
    assert run("queue", "delete", "gone", "--json").json == {"deleted": "gone"}
    assert run("queue", "delete", "gone").code == 1


def test_errors_are_one_line_with_advice(run: Run):
    missing = run("queue", "pop", "nowhere")
    assert missing.code == 1
    assert missing.err == (
        "error: there is no queue 'nowhere' (Check the name, or create it first.)\n"
    )
    as_json = run("queue", "show", "nowhere", "--json")
    assert as_json.code == 1
    assert '"code": 20' in as_json.err
    run("queue", "create", "there", "--lease", "5s")
    other = run("queue", "create", "there", "--lease", "6s")
    assert other.code == 1
    assert "exists with lease_ms=5000" in other.err
    assert run("queue", "configure", "there").code == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("push", "q", "v", "--delay", "soon"),
        ("push", "q", "v", "--header", "broken"),
        ("push", "q", "-", "-"),
        ("push", "q", "v", "--lines"),
        ("push", "q", "v", "w", "--id", "x"),
        ("pop", "q", "-n", "0"),
        ("pop", "q", "--raw", "--json"),
        ("pop", "q", "--lines"),
        ("pop", "q", "--then", "eat"),
        ("create", "q", "--ordered", "maybe"),
        ("create", "q", "--max-bytes", "much"),
        ("push",),
        ("nonsense",),
    ],
)
def test_usage_errors_have_exit_code_2(run: Run, arguments):
    assert run("queue", *arguments).code == 2


def test_a_data_directory_can_be_used_without_a_node(tmp_path):
    where = ("--path", str(tmp_path / "data"))
    assert invoke("queue", "push", "q", "kept", *where).code == 0
    assert invoke("queue", "pop", "q", *where).out == "kept\n"
    assert invoke("stats", "--json", *where).json["queues"] == 1


def test_no_node_there():
    found = invoke("queue", "list", "--url", "penstock://127.0.0.1:1", "--timeout", "200ms")
    assert found.code == 1
    assert "penstock serve" in found.err
    wrong = invoke("queue", "list", "--url", "http://somewhere")
    assert wrong.code == 1
    assert "penstock://host:port" in wrong.err
