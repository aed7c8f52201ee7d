"""Counting, searching and sorting by tasks, against the same done in plain Python."""

from __future__ import annotations

import re
import string
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tasks.mapreduce.in_process import InProcess

from penstock.errors import ExistsError, InvalidError, NotFoundError
from penstock.tasks.mapreduce import Job, grep, sort, wordcount
from penstock.tasks.mapreduce.shuffle import INLINE_BYTES, Spill, keep
from penstock.tasks.mapreduce.splits import Split, files_in, lines_of, splits_of
from penstock.tasks.mapreduce.words import count_words

TEXT = (
    "the quick brown fox\njumps over\n\nthe lazy dog\r\nfüchse, Füchse: naïve_1 ½ Ⅷ\nfox"
).encode()


def written(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.glob("part-*")))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    (folder / "deeper").mkdir(parents=True)
    (folder / "a.txt").write_bytes(TEXT)
    (folder / "deeper" / "b.txt").write_bytes(b"fox\n\xff\xfe fox\n")
    (folder / "_SUCCESS").touch()
    (folder / "empty").touch()
    return folder


def job(source: Path, tmp_path: Path, **terms) -> Job:
    return Job([str(source)], str(tmp_path / "out"), **{"partition_bytes": 8, **terms})


def all_lines(source: Path) -> list[bytes]:
    return [line for path in files_in([str(source)]) for line in lines_of(path.read_bytes())]


@settings(deadline=None)  # files are written
@given(data=st.binary(max_size=60).map(lambda b: b.replace(b"x", b"\n")), size=st.integers(1, 20))
def test_every_line_is_in_one_split(tmp_path_factory, data: bytes, size: int) -> None:
    path = tmp_path_factory.mktemp("split") / "file"
    path.write_bytes(data)
    splits = splits_of([str(path)], size)
    assert b"".join(split.read() for split in splits) == data
    assert [line for split in splits for line in lines_of(split.read())] == lines_of(data)


def test_words_are_counted(source: Path, tmp_path: Path) -> None:
    done = wordcount(InProcess(), job(source, tmp_path, reduces=3))
    found = dict(line.split("\t") for line in written(tmp_path / "out").decode().splitlines())
    assert found == {
        "the": "2", "quick": "1", "brown": "1", "fox": "4", "jumps": "1", "over": "1", "lazy": "1",
        "dog": "1", "füchse": "1", "Füchse": "1", "naïve_1": "1", "½": "1", "Ⅷ": "1",
    }  # fmt: skip
    assert (done.rows, done.reduces, done.spilled_bytes) == (13, 3, 0)
    assert (tmp_path / "out" / "_SUCCESS").exists()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_words_of_any_case(source: Path, tmp_path: Path) -> None:
    wordcount(InProcess(), job(source, tmp_path), ignore_case=True)
    assert "füchse\t2\n".encode() in written(tmp_path / "out")


@given(st.text(alphabet=string.printable + "äß_½²Ⅷ中\u0300\u200d€"))
def test_words_are_runs_of_letters_digits_and_underscores(text: str) -> None:
    expected = Counter(re.findall(r"\w+", text))
    assert count_words(text.encode(), False) == expected


def test_much_between_maps_and_reduces_goes_through_files(tmp_path: Path) -> None:
    words = [f"word{number}" for number in range(20_000)]
    (tmp_path / "in").write_text("\n".join(words * 2))
    terms = {"partition_bytes": 200_000, "reduces": 4}
    done = wordcount(InProcess(), job(tmp_path / "in", tmp_path, **terms))
    lines = written(tmp_path / "out").decode().splitlines()
    assert sorted(lines) == sorted(f"{word}\t2" for word in words)
    assert done.spilled_bytes > INLINE_BYTES


@pytest.mark.parametrize(
    ("pattern", "terms"),
    [
        ("fox", {}),
        ("fox", {"fixed": True}),
        ("F.CHSE", {"ignore_case": True}),
        ("fox", {"invert": True}),
        (".", {"fixed": True}),
        ("^$", {}),
        ("nowhere", {}),
        ("o.*o", {"invert": True, "ignore_case": True}),
        ("FOX", {"fixed": True, "ignore_case": True}),
    ],
)
def test_lines_are_found(source: Path, tmp_path: Path, pattern: str, terms: dict) -> None:
    done = grep(InProcess(), job(source, tmp_path), pattern, **terms)
    sought = re.compile(
        re.escape(pattern) if terms.get("fixed") else pattern,
        re.IGNORECASE if terms.get("ignore_case") else 0,
    )
    expected = [
        line
        for line in all_lines(source)
        if (sought.search(line.decode(errors="replace")) is None) is terms.get("invert", False)
    ]
    assert lines_of(written(tmp_path / "out")) == expected
    assert done.rows == len(expected)


@pytest.mark.parametrize("reduces", [1, 2, 5])
@pytest.mark.parametrize("memory", [1 << 20, 64])
def test_lines_are_sorted(source: Path, tmp_path: Path, reduces: int, memory: int) -> None:
    terms = {"reduces": reduces, "memory_bytes": memory, "partition_bytes": 30}
    done = sort(InProcess(), job(source, tmp_path, **terms))
    assert lines_of(written(tmp_path / "out")) == sorted(all_lines(source))
    assert done.rows == len(all_lines(source))
    assert (done.spilled_bytes > 0) is (memory == 64)


@settings(deadline=None)
@given(
    lines=st.lists(st.binary(max_size=6).map(lambda b: b.replace(b"\n", b"")), max_size=40),
    reduces=st.integers(1, 4),
    memory=st.sampled_from([1, 50, 1 << 20]),
    size=st.integers(1, 100),
)
def test_any_lines_are_sorted_by_their_bytes(
    tmp_path_factory, lines: list[bytes], reduces: int, memory: int, size: int
) -> None:
    folder = tmp_path_factory.mktemp("sort")
    (folder / "in").write_bytes(b"".join(line + b"\n" for line in lines))
    terms = {"reduces": reduces, "memory_bytes": memory, "partition_bytes": size}
    sort(InProcess(), job(folder / "in", folder, **terms))
    assert lines_of(written(folder / "out")) == sorted(lines)


def test_records_of_the_benchmark_must_be_whole(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"x" * 99 + b"\nshort\n")
    with pytest.raises(InvalidError, match="a record has 6 bytes instead of 100"):
        sort(InProcess(), job(tmp_path / "in", tmp_path, partition_bytes=1000), records="tera")
    assert not (tmp_path / "out" / "_SUCCESS").exists()


def test_a_task_that_is_run_twice_changes_nothing(source: Path, tmp_path: Path) -> None:
    terms = {"memory_bytes": 64, "partition_bytes": 30, "overwrite": True}
    sort(InProcess(), job(source, tmp_path, **terms))
    once = written(tmp_path / "out")
    sort(InProcess(attempts=2), job(source, tmp_path, **terms))
    assert written(tmp_path / "out") == once
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "_SUCCESS", "part-00000", "part-00001",
    ]  # fmt: skip


def test_what_is_small_stays_in_the_outcome(tmp_path: Path) -> None:
    small = keep([[b"a", b""], [b"b", b"c"]], str(tmp_path))
    assert [[part.read() for part in small.of(number)] for number in (0, 1)] == [
        [b"a", b"b"], [b"c"],
    ]  # fmt: skip
    assert list(tmp_path.iterdir()) == []
    large = keep([[b"a" * INLINE_BYTES, b"b"]], str(tmp_path))
    assert large.of(1)[0].read() == b"b"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_spilled_part_is_read_in_pieces(tmp_path: Path) -> None:
    spill = Spill(str(tmp_path))
    spill.add([b"abc", b"defgh"])
    [part] = spill.close().of(1)
    assert [part.read(0, 2), part.read(2, 2), part.read(4, 2)] == [b"de", b"fg", b"h"]


def test_nothing_in_gives_nothing_out(tmp_path: Path) -> None:
    (tmp_path / "in").touch()
    for run in (wordcount, sort):
        assert run(InProcess(), job(tmp_path / "in", tmp_path, overwrite=True)).rows == 0
    assert grep(InProcess(), job(tmp_path / "in", tmp_path, overwrite=True), "x").rows == 0


def test_what_is_wrong_is_told(source: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no file or folder"):
        wordcount(InProcess(), job(tmp_path / "none", tmp_path))
    with pytest.raises(ExistsError):
        wordcount(InProcess(), job(source, tmp_path))
    with pytest.raises(InvalidError, match="regular expression"):
        grep(InProcess(), job(source, tmp_path, overwrite=True), "(")
    with pytest.raises(InvalidError, match="nothing to read"):
        Job([], "out")
    with pytest.raises(InvalidError, match="reduces"):
        Job(["in"], "out", reduces=0)
    with pytest.raises(InvalidError, match="1 or more"):
        Job(["in"], "out", partition_bytes=0)
    assert Split("p", 3, 10).size == 7
