"""The decision table as a person reads it, against the function that decides."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from penstock.tasks.locality.decisions import Data, Step, Turn, decide

TABLE = Path(__file__).with_name("decisions.txt")
ROWS = [
    line.split()
    for line in TABLE.read_text(encoding="utf-8").splitlines()
    if line.strip() and not line.startswith("#")
]
QUESTIONS = list(itertools.product(Turn, Data, (False, True), (False, True)))


def matches(row: list[str], question: tuple[Turn, Data, bool, bool]) -> bool:
    turn, data, refused, moved = question
    asked = (turn.value, data.value, "yes" if refused else "no", "yes" if moved else "no")
    return all(cell in ("any", word) for cell, word in zip(row, asked, strict=False))


@pytest.mark.parametrize("question", QUESTIONS, ids=str)
def test_the_table_has_one_answer_to_every_question_and_it_is_given(question) -> None:
    answers = [row[-1] for row in ROWS if matches(row, question)]
    assert len(answers) == 1
    assert decide(*question) is Step(answers[0])


def test_every_row_is_of_use() -> None:
    assert [row for row in ROWS if not any(matches(row, each) for each in QUESTIONS)] == []
