"""MapReduce by real workers: reduces are held in the queue until their maps have ended."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
from tests.cli.conftest import invoke

from penstock.tasks.app import TaskApp
from penstock.tasks.errors import TaskFailedError
from penstock.tasks.mapreduce import Job, grep, sort, wordcount
from penstock.tasks.mapreduce.splits import lines_of

pytestmark = pytest.mark.timeout(240)

LINES = 5_000


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    chance = random.Random(4)
    words = [f"wort{number}" for number in range(3_000)]
    path = tmp_path_factory.mktemp("source") / "text"
    path.write_text("".join(" ".join(chance.choices(words, k=8)) + "\n" for _ in range(LINES)))
    return path


def written(folder: Path) -> list[bytes]:
    return lines_of(b"".join(path.read_bytes() for path in sorted(folder.glob("part-*"))))


def test_words_are_counted_by_workers(tasks: TaskApp, source: Path, tmp_path: Path) -> None:
    job = Job([str(source)], str(tmp_path / "out"), partition_bytes=50_000, reduces=3)
    done = wordcount(tasks, job)
    expected = Counter(source.read_text().split())
    assert sorted(written(tmp_path / "out")) == sorted(
        f"{word}\t{count}".encode() for word, count in expected.items()
    )
    assert done.maps > 5
    assert done.spilled_bytes > 0, "the counts of a map were too many for the table"


@pytest.mark.parametrize("memory", [256 << 20, 20_000])
def test_lines_are_sorted_by_workers(
    tasks: TaskApp, source: Path, tmp_path: Path, memory: int
) -> None:
    done = sort(tasks, Job([str(source)], str(tmp_path / "out"), 60_000, 3, memory))
    assert written(tmp_path / "out") == sorted(lines_of(source.read_bytes()))
    assert done.rows == LINES


def test_lines_are_found_by_workers(tasks: TaskApp, source: Path, tmp_path: Path) -> None:
    done = grep(tasks, Job([str(source)], str(tmp_path / "out"), 20_000), r"wort17\b")
    expected = [line for line in lines_of(source.read_bytes()) if b"wort17" in line.split()]
    assert written(tmp_path / "out") == expected
    assert done.rows == len(expected) > 0


def test_a_map_that_fails_fails_the_job(tasks: TaskApp, source: Path, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"short\n")
    with pytest.raises(TaskFailedError, match="a record has 6 bytes instead of 100"):
        sort(tasks, Job([str(tmp_path / "in")], str(tmp_path / "out")), records="tera")
    assert not (tmp_path / "out" / "_SUCCESS").exists()


def test_the_command_starts_workers_and_tells(node_url: str, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = invoke(
        "mapreduce", "sort", str(source), str(out), "--workers", "1", "--tasks", "own",
        "--partition", "100KB", "--reduces", "2", "--url", node_url, "--json",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert done.json["rows"] == LINES
    assert written(out) == sorted(lines_of(source.read_bytes()))
    again = invoke("mapreduce", "sort", str(source), str(out), "--url", node_url)
    assert (again.code, "is there already" in again.err) == (1, True)
    alone = invoke("mapreduce", "grep", "x", str(source), "--url", node_url)
    assert "folder for the results" in alone.err
