from __future__ import annotations

from tests.cli.conftest import Run

import penstock


def test_what_a_held_message_waits_for(run: Run, node_url: str):
    with penstock.connect(node_url) as fabric:
        queue, table = fabric.queue("steps"), fabric.table("results")
        queue.hold(b"v", id="bake", after=[(table, "dough"), (table, b"\xff")])
    told = run("queue", "held", "steps", "bake", "--json").json
    assert told == {
        "held": True,
        "waits_for": 2,
        "edges": [{"table": "results", "key": "dough"}, {"table": "results", "key_base64": "/w=="}],
    }
    assert "dough" in run("queue", "held", "steps", "bake").out
    run("queue", "push", "steps", "w", "--id", "plain", "--hold")
    assert run("queue", "held", "steps", "plain").out == "plain is held until it is released\n"
    assert run("queue", "release", "steps", "bake").code == 0
    assert run("queue", "held", "steps", "bake", "--json").json == {"held": False}
