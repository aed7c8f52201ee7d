"""A node, workers of gangs, and one who submits them; started once for all tests of a file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.node.conftest import NodeProcess
from tests.tasks.gangs.crew import Caller, Crew


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    process = NodeProcess(tmp_path_factory.mktemp("node") / "data")
    process.start()
    yield process
    process.end()


@pytest.fixture(scope="module")
def crew(node: NodeProcess, caller: Caller) -> Iterator[Crew]:
    """After the caller, who has made the streams as tests want them."""
    made = Crew(node.url)
    yield made
    made.end()


@pytest.fixture(scope="module")
def caller(node: NodeProcess) -> Iterator[Caller]:
    with node.connect() as fabric:
        yield Caller(fabric)
