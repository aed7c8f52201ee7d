"""What may be a task, under which name, and what the decorator keeps of the function."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.tasks import functions

from penstock.errors import InvalidError
from penstock.tasks.declare import Task, name_of, registry, task
from penstock.tasks.importing import loaded, package_of, path_of
from penstock.tasks.options import Rate, TaskOptions

HERE = "tests.tasks.functions"


def test_a_task_is_still_the_plain_function() -> None:
    assert functions.square(7) == 49
    assert functions.square.__name__ == "square"
    assert list(inspect.signature(functions.square).parameters) == ["x"]
    assert repr(functions.square) == f"<task {HERE}:square>"


def test_tasks_are_found_by_their_names() -> None:
    assert registry.find(f"{HERE}:square") is functions.square
    assert registry.find("stable") is functions.renamed
    assert registry.find(f"{HERE}:undeclared") is None
    assert {f"{HERE}:square", "stable"} <= set(registry.names())
    assert registry.has_package("tests")
    assert not registry.has_package("os")


def test_options_are_kept_as_they_travel() -> None:
    assert functions.square.options == TaskOptions()
    assert functions.careful.options == TaskOptions(
        retries=3, backoff_ms=500, timeout_ms=30_000, keep_ms=60_000, rate=Rate(100, 1)
    )


def test_async_functions_are_known_as_such() -> None:
    assert functions.later.is_async
    assert not functions.square.is_async


def test_functions_have_names_whether_declared_or_not() -> None:
    assert name_of(functions.square) == f"{HERE}:square"
    assert name_of(functions.undeclared) == f"{HERE}:undeclared"
    assert name_of(functions.renamed) == "stable"
    assert name_of(functions.Holder.static) == f"{HERE}:Holder.static"
    assert name_of(functions.Holder.of_class) == f"{HERE}:Holder.of_class"
    assert name_of(len) == "builtins:len"


def test_methods_of_instances_are_refused() -> None:
    with pytest.raises(InvalidError, match="its object would have to be sent"):
        name_of(functions.Holder().method)
    with pytest.raises(InvalidError, match="staticmethod"):
        name_of(functions.Holder.method)


def generator():
    yield 1


async def async_generator():
    yield 1


@pytest.mark.parametrize("function", [generator, async_generator])
def test_generators_are_refused(function) -> None:
    with pytest.raises(InvalidError, match="one result"):
        task(function)


def test_what_a_worker_cannot_import_is_refused() -> None:
    def local() -> None: ...

    with pytest.raises(InvalidError, match="inside a function"):
        task(local)
    with pytest.raises(InvalidError, match="lambda"):
        name_of(lambda: None)
    with pytest.raises(InvalidError, match="only functions"):
        name_of(7)  # type: ignore[arg-type]


def test_a_name_belongs_to_one_function() -> None:
    with pytest.raises(InvalidError, match="both declared as 'stable'"):
        task(name="stable")(functions.undeclared)
    again = task(name="stable")(functions.renamed.function)  # as when a module is loaded again
    assert isinstance(again, Task)
    with pytest.raises(InvalidError, match="without a colon"):
        task(name="a:b")(functions.undeclared)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"retries": -1}, "retries"),
        ({"retries": True}, "retries"),
        ({"retries": 1_000_000}, "limit"),
        ({"timeout": 0}, "over before it starts"),
        ({"timeout": -1}, "timeout"),
        ({"backoff": 1e9}, "backoff"),
        ({"keep": "long"}, "keep"),
        ({"rate": "fast"}, "rate"),
        ({"rate": "0/s"}, "rate"),
        ({"rate": "1/0s"}, "rate"),
    ],
)
def test_wrong_options_are_told_at_once(options, problem: str) -> None:
    with pytest.raises(InvalidError, match=problem):
        task(**options)


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("100/s", (100, 1)),
        ("0.5/s", (0.5, 1)),
        ("1/5s", (1, 5)),
        ("9/m", (9, 60)),
        ("1/d", (1, 86400)),
    ],
)
def test_rates(text: str, rate: tuple[float, float]) -> None:
    assert Rate.parse(text) == rate


def test_paths_lead_back_to_what_is_loaded_and_import_nothing() -> None:
    assert loaded(path_of(functions.undeclared)) is functions.undeclared
    assert loaded(f"{HERE}:Holder.no_such") is None
    assert loaded(f"{HERE}:square.function") is None, "only classes and modules are looked into"
    assert package_of("a.b.c:d.e") == "a"
    assert loaded("this.module:is") is None
    assert "this" not in sys.modules


SCRIPT = """
import dataclasses
import penstock.tasks.importing as importing
from penstock.tasks.declare import task

@task
def job(): ...

class Thing: ...

print(job.name, importing.path_of(Thing), importing.loaded(importing.path_of(Thing)) is Thing)
"""


@pytest.mark.parametrize("how", ["file", "module"])
def test_a_script_goes_by_the_stem_of_its_file(tmp_path: Path, how: str) -> None:
    (tmp_path / "nightly.py").write_text(SCRIPT)
    called = ["nightly.py"] if how == "file" else ["-m", "nightly"]
    ran = subprocess.run(
        [sys.executable, *called], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert ran.stdout.split() == ["nightly:job", "nightly:Thing", "True"]


@pytest.mark.parametrize(("called", "typed"), [(["-c", SCRIPT], ""), (["-"], SCRIPT)])
def test_what_is_typed_at_a_prompt_goes_by_a_name_of_its_process(
    called: list[str], typed: str
) -> None:
    told = set()
    for _ in range(2):
        ran = subprocess.run(
            [sys.executable, *called], input=typed, capture_output=True, text=True, check=True
        )
        found = re.fullmatch(r"(<prompt \w+>):job \1:Thing True\n", ran.stdout)
        assert found, ran.stdout
        told.add(found[1])
    assert len(told) == 2, "nobody else takes something else for it"
