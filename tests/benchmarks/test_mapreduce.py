"""The benchmark of MapReduce: its input, and its table. Running it is for people."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from benchmarks.mapreduce import SOUGHT, WORDS_OF_A_LINE, Timed, make_text, table


def test_the_text_is_the_same_every_time(tmp_path: Path) -> None:
    first, second = (Path(make_text(tmp_path / name, 300_000)) for name in ("a", "b"))
    text = first.read_text()
    assert text == second.read_text()
    assert 300_000 <= len(text) < 500_000
    assert {len(line.split()) for line in text.splitlines()} == {WORDS_OF_A_LINE}
    found = sum(SOUGHT in line for line in text.splitlines())
    assert found < len(text.splitlines()) / 10


def test_a_row_says_how_often_ours_fits_into_the_time_of_spark() -> None:
    timed = Timed("sort", 1 << 20, [1.0, 2.0, 4.0], [5.0, 6.0, 7.0], 0.1)
    *_, row = table([timed], 100 << 20)
    assert timed.ratio == 3.0
    assert row == (
        "| sort | 1.0 MiB | 2.00 (1.00 to 4.00) | 6.00 (5.00 to 7.00) | 3.00 | 0.10 |"
    )
