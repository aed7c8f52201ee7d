"""Minutes of nodes and streams, from records whose sums are known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Run

import penstock
from penstock.cli.metrics import publish

pytest.importorskip("pyspark")

pytestmark = pytest.mark.timeout(300)

START_US = 1_800_000_000_000_000  # a full minute
NODES = {"1": 100, "2": 300}  # bytes a second


def records(seconds: int) -> list[dict[str, Any]]:
    """A sample each second: node 2 writes three times as much, answers take 1 to 60 µs."""
    found: list[dict[str, Any]] = []
    for second in range(seconds):
        time_us = START_US + second * 1_000_000
        gauges = {"connections": 1, "messages": second, "unwritten_bytes": 0, "syncs": 1}
        found += [
            {"kind": "node", "time_us": time_us, "name": name, "up": True, "seconds": 1.0,
             "records": 2, "written_bytes": size, "answer_us": [second % 60 + 1], **gauges}
            for name, size in NODES.items()
        ]  # fmt: skip
        found.append(
            {"kind": "topic", "time_us": time_us, "name": "topic:t", "up": True, "seconds": 1.0,
             "came": second // 60, "left": 0, "messages": second, "bytes": 1, "oldest_ms": None}
        )  # fmt: skip
    return found


@pytest.fixture
def metrics(fabric: penstock.Fabric, topic: penstock.Topic) -> str:
    publish(topic, records(150))
    return topic.name


def test_minutes_of_nodes(command: Run, metrics, tmp_path, spark: Any) -> None:
    out = str(tmp_path / "out")
    rows = command("spark", "telemetry", "--topic", metrics, "--json", "--to", out).json
    assert [(row["minute"][14:16], row["node"]) for row in rows] == [
        (minute, node) for minute in ("00", "01", "02") for node in NODES
    ]
    for row in rows[:4]:
        assert row["written_bytes_per_s"] == NODES[row["node"]]
        assert row["share"] == NODES[row["node"]] / 400
        assert (row["answer_p50_us"], row["answer_p99_us"], row["answer_max_us"]) == (30, 60, 60)
        assert (row["imbalance"], row["up"], row["records_per_s"]) == (1.5, 1.0, 2.0)
    assert rows[4]["answer_max_us"] == 30
    assert spark.read.parquet(out).count() == 6
    shown = command("spark", "telemetry", "--topic", metrics, "--what", "streams").out
    assert "came_per_s, up to 2.0, 08:00 to 08:02:" in shown
    assert shown.splitlines()[-1] == "topic:t   ▄█"


def test_a_stream_gives_the_minutes_that_are_over(
    command: Run, metrics, tmp_path, fabric: penstock.Fabric, spark: Any
) -> None:
    arguments = ["spark", "telemetry", "--topic", metrics, "--checkpoint", str(tmp_path / "c"),
                 "--to", str(tmp_path / "out")]  # fmt: skip
    assert command(*arguments).code == 0
    found = spark.read.parquet(str(tmp_path / "out"))
    assert found.count() == 4
    publish(fabric.topic(metrics), records(300)[150 * 3 :])
    assert command(*arguments).code == 0
    rows = spark.read.parquet(str(tmp_path / "out")).where("node = '2'").orderBy("minute").collect()
    assert [row.written_bytes_per_s for row in rows] == [300.0] * 4
    assert command("spark", "telemetry", "--follow").code == 1


def test_real_figures_fit(command: Run, fabric: penstock.Fabric, tmp_path: Path) -> None:
    fabric.queue("some").push_many([b"x"] * 100)
    command("metrics", "export", "--topic", "real", "--every", "0.2", "--samples", "3")
    rows = json.loads(command("spark", "telemetry", "--topic", "real", "--json").out)
    assert rows[-1]["share"] == 1.0
    assert rows[-1]["answer_p99_us"] >= rows[-1]["answer_p50_us"] > 0
