"""Sorting as TeraSort does it: ranges of keys from a sample, each range sorted by itself.

Records are lines, or those of the sort benchmark: 100 bytes, of which the first 10 are the key and
the last is a newline.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import islice, pairwise
from typing import Literal

from penstock.errors import InvalidError
from penstock.tasks.declare import task
from penstock.tasks.mapreduce.jobs import Done, Job, Submits, results, write_part
from penstock.tasks.mapreduce.shuffle import Output, Part, Spill, keep
from penstock.tasks.mapreduce.splits import Split, joined, lines_of

Records = Literal["lines", "tera"]

KEY_BYTES = 10
RECORD_BYTES = 99  # and the newline
SAMPLED_SPLITS = 20
SAMPLE_BYTES = 64 << 10  # of one split
SAMPLE_LINES = 1000
MIN_READ_BYTES = 4 << 10
MAX_READ_BYTES = 1 << 20  # at a time, of a run that is merged
MERGE_LINES = 4096  # written at a time


def sort(app: Submits, job: Job, *, records: Records = "lines") -> Done:
    """The lines in the order of their bytes, in a file for each range: one follows the other.

    The borders of the ranges come from a sample. Records of "tera" are in the order of their keys;
    one that is not 100 bytes long ends the job.
    """
    if records not in ("lines", "tera"):
        raise InvalidError(f"unknown records {records!r}", advice="Use lines or tera.")
    with job.folders() as scratch:
        splits = job.splits()
        borders = _borders(app, splits, job.reduces)
        maps = [
            app.submit(map_sort, split, borders, records, job.memory_bytes, scratch)
            for split in splits
        ]
        reduces = [
            app.submit(reduce_sort, number, maps, job.part(number), job.memory_bytes)
            for number in range(job.reduces)
        ]
        ends = results(maps, reduces)
    rows, spilled = (sum(each) for each in zip(*ends, strict=True))
    return Done(len(maps), job.reduces, rows, spilled)


def _borders(app: Submits, splits: Sequence[Split], ranges: int) -> list[bytes]:
    """The least line of every range but the first."""
    if ranges == 1 or not splits:
        return [b""] * (ranges - 1)
    every = -(-len(splits) // SAMPLED_SPLITS)
    sample = sorted(line for lines in app.map(sample_split, splits[::every]) for line in lines)
    return [sample[len(sample) * number // ranges] for number in range(1, ranges)]


@task(retries=2)
def sample_split(split: Split) -> list[bytes]:
    """Some lines of a split: from its beginning and its middle."""
    half = SAMPLE_BYTES // 2
    places = {split.start, max(split.start, (split.start + split.end - half) // 2)}
    lines: list[bytes] = []
    for place in sorted(places):
        lines += lines_of(Split(split.path, place, min(place + half, split.end)).read())
    return lines[:: max(1, len(lines) // SAMPLE_LINES)]


@task(retries=2)
def map_sort(
    split: Split, borders: list[bytes], records: Records, memory_bytes: int, scratch: str
) -> Output:
    """The lines of a split, sorted, for each reduce those of its range.

    What does not fit into memory is sorted piece by piece, and goes to a file.
    """
    room = max(memory_bytes // 4, 1)  # lines, their bytes, and what is written, at the same time
    if split.size <= room:
        return keep([_sorted_ranges(split, borders, records)], scratch)
    spill = Spill(scratch)
    for piece in split.pieces(room):
        spill.add(_sorted_ranges(piece, borders, records))
    return spill.close()


def _sorted_ranges(split: Split, borders: Sequence[bytes], records: Records) -> list[bytes]:
    lines = lines_of(split.read())
    if records == "tera":
        _check_records(lines)
    lines.sort()
    cuts = [0, *(bisect_left(lines, border) for border in borders), len(lines)]
    return [joined(lines[a:b]) for a, b in pairwise(cuts)]


def _check_records(lines: Sequence[bytes]) -> None:
    lengths = set(map(len, lines)) - {RECORD_BYTES}
    if lengths:
        wrong = min(lengths) + 1
        raise InvalidError(f"a record has {wrong} bytes instead of {RECORD_BYTES + 1}")


@task(retries=2)
def reduce_sort(
    number: int, outputs: list[Output], to: str, memory_bytes: int
) -> tuple[int, int]:
    """Writes the lines of one range, in order; how many, and how many bytes came from files."""
    runs = [part for output in outputs for part in output.of(number)]
    rows = 0

    def counted() -> Iterator[bytes]:
        nonlocal rows
        for lines in _in_order(runs, memory_bytes):
            rows += len(lines)
            yield joined(lines)

    write_part(to, counted())
    return rows, sum(run.size for run in runs if run.path)


def _in_order(runs: Sequence[Part], memory_bytes: int) -> Iterator[list[bytes]]:
    """The lines of all runs, some at a time."""
    room = memory_bytes // 4
    if sum(run.size for run in runs) <= room:
        # Runs are in order already: sorting them together merges them.
        yield sorted(line for run in runs for line in lines_of(run.read()))
        return
    at_a_time = min(max(room // len(runs), MIN_READ_BYTES), MAX_READ_BYTES)
    merged = heapq.merge(*(_streamed(run, at_a_time) for run in runs))
    while lines := list(islice(merged, MERGE_LINES)):
        yield lines


def _streamed(run: Part, at_a_time: int) -> Iterator[bytes]:
    """The lines of a run. Its file is open only while it is read: there may be many runs."""
    begun = b""
    for start in range(0, run.size, at_a_time):
        *lines, begun = (begun + run.read(start, at_a_time)).split(b"\n")
        yield from lines
