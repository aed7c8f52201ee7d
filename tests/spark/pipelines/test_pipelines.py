"""Pipelines that run: against a node, with what is wrong told by line."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Run
from tests.spark.test_sessions import CLICKS, publish, records

import penstock
from penstock.consumers.sessions import session_order
from penstock.errors import PenstockError

pytest.importorskip("pyspark")

from penstock.spark.pipelines import build, read_pipeline, run_pipeline
from penstock.spark.pipelines.metrics import prometheus, to_file
from penstock.spark.pipelines.progress import Figures, lag_of, take

pytestmark = pytest.mark.timeout(300)

CODE = """
from pyspark.sql import functions as call
from penstock.consumers import Completion, FunctionalStateful

def is_end(value):
    return value.endswith(b":END")

def longest(df, least):
    return df.where(call.col("count") >= least)

def counting():
    return FunctionalStateful(
        Completion(timeout=1800.0, delay=60.0), lambda key: 0,
        lambda state, fragment: state + 1, lambda state, about: [b"%d" % state],
    )
"""


def text_of(url: str, topic: str) -> str:
    return f'''
checkpoint = "checkpoint"
servers = "{url}"

[source.clicks]
topic = "{topic}"
startingOffsets = "earliest"
maxRowsPerBatch = 1500

[step.found]
from = "clicks"
[step.found.sessions]
end = "mine:is_end"
fragment_id = "builtins:bytes"
timeout = "{CLICKS.timeout}s"
delay = "1m"

[step.long]
python = "mine:longest"
from = "found"
options = {{ least = 3 }}

[step.shown]
sql = """
select string(key) as user,
       count
from long
"""

[sink.sessions]
from = "found"
files = "sessions"

[sink.long]
from = "shown"
files = "long"
format = "json"
'''


@pytest.fixture
def clicks(topic: penstock.Topic) -> penstock.Topic:
    publish(topic, CLICKS)
    return topic


@pytest.fixture
def file(tmp_path: Path, url: str, clicks: penstock.Topic, monkeypatch) -> Path:
    (tmp_path / "mine.py").write_text(CODE)
    found = tmp_path / "pipeline.toml"
    found.write_text(text_of(url, clicks.name))
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return found


def test_a_pipeline_runs_and_goes_on(command: Run, file, spark: Any, clicks) -> None:
    metrics = file.parent / "metrics.prom"
    done = command("pipeline", "run", str(file), "--json", "--metrics", str(metrics))
    assert done.code == 0, done.err
    ended = {each["query"]: each for each in done.lines if each["event"] == "ended"}
    total = sum(end for _, end in clicks.offsets())
    assert ended["sessions"]["rows"] == total
    assert ended["sessions"]["lag"] == 0
    assert ended["sessions"]["state_rows"] > 0
    rows = spark.read.parquet(str(file.parent / "sessions")).select("value").collect()
    answer = sorted(CLICKS.answer(), key=session_order)
    assert records([bytes(value) for (value,) in rows]) == answer
    long = spark.read.json(str(file.parent / "long"))
    sessions = spark.read.parquet(str(file.parent / "sessions"))
    assert long.count() == sessions.where("count >= 3").count()
    told = metrics.read_text()
    assert f'penstock_pipeline_rows_total{{pipeline="pipeline",query="long"}} {total}' in told
    assert 'penstock_pipeline_up{pipeline="pipeline",query="sessions"} 0' in told
    again = command("pipeline", "run", str(file), "--json")
    assert all(each["rows"] == 0 for each in again.lines)


def test_a_good_pipeline_is_in_order(command: Run, file) -> None:
    told = command("pipeline", "check", str(file), "--json").json
    assert told["columns"]["shown"] == "user string, count bigint"
    assert command("pipeline", "check", str(file), "--offline").code == 0
    assert "└─ found" in command("pipeline", "show", str(file)).out
    assert "flowchart" in command("pipeline", "show", str(file), "--format", "mermaid").out


@pytest.mark.parametrize(
    ("before", "after", "line", "said"),
    [
        ("       count\n", "       cuont\n", 26, "`cuont` cannot be resolved"),
        ("string(key) as user,", "string(key as user,", 25, "Syntax error"),
        ('"mine:longest"', '"mine:shortest"', 19, "mine has no 'shortest'"),
        ('"mine:longest"', '"nowhere:longest"', 19, "cannot be imported"),
        ('topic = "topic-', 'topic = "tpoic-', 6, "did you mean 'topic-"),
        ('from = "found"\nfiles = "sessions"', 'from = "found"\ntopic = "x"', 32, "no topic 'x'"),
        ('from = "shown"\nfiles = "long"\nformat = "json"', 'from = "shown"\ntopic = "x"', 34,
         "needs a column `value`"),
        ("maxRowsPerBatch = 1500", 'watermark = { column = "tme", delay = 1 }', 5, "'tme'"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_told_with_its_line(
    command: Run, file, before, after, line, said
) -> None:
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after, 1))
    done = command("pipeline", "check", str(file))
    assert done.code == 1
    told = [re.fullmatch(r".*pipeline\.toml:(\d+): (.*)", each) for each in done.out.splitlines()]
    assert [int(each[1]) for each in told if each and said in each[2]] == [line], done.out


def test_a_node_that_is_away_is_told(command: Run, file, url) -> None:
    file.write_text(file.read_text().replace(url, "penstock://127.0.0.1:9"))
    done = command("pipeline", "check", str(file), "--json").json
    assert "cannot be looked at" in done["problems"][0]["problem"]


def test_any_stateful_and_memory(command: Run, file, spark: Any) -> None:
    text = file.read_text().partition("[step.found]")[0].replace('checkpoint = "checkpoint"', "")
    file.write_text(
        text + '[step.counted]\nstateful = "mine:counting"\nfrom = "clicks"\n'
        '[sink.here]\nfrom = "counted"\nmemory = "counted_rows"\n'
    )
    assert command("pipeline", "run", str(file)).code == 0
    found = spark.sql("select sum(count) from counted_rows").collect()
    assert found[0][0] > 0


def test_rows_go_to_topics_and_queues_and_come_from_them(
    command: Run, url, fabric: penstock.Fabric, topic, tmp_path
) -> None:
    fabric.queue("in").push_many([b'{"n": %d}' % n for n in range(100)])
    fabric.queue("out")
    (tmp_path / "p.toml").write_text(
        f'checkpoint = "c"\nservers = "{url}"\n[source.numbers]\nqueue = "in"\njson = "n bigint"\n'
        "[step.even]\nsql = \"select n, n * n as square from numbers where n % 2 = 0\"\n"
        f'[sink.squares]\nfrom = "even"\ntopic = "{topic.name}"\njson = true\nkey = "n"\n'
        '[step.plain]\nsql = "select string(timestamp) as value from numbers"\n'
    )
    done = command("pipeline", "run", str(tmp_path / "p.toml"))
    assert done.code == 0, done.err
    found = {
        key: json.loads(value)
        for partition in range(2)
        for batch in topic.read(partition)
        for key, value in zip(batch.keys, batch.values, strict=True)
    }
    assert found == {b"%d" % n: {"n": n, "square": n * n} for n in range(0, 100, 2)}


def test_a_query_that_fails_ends_all_of_them(spark: Any, tmp_path) -> None:
    (tmp_path / "p.toml").write_text(
        'checkpoint = "c"\ntrigger = "100ms"\n[source.ticks]\nrate = 10\n'
        "[step.bad]\nsql = \"select assert_true(value < 3, 'too much') as x from ticks\"\n"
        '[sink.bad]\nfrom = "bad"\nfiles = "bad"\n[sink.good]\nfrom = "ticks"\nfiles = "good"\n'
    )
    pipeline = read_pipeline(tmp_path / "p.toml")
    seen: list[list[Figures]] = []
    with pytest.raises(PenstockError, match=r"query 'bad' failed: .*too much"):
        run_pipeline(pipeline, build(pipeline, spark), lambda each: seen.append(list(each)))
    assert [each.state for each in seen[-1]] == ["failed", "done"]
    assert not spark.streams.active


def test_a_pipeline_that_has_no_end_is_stopped(spark: Any, tmp_path) -> None:
    (tmp_path / "p.toml").write_text(
        'checkpoint = "c"\ntrigger = "200ms"\n[source.ticks]\nrate = 50\n'
        "watermark = { column = 'timestamp', delay = 1 }\n"
        '[sink.good]\nfrom = "ticks"\nfiles = "good"\n'
    )
    pipeline = read_pipeline(tmp_path / "p.toml")
    stop = threading.Event()

    def report(figures: Any) -> None:
        if figures[0].rows > 20:
            stop.set()

    [figures] = run_pipeline(pipeline, build(pipeline, spark), report, stop)
    assert figures.state == "done"
    assert figures.lag is None
    assert figures.watermark is not None
    assert spark.read.parquet(str(tmp_path / "good")).count() > 20


PROGRESS = {
    "batchId": 4, "numInputRows": 10, "processedRowsPerSecond": 5.5,
    "durationMs": {"triggerExecution": 1500, "addBatch": 900},
    "sources": [{"endOffset": {"0": 5, "1": 7}, "latestOffset": {"0": 9, "1": 7, "2": 3}}],
    "stateOperators": [{"numRowsTotal": 3, "memoryUsedBytes": 100}],
    "eventTime": {"watermark": "2030-01-01T00:00:00.000Z"},
}  # fmt: skip


def test_figures_of_a_micro_batch(tmp_path) -> None:
    figures = Figures('a "query"')
    take(figures, PROGRESS)
    take(figures, {**PROGRESS, "batchId": 5, "numInputRows": 0, "durationMs": {}})
    assert (figures.rows, figures.batch, figures.lag, figures.batch_seconds) == (10, 4, 7, 1.5)
    assert lag_of({"endOffset": "3", "latestOffset": None}) is None
    assert lag_of({"endOffset": '{"0": 1}', "latestOffset": '{"0": 4}'}) == 3
    to_file(tmp_path / "m.prom")("p", [figures, Figures("other")])
    text = (tmp_path / "m.prom").read_text()
    assert text == prometheus("p", [figures, Figures("other")])
    assert 'penstock_pipeline_lag{pipeline="p",query="a \\"query\\""} 7\n' in text
    assert 'penstock_pipeline_lag{pipeline="p",query="other"}' not in text


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_command_ends_by_sigterm_and_publishes_its_figures(
    url, tmp_path, fabric: penstock.Fabric
) -> None:
    fabric.topic("forever", partitions=1).publish(b"x")
    (tmp_path / "p.toml").write_text(
        f'checkpoint = "c"\ntrigger = "1s"\nservers = "{url}"\n[source.rows]\ntopic = "forever"\n'
        'startingOffsets = "earliest"\n[sink.out]\nfrom = "rows"\nfiles = "out"\n'
    )
    program = [sys.executable, "-m", "penstock.cli.app", "pipeline", "run"]
    command = [*program, str(tmp_path / "p.toml"),
               "--metrics", "topic:figures"]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ)) as run:
        until = time.monotonic() + 200
        while not list((tmp_path / "c").glob("out/commits/0")):
            assert time.monotonic() < until
            time.sleep(0.2)
        run.send_signal(signal.SIGTERM)
        out, _ = run.communicate(timeout=60)
    assert run.returncode == 0
    assert "out: 1 rows read in" in out
    told = [json.loads(each.value) for each in fabric.topic("figures").subscribe(idle_timeout=1)]
    assert told[-1]["query"] == "out"
    assert told[-1]["rows"] == 1
