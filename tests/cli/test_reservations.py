from __future__ import annotations

from tests.cli.conftest import Run

import penstock


def test_who_holds_what_and_having_it_back(run: Run, node_url: str):
    run("queue", "push", "held", "one", "two")
    assert "there are none" in run("queue", "reservations", "held").err
    with penstock.connect(node_url) as fabric:
        assert fabric.queue("held").reserve("job", 1) is not None
    (told,) = run("queue", "reservations", "held", "--json").json
    assert (told["key"], told["number"], told["messages"]) == ("job", 1, 2)
    assert "job" in run("queue", "reservations", "held").out
    assert run("queue", "unreserve", "held", "job", "-n", "2", "--yes").code == 0
    back = run("queue", "unreserve", "held", "job", "--yes", "--json")
    assert back.json == {"messages": 2}
    assert run("queue", "pop", "held", "-n", "2").out == "one\ntwo\n"


def test_publications_are_listed_and_forgotten(run: Run, node_url: str):
    assert "there are none" in run("publication", "list").err
    with penstock.connect(node_url) as fabric:
        stage = fabric.queue("staged").stage()
        stage.push(b"v")
        fabric.publish_staged("job", 3, [stage])
    (told,) = run("publication", "list", "--json").json
    assert (told["key"], told["number"]) == ("job", 3)
    assert "job" in run("publication", "list").out
    assert run("publication", "forget", "job", "--yes", "--json").json == {"forgotten": True}
    assert run("publication", "forget", "job", "--yes").out == "it was not known\n"
