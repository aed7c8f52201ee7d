"""Searching lines."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import repeat

from penstock.errors import InvalidError
from penstock.tasks.declare import task
from penstock.tasks.mapreduce.jobs import Done, Job, Submits, write_part
from penstock.tasks.mapreduce.splits import Split, joined, lines_of


def grep(
    app: Submits,
    job: Job,
    pattern: str,
    *,
    fixed: bool = False,
    ignore_case: bool = False,
    invert: bool = False,
) -> Done:
    """The lines in which a pattern is found, in the order of the files. There are no reduces.

    `pattern` is a regular expression of Python, or with `fixed` what is to be found as it is.
    `invert`: the lines in which it is not. InvalidError if it is no regular expression.
    """
    found_in(pattern, fixed, ignore_case)
    with job.folders():
        splits = job.splits(held=False)
        parts = [job.part(number) for number in range(len(splits))]
        terms = repeat((pattern, fixed, ignore_case, invert))
        rows = sum(app.map(search_split, splits, terms, parts))
    return Done(len(splits), 0, rows)


@task(retries=2)
def search_split(split: Split, terms: tuple[str, bool, bool, bool], to: str) -> int:
    """Writes the lines of a split that are sought, if there are any; how many."""
    pattern, fixed, ignore_case, invert = terms
    found = found_in(pattern, fixed, ignore_case)
    lines = [line for line in lines_of(split.read()) if found(line) is not invert]
    if lines:
        write_part(to, [joined(lines)])
    return len(lines)


def found_in(pattern: str, fixed: bool, ignore_case: bool) -> Callable[[bytes], bool]:
    """Tells whether a line has what is sought. Bytes that are no UTF-8 fit nothing but a dot."""
    if fixed and not ignore_case:
        sought = pattern.encode()
        return lambda line: sought in line
    try:
        search = re.compile(
            re.escape(pattern) if fixed else pattern, re.IGNORECASE if ignore_case else 0
        ).search
    except re.error as error:
        raise InvalidError(f"{pattern!r} is no regular expression: {error}") from None
    return lambda line: search(line.decode("utf-8", "replace")) is not None
