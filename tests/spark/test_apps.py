"""Counting words, searching and sorting, against the same done in plain Python."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Run

import penstock
from penstock.errors import ExistsError, InvalidError, NotFoundError

pytest.importorskip("pyspark")

from penstock.spark import apps
from penstock.spark.apps.sorting import KEY_BYTES, RECORD_BYTES

pytestmark = pytest.mark.timeout(300)  # Spark compiles much when it first runs something

LINES = [
    "the quick brown fox", "jumps over the lazy dog", "", "The end; the-end", "süß, süß 7 7", "fox"
]  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with two files, one of them in a folder of its own."""
    inside = tmp_path / "in"
    (inside / "deeper").mkdir(parents=True)
    (inside / "a.txt").write_text("\n".join(LINES[:3]) + "\n")
    (inside / "deeper" / "b.txt").write_text("\n".join(LINES[3:]))
    return inside


def written(folder: Path) -> bytes:
    """The files of a result, one after the other."""
    return b"".join(each.read_bytes() for each in sorted(folder.glob("part-*")))


def test_words_of_files_are_counted(command: Run, folder, tmp_path) -> None:
    counts = Counter("".join(c if c.isalnum() else " " for c in " ".join(LINES)).split())
    shown = command("spark", "wordcount", str(folder), "--json", "-n", "100").json
    assert {row["word"]: row["count"] for row in shown["rows"]} == counts
    assert [row["count"] for row in shown["rows"]] == sorted(counts.values(), reverse=True)
    done = command("spark", "wordcount", str(folder), "--to", str(tmp_path / "out"), "-i").out
    assert done.startswith(f"{len(counts) - 1} rows written")
    assert b"the\t4\n" in written(tmp_path / "out")
    again = command("spark", "wordcount", str(folder), "--to", str(tmp_path / "out"))
    assert again.code == 1
    assert "is there already" in again.err


def test_words_of_topics_and_files_are_counted_together(command: Run, topic, folder) -> None:
    topic.publish_many([b"the end", b"of \xff bytes"])
    shown = command("spark", "wordcount", str(folder), f"topic:{topic.name}", "-n", "3").out
    assert shown.splitlines()[1].split() == ["the", "4"]


def test_lines_are_found(command: Run, folder, topic) -> None:
    found = command("spark", "grep", "^(the|fox)", str(folder), "--json").json["rows"]
    assert sorted(row["value"] for row in found) == ["fox", "the quick brown fox"]
    assert {Path(row["place"]).name for row in found} == {"a.txt", "b.txt"}
    assert command("spark", "grep", "SÜSS", str(folder)).code == 1
    assert command("spark", "grep", "SÜß", "-i", str(folder), "--json").json["total"] == 1
    assert command("spark", "grep", "d;", "-F", str(folder), "--json").json["total"] == 1
    assert command("spark", "grep", "o", "-v", str(folder), "--json").json["total"] == 3
    topic.publish_many([b"a fox", b"an ox"], partition=1)
    counted = command("spark", "grep", "ox$", "-c", str(folder), f"topic:{topic.name}", "--json")
    assert {Path(row["place"]).name: row["count"] for row in counted.json["rows"]} == {
        "a.txt": 1, "b.txt": 1, "1": 2,
    }  # fmt: skip
    wrong = command("spark", "grep", "(", str(folder))
    assert wrong.code == 1
    assert "is no regular expression: Unclosed group" in wrong.err


def test_lines_are_sorted_by_their_bytes(command: Run, tmp_path) -> None:
    chance = random.Random(3)
    lines = ["".join(chance.choices("abcdé \rZ", k=chance.randrange(6))) for _ in range(5000)]
    (tmp_path / "in.txt").write_text("\n".join(lines), newline="")
    to = tmp_path / "out"
    told = command("spark", "sort", str(tmp_path / "in.txt"), "--to", str(to), "--partitions", "3",
                   "--verify", "--json").lines  # fmt: skip
    assert told[1] == {"verified": True, "rows": 5000, "misplaced": 0, "same_rows": True}
    assert len(list(to.glob("part-*"))) == 3
    ordered = sorted(line.encode() for line in lines)
    assert written(to) == b"".join(line + b"\n" for line in ordered)
    shown = command("spark", "sort", str(tmp_path / "in.txt"), "-n", "2", "--json").json
    assert [row["value"].encode() for row in shown["rows"]] == ordered[:2]


def test_records_are_made_and_sorted(command: Run, tmp_path) -> None:
    source, to = tmp_path / "in", tmp_path / "out"
    command("spark", "records", "3000", "--to", str(source), "--seed", "5")
    made = written(source)
    assert len(made) == 3000 * 100
    records = [made[at : at + 100] for at in range(0, len(made), 100)]
    assert {each[-1:] for each in records} == {b"\n"}
    assert len({each[:KEY_BYTES] for each in records}) == 3000
    assert sorted(int(each[12:44], 16) for each in records) == list(range(3000))
    done = command("spark", "sort", str(source), "--records", "tera", "--to", str(to),
                   "--partitions", "4", "--verify")  # fmt: skip
    assert "in order, and all 3,000 rows" in done.out
    assert written(to) == b"".join(sorted(records))
    command("spark", "records", "10", "--to", str(source), "--seed", "6", "--overwrite")
    assert written(source)[:10] != made[:10]


def test_results_go_to_topics_and_queues(
    command: Run, folder, fabric: penstock.Fabric, topic
) -> None:
    done = command("spark", "wordcount", str(folder), "--to", f"topic:{topic.name}")
    assert done.code == 0, done.err
    found = {
        (key, value)
        for partition in range(2)
        for batch in topic.read(partition)
        for key, value in zip(batch.keys, batch.values, strict=True)
    }
    assert (b"fox", b'{"word":"fox","count":2}') in found
    jobs = fabric.queue("found-lines")
    command("spark", "grep", "fox", str(folder), "--to", "queue:found-lines")
    assert sorted(message.value for message in jobs.consume(idle_timeout=1.0)) == [
        b"fox", b"the quick brown fox",
    ]  # fmt: skip


def test_a_topic_is_sorted_into_another(command: Run, fabric: penstock.Fabric, topic) -> None:
    chance = random.Random(9)
    values = [b"%d" % chance.randrange(10**6) for _ in range(5000)]
    topic.publish_many(values)
    ordered = fabric.topic(f"{topic.name}-sorted", partitions=1)
    arguments = ["spark", "sort", f"topic:{topic.name}", "--to", f"topic:{ordered.name}",
                 "--partitions", "3", "--verify", "--json"]  # fmt: skip
    for _ in range(2):  # what was there before does not matter
        assert command(*arguments).lines[1]["verified"]
    found = [value for batch in ordered.read(0) for value in batch.values]
    assert found == sorted(values) * 2
    assert "several partitions" in command(*arguments[:4], f"topic:{topic.name}", "--verify").err


def test_what_is_no_record_ends_the_sort(command: Run, tmp_path) -> None:
    (tmp_path / "in").write_text("x" * RECORD_BYTES + "\nshort\n")
    done = command("spark", "sort", str(tmp_path / "in"), "--records", "tera")
    assert done.code == 1
    assert "a record has 6 bytes instead of 100" in done.err


def test_what_is_out_of_order_is_found(spark: Any, tmp_path) -> None:
    from pyspark.sql import functions as call

    (tmp_path / "a").write_text("1\n3\n2\n")
    (tmp_path / "b").write_text("2\n4\n")
    rows = spark.read.text(str(tmp_path))
    parts = [call.col("_metadata.file_name")]
    found = apps.is_sorted(rows, parts, call.monotonically_increasing_id())
    assert found.misplaced == 2
    assert found.same_rows(apps.survey(rows))
    others = rows.where("value != '1'").union(rows.where("value = '4'"))
    assert not found.same_rows(apps.survey(others))


def test_places_that_are_wrong_are_told(spark: Any, tmp_path) -> None:
    with pytest.raises(NotFoundError, match="no file or folder"):
        apps.read_lines(spark, [str(tmp_path / "none")])
    with pytest.raises(InvalidError, match="not said where"):
        apps.read_lines(spark, ["topic:t"])
    with pytest.raises(InvalidError, match="nothing to read"):
        apps.read_lines(spark, [])
    with pytest.raises(InvalidError, match="read as a batch"):
        apps.read_lines(spark, ["queue:q"], apps.Fabric("penstock://127.0.0.1:1"))
    rows = apps.make_records(spark, 2)
    with pytest.raises(ExistsError):
        apps.write_rows(rows, str(tmp_path))
    with pytest.raises(InvalidError, match="use 1 or more"):
        apps.sort(rows, partitions=0)


@pytest.mark.parametrize("form", ["json", "csv", "parquet"])
def test_files_have_the_form_that_was_asked_for(spark: Any, folder, tmp_path, form) -> None:
    counted = apps.wordcount(apps.read_lines(spark, [str(folder)]))
    apps.write_rows(counted, str(tmp_path / "out"), form=form)
    found = spark.read.format(form).load(str(tmp_path / "out")).collect()
    assert len(found) == counted.count()
    if form == "json":
        first = json.loads(written(tmp_path / "out").splitlines()[0])
        assert set(first) == {"word", "count"}
