"""One Spark session and one node for all tests of this folder."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Run, invoke

import penstock
from penstock.errors import NotFoundError

_numbers = count(1)


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    pytest.importorskip("pyspark")
    from penstock.spark import session

    try:
        started = session(memory="700m", spark_sql_shuffle_partitions="2")
    except NotFoundError as error:
        pytest.skip(str(error))
    yield started
    started.stop()


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    data = tmp_path_factory.mktemp("spark") / "node"
    command = [sys.executable, "-m", "penstock.node", "--data", str(data),
               "--listen", "127.0.0.1:0"]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.terminate()


@pytest.fixture(scope="session")
def fabric(url: str) -> Iterator[penstock.Fabric]:
    with penstock.connect(url) as connected:
        yield connected


@pytest.fixture
def topic(fabric: penstock.Fabric) -> penstock.Topic:
    """A new topic of two partitions."""
    return fabric.topic(f"topic-{next(_numbers)}", partitions=2)


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    return str(tmp_path / "checkpoint")


@pytest.fixture
def command(spark: Any, url: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command in the session of the tests, against the node of the tests."""
    from penstock.cli.spark_command import Sparks

    monkeypatch.setattr("penstock.spark.session", lambda *_, **__: spark, raising=False)
    monkeypatch.setattr(Sparks, "stop", lambda _: None)
    monkeypatch.setenv("PENSTOCK_URL", url)
    return invoke
