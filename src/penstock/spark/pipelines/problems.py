"""What is wrong with a pipeline, and on which line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock.errors import InvalidError


class Problem(NamedTuple):
    """Something that is wrong."""

    line: int
    text: str


class SpecError(InvalidError):
    """A pipeline that cannot run; `problems` has all that was found."""

    code = 13
    advice = "Correct the file; `penstock pipeline check` says what is wrong."
    problems: Sequence[Problem] = ()

    @classmethod
    def of(cls, file: str, problems: Sequence[Problem]) -> SpecError:
        """With a line for each problem, as compilers write them."""
        ordered = sorted(set(problems))
        error = cls("\n".join(f"{file}:{line}: {text}" for line, text in ordered))
        error.problems = ordered
        return error

    def __str__(self) -> str:
        return self.message
