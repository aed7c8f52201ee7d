from __future__ import annotations

import time

from tests.cli.conftest import Run, invoke

import penstock
from penstock.cli.top import Sample, take_sample
from penstock.testing import FakeClock, memory_fabric


def test_rates_come_from_two_samples():
    clock = FakeClock()
    with memory_fabric(clock) as fabric:
        queue, topic = fabric.queue("q"), fabric.topic("t", 2)
        queue.push_many([b"x"] * 10)
        before = take_sample(fabric)
        queue.push_many([b"x"] * 20)
        clock.advance(3)
        queue.ack(queue.pop_many(5), wait=True)
        topic.publish(b"y")
        after = take_sample(fabric)
    after.time = before.time + 2
    after.compare(before)
    rows = {row.name: row for row in after.streams}
    assert (rows["q"].in_rate, rows["q"].out_rate) == (10.0, 2.5)
    assert (rows["q"].ready, rows["q"].messages) == (25, 25)
    assert rows["q"].oldest_ms == 3000
    assert rows["t"].in_rate == 0.5
    assert before.streams[0].in_rate is None


def test_a_stream_that_is_new_has_no_rate():
    before = Sample(time.monotonic(), {})
    with memory_fabric(FakeClock()) as fabric:
        fabric.queue("q")
        after = take_sample(fabric)
    after.compare(before)
    assert after.streams[0].in_rate is None


def test_one_sample(run: Run, node_url):
    with penstock.connect(node_url) as fabric:
        fabric.queue("shown").push(b"x")
    text = run("top", "--once", "--interval", "50ms")
    assert text.code == 0
    assert "shown" in text.out
    assert "connections" in text.out
    told = run("top", "--once", "--interval", "50ms", "--json").json
    assert [row["name"] for row in told["streams"]] == ["shown"]
    assert told["node"]["connections"] >= 1


def test_stats(run: Run):
    assert run("stats", "--json").json["queues"] >= 0
    assert "live_bytes" in run("stats").out


def test_version():
    assert invoke("version").out.startswith("penstock ")
    assert "python" in invoke("version", "--json").json
