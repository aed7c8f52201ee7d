"""A worker on a cluster of three: outcomes are committed in the shards of the tasks, also when the
owner of some of them dies."""

from __future__ import annotations

import pytest
from tests.node.test_cluster import Nodes, wait_for
from tests.node.test_cluster import nodes as nodes
from tests.tasks.worker.harness import Caller, WorkerProcess
from tests.tasks.worker.test_kills import check

import penstock
from penstock.tasks.watching.shells import TaskWatcher


def check_watching(fabric: penstock.Fabric, done: list[bytes]) -> None:
    """What is spread over all nodes is seen as one."""
    with TaskWatcher(fabric) as watcher:
        assert {watcher.status(task).state for task in done[:3]} == {"done"}
        assert watcher.status(b"x" * 16).state == "unknown"
        assert watcher.timeline().tasks >= len(done)
        (report,) = wait_for(watcher.workers)
        assert report.concurrency == 2


@pytest.mark.timeout(400)
def test_tasks_outlive_a_node(nodes: Nodes):
    nodes.start(1, 2, 3)
    wait_for(lambda: nodes.whole(1, 2, 3), 60)
    urls = ",".join(nodes.processes[number].listen for number in (1, 2))
    url = f"penstock://{urls}"
    worker = WorkerProcess(url, "--concurrency", "2", "--lease", "5s")
    try:
        with penstock.connect(url, timeout=60) as fabric:
            caller = Caller(fabric)
            kept = [caller.submit("double", n, keep_ms=3_600_000) for n in range(20)]
            many = caller.submit_all("double", [(n,) for n in range(500)])
            naps = caller.submit_all("nap", [(0.02,)] * 100)
            caller.collect(kept)
            check_watching(fabric, kept)
            nodes.processes[3].end()
            caller.collect([*kept, *many, *naps], 180)
            check(caller, [*kept, *many, *naps])
            assert all(caller.results.get(task) is not None for task in kept)
    finally:
        worker.end()
