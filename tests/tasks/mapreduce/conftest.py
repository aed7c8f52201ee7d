"""A node and two workers for all tests of a file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.cli.conftest import serving

import penstock
from penstock.tasks.app import TaskApp
from penstock.tasks.provision import Terms
from penstock.tasks.provision.local import LocalProcesses

TIMEOUT_S = 30.0


@pytest.fixture(scope="module")
def node_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("node") / "data") as (_, start):
        yield start["url"]


@pytest.fixture(scope="module")
def tasks(node_url: str) -> Iterator[TaskApp]:
    """Tasks that two worker processes run."""
    workers = LocalProcesses(
        ["penstock.tasks.mapreduce", "--concurrency", "1", "--url", node_url], Terms()
    )
    try:
        for _ in range(2):
            workers.start(stays=True)
        with penstock.connect(node_url, timeout=TIMEOUT_S) as fabric, fabric.tasks() as app:
            yield app
    finally:
        workers.close()
