"""A real node for all tests of a file, and commands that run against it in this process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner

from penstock.cli.app import app

STOP_SECONDS = 30


class Ran(NamedTuple):
    """What a command said."""

    code: int
    out: str
    err: str
    raw: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


Run = Callable[..., Ran]


def invoke(*arguments: str, input: bytes | None = None) -> Ran:
    result = CliRunner().invoke(app, list(arguments), input=input, prog_name="penstock")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Ran(result.exit_code, result.stdout, result.stderr, result.stdout_bytes)


@contextmanager
def serving(data: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """`penstock serve` in a process of its own, on a free port, and its start line."""
    command = [sys.executable, "-m", "penstock.cli.app", "serve", "--json"]
    process = subprocess.Popen(
        [*command, "--data", str(data), "--listen", "127.0.0.1:0", *options],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ),
    )  # fmt: skip
    with process:
        try:
            assert process.stdout is not None
            yield process, json.loads(process.stdout.readline())
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(STOP_SECONDS)


@pytest.fixture(scope="module")
def node_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("node") / "data") as (_, start):
        yield start["url"]


@pytest.fixture
def run(node_url: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command against the node, as a user does who has set PENSTOCK_URL."""
    monkeypatch.setenv("PENSTOCK_URL", node_url)
    return invoke
