"""A worker inside the program that submits."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.tasks import functions
from tests.tasks.gangs import functions as gang_functions

import penstock
from penstock import aio
from penstock.errors import InvalidError, PenstockError, UnavailableError
from penstock.tasks.app import TaskApp
from penstock.tasks.blobs.blob import MAX_TABLE_BYTES
from penstock.tasks.declare import Registry
from penstock.tasks.worker import loading
from penstock.tasks.worker.settings import Kind

WAIT_S = 30.0
SCRIPT = '''
import sys, penstock

print("loaded as", __name__, file=sys.stderr)

@penstock.task
def double(number: int) -> int:
    return 2 * number

if __name__ == "__main__":
    with penstock.open(sys.argv[1]) as fabric, fabric.tasks() as app:
        with app.worker(concurrency=1, kind=sys.argv[2]):
            print(app.submit(double, 21).result(30))
'''
TYPED = """
import sys, penstock
from dataclasses import dataclass
from penstock.errors import InvalidError

@dataclass
class Point:
    x: int

@penstock.task
def double(point):
    return Point(2 * point.x)

with penstock.open(sys.argv[1]) as fabric, fabric.tasks() as app:
    for refused in (lambda: app.submit(double, Point(1)), lambda: app.worker()):
        try:
            refused()
        except InvalidError as error:
            print(error)
    with app.worker(concurrency=1, kind=sys.argv[2]):
        print(app.submit(double, Point(21)).result(30))
        @penstock.task
        def late():
            return "typed later"
        print(app.submit(late).result(30))
    try:
        app.submit(double, Point(1))
    except InvalidError:
        print("nobody is left")
"""
UNGUARDED = """
import penstock

@penstock.task
def nothing() -> None:
    pass

with penstock.open({folder!r}) as fabric, fabric.tasks() as app:
    app.post(nothing)
"""


@pytest.fixture
def app(tmp_path: Path) -> Iterator[TaskApp]:
    with penstock.open(str(tmp_path / "data")) as fabric, fabric.tasks() as app:
        yield app


@pytest.mark.parametrize("kind", ["process", "thread", "async"])
def test_a_script_is_client_node_and_worker(kind: str, tmp_path: Path):
    script = tmp_path / "doubling.py"
    script.write_text(SCRIPT, encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, script, tmp_path / "data", kind],
        capture_output=True, text=True, timeout=60, check=True, cwd=tmp_path,
    )  # fmt: skip
    assert ran.stdout == "42\n"
    loaded = ["__main__", "doubling"] if kind == "process" else ["__main__"]
    assert ran.stderr.splitlines() == [f"loaded as {name}" for name in loaded]


@pytest.mark.parametrize("kind", ["process", "thread"])
def test_a_script_that_is_not_guarded_is_told_and_starts_no_others(kind: str, tmp_path: Path):
    script = tmp_path / "unguarded.py"
    script.write_text(SCRIPT.replace('__name__ == "__main__"', "True"), encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, script, tmp_path / "data", kind],
        capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path,
    )  # fmt: skip
    if kind == "thread":  # nothing has to be loaded
        assert (ran.returncode, ran.stdout) == (0, "42\n")
        return
    assert ran.returncode == 1
    assert ran.stderr.count("loaded as") == 2
    assert "uses tasks while it is loaded" in ran.stderr
    assert '`if __name__ == "__main__":`' in ran.stderr


def test_gangs_have_places(app: TaskApp):
    with app.worker(gang_functions.__name__, concurrency=1, kind="thread", gangs=2):
        seats = app.gang(gang_functions.share, size=2).result(WAIT_S)
    assert [seat[:3] for seat in seats] == [[0, 2, True], [1, 2, False]]


@pytest.mark.parametrize("kind", ["process", "thread"])
def test_it_has_the_directory_of_its_app(kind: Kind, tmp_path: Path):
    shared, size = tmp_path / "shared", MAX_TABLE_BYTES + 1
    shared.mkdir()
    with (
        penstock.open(str(tmp_path / "data")) as fabric,
        fabric.tasks(directory=shared) as app,
        app.worker(functions.__name__, concurrency=1, kind=kind),
    ):
        (args, _) = app.submit(functions.echo, bytes(size)).result(WAIT_S)
        assert len(args[0]) == size
        assert list(shared.iterdir())


def test_a_program_may_have_several_workers(app: TaskApp):
    settings: dict[str, Any] = {"concurrency": 1, "kind": "thread", "gangs": 1}
    with (
        app.worker(gang_functions.__name__, **settings),
        app.worker(gang_functions.__name__, **settings),
    ):
        seats = app.gang(gang_functions.share, size=2).result(WAIT_S)
    assert [seat[:2] for seat in seats] == [[0, 2], [1, 2]]


def test_what_is_not_begun_goes_back(app: TaskApp):
    with app.worker(functions.__name__, concurrency=1, kind="thread"):
        assert app.submit(functions.square, 2).result(WAIT_S) == 4
    waiting = app.submit(functions.square, 3)
    app.flush()
    with app.worker(functions.__name__, concurrency=1, kind="thread"):
        assert waiting.result(WAIT_S) == 9


def test_modules_that_cannot_be_loaded_are_told(app: TaskApp):
    with pytest.raises(PenstockError, match="no_such_module") as raised:
        app.worker("no_such_module", concurrency=1)
    assert isinstance(raised.value, UnavailableError | InvalidError)


def test_a_program_without_tasks_is_told(app: TaskApp, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("penstock.tasks.here.registry", Registry())
    with pytest.raises(InvalidError, match="declared no tasks"):
        app.worker()


def test_the_same_for_event_loops(tmp_path: Path):
    async def submit() -> int:
        async with (
            aio.open(str(tmp_path / "data")) as fabric,
            await fabric.tasks() as app,
            await app.worker(functions.__name__, concurrency=1, kind="async"),
        ):
            return int(await (await app.submit(functions.later, 1)))

    assert asyncio.run(submit()) == 2


def test_what_is_loaded_is_not_loaded_again():
    assert loading.is_loaded(functions.__name__)
    assert not loading.is_loaded("tests.tasks.no_such_module")
    assert not loading.is_loaded(functions.__file__)


def test_a_script_without_a_guard_is_told_when_a_worker_imports_it(tmp_path: Path):
    script = tmp_path / "unguarded.py"
    script.write_text(UNGUARDED.format(folder=str(tmp_path / "data")), encoding="utf-8")
    with pytest.raises(InvalidError, match=r"while it is loaded .*__main__"):
        loading.load(str(script))
    loading.refuse_while_loading()  # nothing is loaded any more


def test_a_module_may_open_its_app_while_a_worker_loads_it(tmp_path: Path):
    script = tmp_path / "with_an_app.py"
    text = f"import penstock\nfabric = penstock.open({str(tmp_path)!r})\napp = fabric.tasks()\n"
    script.write_text(text, encoding="utf-8")
    loading.load(str(script))
    sys.modules.pop("with_an_app").fabric.close()


@pytest.mark.parametrize("kind", ["thread", "async"])
def test_what_is_typed_at_a_prompt_runs_in_threads_of_its_process(
    tmp_path: Path, kind: str
) -> None:
    ran = subprocess.run(
        [sys.executable, "-", str(tmp_path / "data"), kind],
        input=TYPED, capture_output=True, text=True, check=False, timeout=WAIT_S * 3,
    )  # fmt: skip
    lines = ran.stdout.splitlines()
    assert len(lines) == 5, ran.stderr
    for line in lines[:2]:
        assert 'into a notebook, where other' in line
        assert 'app.worker(kind="thread")' in line
    assert lines[0].startswith("double is typed")
    assert lines[2:] == ["Point(x=42)", "typed later", "nobody is left"]
