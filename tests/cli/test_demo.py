"""The demo: its answer against the consumer's, verdicts on made-up results, a small run."""

from __future__ import annotations

import io
import json
import zlib
from collections import Counter
from pathlib import Path

import pytest
from rich.console import Console

from penstock.cli.demo import Run, run_demo, show, table_of
from penstock.cli.demonstration import minutes
from penstock.cli.demonstration.minutes import MINUTE_US, Minute
from penstock.consumers import Assembler, Clicks, Fragments, Sessionizer, decode_session
from penstock.consumers.generator import CLOSING_KEY, is_end
from penstock.spark.pipelines import read_pipeline
from penstock.testing import memory_fabric

CLICKS = Clicks(3, 2, 40, timeout=30.0, delay=2.0)


def value_of(start_us: int, minute: Minute) -> bytes:
    return json.dumps({"minute_us": start_us, **minute._asdict()}).encode()


def verdict(*values: bytes, killed: int | None = 1) -> Run:
    run = Run(CLICKS, 10, {0: Minute(1, 2, 1, 7), MINUTE_US: Minute(2, 2, 2, 8)})
    run.found, run.twice = minutes.received(values, MINUTE_US)
    run.killed_after = killed
    return run


RIGHT = value_of(0, Minute(1, 2, 1, 7)), value_of(MINUTE_US, Minute(2, 2, 2, 8))


def test_the_answer_is_right_and_closing_minutes_do_not_count() -> None:
    assert verdict(*RIGHT).correct
    assert verdict(*RIGHT, value_of(5 * MINUTE_US, Minute(1, 1, 0, 1))).correct


@pytest.mark.parametrize(
    ("run", "wrong", "twice"),
    [
        (verdict(RIGHT[0]), 1, 0),
        (verdict(*RIGHT, RIGHT[0]), 0, 1),
        (verdict(RIGHT[0], value_of(MINUTE_US, Minute(2, 2, 2, 9))), 1, 0),
        (verdict(*RIGHT, killed=None), 0, 0),
    ],
)
def test_what_is_wrong_is_found(run: Run, wrong: int, twice: int) -> None:
    assert not run.correct
    assert (run.wrong, run.twice) == (wrong, twice)
    console = Console(file=io.StringIO())
    console.print(table_of(run))


def test_the_known_answer_is_that_of_the_consumer() -> None:
    with memory_fabric() as fabric:
        topic = fabric.topic("clicks", partitions=2)
        counts = list(minutes.publish(topic, CLICKS))
        assert counts[-1] == sum(end for _, end in topic.offsets())
        found: Counter[int] = Counter()
        checksums: Counter[int] = Counter()
        for partition in range(2):
            sessions = Sessionizer(end=is_end, timeout=30.0, delay=2.0, fragment_id=bytes)
            assembler = Assembler(sessions, partition=partition)
            for batch in topic.read(partition):
                for each in assembler.take(Fragments.of_batch(batch), 0).results:
                    record = decode_session(each.value)
                    if record.key != CLOSING_KEY.decode():
                        found[record.end_us // MINUTE_US] += 1
                        checksums[record.end_us // MINUTE_US] += zlib.crc32(each.value)
    known = minutes.expected(CLICKS)
    assert {start // MINUTE_US: each.sessions for start, each in known.items()} == found
    assert {start // MINUTE_US: each.checksum for start, each in known.items()} == checksums


def test_the_pipeline_of_the_demo_is_in_order(tmp_path: Path) -> None:
    text = minutes.PIPELINE.format(url="penstock://127.0.0.1:1", rows=5, timeout=30.0, delay=2.0)
    (tmp_path / "demo.toml").write_text(text)
    assert [step.name for step in read_pipeline(tmp_path / "demo.toml").steps] == [
        "sessions", "minutes",
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_small_demo_gives_the_answer() -> None:
    pytest.importorskip("pyspark")
    output = io.StringIO()
    console = Console(file=output, width=100)
    run = run_demo(20_000, console, memory="700m")
    show(run, console)
    assert run.correct, output.getvalue()
    assert "SIGKILL" in output.getvalue()
