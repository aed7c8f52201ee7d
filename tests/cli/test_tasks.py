from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tests.cli.conftest import Run
from tests.node.test_cluster import wait_for
from tests.tasks.watching import shop
from tests.tasks.watching.harness import LONG_S, OwnWorker, tells

import penstock
from penstock.tasks.worker import announcing


class Scene:
    """A set of tasks in several states, and the ids of some."""

    def __init__(self, app: penstock.TaskApp) -> None:
        prices = [app.submit(shop.price, item) for item in range(3)]
        self.bill = app.submit(shop.total, prices, task_id="bill")
        self.bill.result(LONG_S)
        self.bad = app.submit(shop.refuse, 13)
        assert self.bad.exception(LONG_S) is not None
        self.unkept = app.submit(shop.refuse, 14, keep=0)
        assert self.unkept.exception(LONG_S) is not None
        self.running = app.submit(shop.wait)
        self.child = app.submit(shop.total, [self.running])
        assert shop.begun.wait(LONG_S)
        wait_for(lambda: tells(app.workers(), self.running.id))


@pytest.fixture(scope="module")
def scene(node_url: str) -> Iterator[Scene]:
    with pytest.MonkeyPatch.context() as patched, penstock.connect(node_url) as fabric:
        patched.setattr(announcing, "ANNOUNCE_S", 0.02)
        shop.reset()
        worker = OwnWorker(fabric, "shop")
        try:
            with fabric.tasks("shop") as app:
                yield Scene(app)
        finally:
            shop.go_on.set()
            worker.end()


def test_top(run: Run, scene: Scene):
    told = run("tasks", "top", "shop", "--once", "--json", "--interval", "50ms").json
    assert told["counts"] == {"ready": 0, "delayed": 0, "held": 1, "leased": 1, "dead": 2}
    assert {row["function"].rpartition(":")[2] for row in told["functions"]} >= {"price", "total"}
    (worker,) = told["workers"]
    assert (worker["running"], worker["failed"], worker["kind"]) == (1, 2, "thread")
    assert told["left_rate"] == 0
    text = run("tasks", "top", "shop", "--once", "--interval", "50ms").out
    assert text.startswith("shop: 0 ready   0 delayed   1 held   1 leased   2 dead")
    assert worker["worker"] in text
    assert "1 of 2" in text


def test_show(run: Run, scene: Scene):
    told = run("tasks", "show", "bill", "--tasks", "shop", "--json").json
    assert (told["state"], told["attempt"], told["error"]) == ("done", 1, None)
    assert [stage["name"] for stage in told["stages"]][-1] == "settled"
    assert len(told["parents"]) == 3
    text = run("tasks", "show", scene.bad.id.hex(), "-t", "shop").out
    assert "failed  tests.tasks.watching.shop:refuse" in text
    assert "attempt 1 of 1" in text
    assert "it is among the dead letters" in text
    assert "Traceback" in text
    gone = run("tasks", "show", "never heard of", "-t", "shop")
    assert (gone.code, "unknown" in gone.out) == (1, True)


def test_explain(run: Run, scene: Scene):
    told = run("tasks", "explain", scene.child.id.hex(), "-t", "shop", "--json").json
    assert told["state"] == "held"
    assert told["reasons"][0]["advice"].endswith(f"{scene.running.id.hex()} is running.")
    text = run("tasks", "explain", scene.running.id.hex(), "-t", "shop").out
    assert text.startswith("running\n- ")
    assert "has been running it for" in text
    gone = run("tasks", "explain", "never heard of", "-t", "shop")
    assert gone.out.startswith("unknown\n")
    assert gone.code == 1


def test_graph(run: Run, scene: Scene):
    text = run("tasks", "graph", "bill", "-t", "shop").out
    assert text.startswith("after\n├─ ")
    assert text.count("shop:price") == 3
    dot = run("tasks", "graph", scene.running.id.hex(), "-t", "shop", "--dot").out
    assert dot.startswith("digraph tasks {")
    assert dot.count("->") == 1
    told = run("tasks", "graph", "bill", "-t", "shop", "--limit", "2", "--json").json
    assert len(told["tasks"]) == 2
    assert told["more"]
    gone = run("tasks", "graph", "never heard of", "-t", "shop")
    assert gone.code == 1
    assert "no such task" in gone.err


def test_timeline(run: Run, scene: Scene, tmp_path: Path):
    out = tmp_path / "run.svg"
    text = run("tasks", "timeline", "shop", "--out", str(out)).out
    assert "6 tasks, 2 failed, in " in text
    assert ElementTree.parse(out).getroot().tag.endswith("svg")
    told = run("tasks", "timeline", "shop", "--json").json
    assert told["tasks"] == sum(lane["tasks"] for lane in told["lanes"]) == 6
    assert "no outcome can be read" in run("tasks", "timeline", "shop", "--last", "0s").out


def test_dead_tasks(run: Run, scene: Scene):
    told = run("tasks", "dead", "shop", "--json").json
    assert {row["id"] for row in told} == {scene.bad.id.hex(), scene.unkept.id.hex()}
    assert sorted(row["error"] for row in told) == [
        "ValueError: no price for item 13", "ValueError: no price for item 14"
    ]  # fmt: skip
    assert "ValueError" in run("tasks", "dead", "shop").out


def test_a_task_set_that_is_not_there(run: Run):
    for command in (["top", "none", "--once"], ["show", "x", "-t", "none"], ["timeline", "none"]):
        ran = run("tasks", *command)
        assert ran.code == 1
        assert "there is no task set 'none'" in ran.err
