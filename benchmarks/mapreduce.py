"""`python -m benchmarks.mapreduce`: MapReduce by tasks beside the same programs on Spark.

The same file, cut into partitions of the same sizes, two workers against `local[2]`, in turns; in
the end, what both have written is compared.
"""

from __future__ import annotations

import itertools
import json
import random
import shutil
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import penstock
from benchmarks.folders import RESULTS, fresh_folder
from penstock.cli.benchmarks.foreign import ForeignCpu
from penstock.cli.benchmarks.processes import NodeProcess
from penstock.cli.units import size, size_text
from penstock.spark import apps
from penstock.spark.setup import session
from penstock.tasks import mapreduce
from penstock.tasks.mapreduce.splits import lines_of
from penstock.tasks.provision import Terms
from penstock.tasks.provision.local import LocalProcesses

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.tasks.app import TaskApp

WORKERS = 2
VOCABULARY = 20_000
WORDS_OF_A_LINE = 10
SOUGHT = "wort17z"
SIZES = "100KB,1MB,10MB,100MB"
TIMEOUT_S = 60.0
NAME = "mapreduce"


@dataclass(frozen=True)
class Timed:
    """One program, one size of partitions; seconds of every round."""

    program: str
    partition_bytes: int
    ours_s: list[float]
    spark_s: list[float]
    foreign_cores: float
    """Processors that others used meanwhile."""

    @property
    def ratio(self) -> float:
        """How often ours fits into the time of Spark."""
        return statistics.median(self.spark_s) / statistics.median(self.ours_s)


@dataclass(frozen=True)
class Program:
    """The same on both sides. `ordered`: the order of lines is part of the result."""

    ours: Callable[[TaskApp, mapreduce.Job], Any]
    spark: Callable[[DataFrame], DataFrame]
    ordered: bool = False


PROGRAMS = {
    "wordcount": Program(mapreduce.wordcount, apps.wordcount),
    "sort": Program(mapreduce.sort, lambda lines: apps.sort(lines, partitions=WORKERS), True),
    "grep": Program(
        lambda tasks, job: mapreduce.grep(tasks, job, SOUGHT, fixed=True),
        lambda lines: apps.grep(lines, SOUGHT, fixed=True).select("value"),
    ),
}


class Both:
    """A node with its workers, and a session of Spark, over one file."""

    def __init__(self, folder: Path, total_bytes: int, stack: ExitStack) -> None:
        self._folder = folder
        self._source = make_text(folder / "text", total_bytes)
        node = stack.enter_context(NodeProcess(folder / "node"))
        workers = LocalProcesses(
            ["penstock.tasks.mapreduce", "--concurrency", "1", "--url", node.url], Terms()
        )
        stack.callback(workers.close)
        for _ in range(WORKERS):
            workers.start(stays=True)
        fabric = stack.enter_context(penstock.connect(node.url, timeout=TIMEOUT_S))
        self._tasks = stack.enter_context(fabric.tasks(durability="written"))
        self._spark: SparkSession = session(f"local[{WORKERS}]")
        stack.callback(self._spark.stop)
        self._spark.conf.set("spark.sql.shuffle.partitions", str(WORKERS))
        self._spark.conf.set("spark.sql.files.openCostInBytes", "0")

    def run_ours(self, program: Program, partition_bytes: int) -> float:
        """Seconds until the results are in files."""
        to = str(self._folder / "ours")
        job = mapreduce.Job([self._source], to, partition_bytes, WORKERS, overwrite=True)
        began_s = time.perf_counter()
        program.ours(self._tasks, job)
        return time.perf_counter() - began_s

    def run_spark(self, program: Program, partition_bytes: int) -> float:
        """The same by Spark."""
        self._spark.conf.set("spark.sql.files.maxPartitionBytes", str(partition_bytes))
        to = str(self._folder / "theirs")
        began_s = time.perf_counter()
        lines = apps.read_lines(self._spark, [self._source])
        apps.write_rows(program.spark(lines), to, overwrite=True)
        return time.perf_counter() - began_s

    def check(self, program: Program) -> None:
        """Both have written the same."""
        ours, theirs = written(self._folder / "ours"), written(self._folder / "theirs")
        if not program.ordered:
            ours, theirs = sorted(ours), sorted(theirs)
        if ours != theirs:
            raise SystemExit(f"results differ: {len(ours):,} lines here, {len(theirs):,} of Spark")

    def compare(self, name: str, partition_bytes: int, rounds: int) -> Timed:
        """Rounds of both, in turns, after one of each that does not count."""
        program = PROGRAMS[name]
        foreign = ForeignCpu()
        times = [
            (self.run_ours(program, partition_bytes), self.run_spark(program, partition_bytes))
            for _ in range(rounds + 1)
        ]
        self.check(program)
        ours, theirs = (list(each) for each in zip(*times[1:], strict=True))
        return Timed(name, partition_bytes, ours, theirs, round(foreign.cores(), 2))


def make_text(path: Path, total_bytes: int) -> str:
    """Lines of words of which some are far more frequent than others; the same every time."""
    chance = random.Random(1)
    words = [f"wort{number}z" for number in range(VOCABULARY)]
    frequent = [1.0 / (number + 1) for number in range(VOCABULARY)]
    chance.shuffle(words)
    up_to = list(itertools.accumulate(frequent))
    written_bytes = 0
    with path.open("w") as file:
        while written_bytes < total_bytes:
            drawn = chance.choices(words, cum_weights=up_to, k=10_000)
            written_bytes += sum(
                file.write(" ".join(drawn[at : at + WORDS_OF_A_LINE]) + "\n")
                for at in range(0, len(drawn), WORDS_OF_A_LINE)
            )
    return str(path)


def written(folder: Path) -> list[bytes]:
    """The lines of all files of results."""
    return lines_of(b"".join(path.read_bytes() for path in sorted(folder.glob("part-*"))))


def table(found: list[Timed], total_bytes: int) -> Iterator[str]:
    """For people."""
    yield f"MapReduce over {size_text(total_bytes)}, {WORKERS} workers; Spark local[{WORKERS}]\n"
    yield "| program | partition | Penstock, s | Spark, s | Spark / Penstock | foreign cores |"
    yield "|---|---:|---:|---:|---:|---:|"
    for each in found:
        yield (
            f"| {each.program} | {size_text(each.partition_bytes)} | {_spread(each.ours_s)} "
            f"| {_spread(each.spark_s)} | {each.ratio:.2f} | {each.foreign_cores:.2f} |"
        )


def _spread(times: list[float]) -> str:
    return f"{statistics.median(times):.2f} ({min(times):.2f} to {max(times):.2f})"


def bench_mapreduce(
    total: Annotated[int, typer.Option(parser=size, help="Of the file.")] = 100_000_000,
    sizes: Annotated[str, typer.Option(help="Of partitions.")] = SIZES,
    programs: Annotated[str, typer.Option(help=f"Of {', '.join(PROGRAMS)}.")] = ",".join(PROGRAMS),
    rounds: Annotated[int, typer.Option(min=1, help="That count.")] = 3,
    results: Annotated[Path, typer.Option(help="Where JSON and the table go.")] = RESULTS,
) -> None:
    """Measure MapReduce by tasks and by Spark, over the same partitions, in one run."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that workers are ended
    folder = fresh_folder(NAME)
    found: list[Timed] = []
    try:
        with ExitStack() as stack:
            both = Both(folder, total, stack)
            for name in programs.split(","):
                for partition in map(size, sizes.split(",")):
                    found.append(both.compare(name, partition, rounds))
                    print(list(table(found, total))[-1], file=sys.stderr, flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    results.mkdir(parents=True, exist_ok=True)
    text = "\n".join(table(found, total)) + "\n"
    (results / f"{NAME}.md").write_text(text)
    values = [{**asdict(each), "ratio": round(each.ratio, 3)} for each in found]
    (results / f"{NAME}.json").write_text(json.dumps(values, indent=1) + "\n")
    print(text, end="")


if __name__ == "__main__":
    typer.run(bench_mapreduce)
