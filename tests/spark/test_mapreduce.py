"""MapReduce by workers gives what the programs of Spark give, over the same files."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.tasks import mapreduce
from penstock.tasks.app import TaskApp
from penstock.tasks.mapreduce.splits import lines_of
from penstock.tasks.provision import Terms
from penstock.tasks.provision.local import LocalProcesses

pytest.importorskip("pyspark")

from penstock.spark import apps

pytestmark = pytest.mark.timeout(300)  # Spark compiles much when it first runs something

LETTERS = "abcxyzABC123_ .,;-\t\r'äöüßéÉ½Ⅷ中文αβγ€\u0301\u200b😀"


@pytest.fixture(scope="module")
def tasks(url: str, fabric: penstock.Fabric) -> Iterator[TaskApp]:
    arguments = ["penstock.tasks.mapreduce", "--tasks", "compared", "--url", url]
    workers = LocalProcesses([*arguments, "--concurrency", "1"], Terms())
    try:
        workers.start(stays=True)
        with fabric.tasks("compared") as app:
            yield app
    finally:
        workers.close()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files with text of many scripts, empty lines, and bytes that are no text."""
    folder = tmp_path_factory.mktemp("compared")
    chance = random.Random(11)
    for number in range(2):
        lines = ["".join(chance.choices(LETTERS, k=chance.randrange(40))) for _ in range(3000)]
        data = "\n".join(lines).encode().replace("😀".encode(), b"\xff\xf0\x9f")
        (folder / f"text-{number}").write_bytes(data)
    return folder


def job(source: Path, tmp_path: Path) -> mapreduce.Job:
    return mapreduce.Job([str(source)], str(tmp_path / "ours"), 50_000, reduces=3)


def written(folder: Path) -> list[bytes]:
    return lines_of(b"".join(path.read_bytes() for path in sorted(folder.glob("part-*"))))


@pytest.mark.parametrize("ignore_case", [False, True])
def test_words(tasks: TaskApp, spark: Any, source: Path, tmp_path: Path, ignore_case) -> None:
    mapreduce.wordcount(tasks, job(source, tmp_path), ignore_case=ignore_case)
    counted = apps.wordcount(apps.read_lines(spark, [str(source)]), ignore_case=ignore_case)
    apps.write_rows(counted, str(tmp_path / "theirs"))
    assert sorted(written(tmp_path / "ours")) == sorted(written(tmp_path / "theirs"))


def test_sorted_lines(tasks: TaskApp, spark: Any, source: Path, tmp_path: Path) -> None:
    mapreduce.sort(tasks, job(source, tmp_path))
    ordered = apps.sort(apps.read_lines(spark, [str(source)]), partitions=3)
    apps.write_rows(ordered, str(tmp_path / "theirs"))
    assert written(tmp_path / "ours") == written(tmp_path / "theirs")


def test_records_of_the_sort_benchmark(tasks: TaskApp, spark: Any, tmp_path: Path) -> None:
    source = tmp_path / "records"
    apps.write_rows(apps.make_records(spark, 5000, seed=3), str(source))
    mapreduce.sort(tasks, job(source, tmp_path), records="tera")
    lines = apps.read_lines(spark, [str(source)])
    apps.write_rows(apps.sort(lines, records="tera", partitions=3), str(tmp_path / "theirs"))
    assert written(tmp_path / "ours") == written(tmp_path / "theirs")


@pytest.mark.parametrize(
    ("pattern", "terms"),
    [
        ("a[^9]*z", {}),  # no `.` and no `$`: to Java, a carriage return ends a line there
        ("abc", {"ignore_case": True}),
        ("xyz", {"fixed": True}),
        ("É", {"fixed": True, "ignore_case": True}),
        ("[0-9]{2}", {"invert": True}),
        ("^[ab]", {}),
    ],
)
def test_found_lines(
    tasks: TaskApp, spark: Any, source: Path, tmp_path: Path, pattern: str, terms: dict[str, Any]
) -> None:
    done = mapreduce.grep(tasks, job(source, tmp_path), pattern, **terms)
    found = apps.grep(apps.read_lines(spark, [str(source)]), pattern, **terms).select("value")
    apps.write_rows(found, str(tmp_path / "theirs"))
    assert sorted(written(tmp_path / "ours")) == sorted(written(tmp_path / "theirs"))
    assert done.rows > 0
