"""Figures that are published: of a real node, and what changes between samples."""

from __future__ import annotations

import json

import pytest
from tests.cli.conftest import Run

import penstock
from penstock.cli.exporting import Exporter
from penstock.cli.plot import bars, blocks


@pytest.fixture
def fabric(node_url):
    with penstock.connect(node_url) as connected:
        yield connected


def test_changes_are_counted_between_samples(node_url, fabric) -> None:
    queue = fabric.queue("counted")
    exporter = Exporter(fabric, node_url, probes=3)
    exporter.sample()
    queue.push_many([b"x"] * 50)
    queue.pop().ack(wait=True)
    found = {each["name"]: each for each in exporter.sample()}
    told = found["queue:counted"]
    assert (told["came"], told["left"], told["messages"]) == (50, 1, 49)
    assert told["seconds"] > 0
    [node] = [each for each in found.values() if each["kind"] == "node"]
    assert node["up"]
    assert len(node["answer_us"]) == 3
    assert node["records"] > 0
    assert node["written_bytes"] > 50


def test_a_node_that_was_started_anew_counts_from_zero(node_url, fabric) -> None:
    exporter = Exporter(fabric, node_url, probes=1)
    assert exporter._changes("x", {"came": 10}) == {"seconds": 0, "came": 0}
    assert exporter._changes("x", {"came": 15})["came"] == 5
    assert exporter._changes("x", {"came": 3})["came"] == 3


def test_a_node_that_does_not_answer_is_told(fabric) -> None:
    nodes = [
        each for each in Exporter(fabric, "penstock://127.0.0.1:9", 2).sample()
        if each["kind"] == "node"
    ]  # fmt: skip
    assert nodes == [
        {"kind": "node", "time_us": nodes[0]["time_us"], "name": "127.0.0.1:9", "up": False}
    ]


def test_samples_are_published(run: Run, fabric) -> None:
    done = run("metrics", "export", "--topic", "figures", "--every", "0.1", "--samples", "3")
    assert done.out == "3 samples published to figures\n"
    [batch] = [list(fabric.topic("figures").subscribe(idle_timeout=0.5))]
    records = [json.loads(message.value) for message in batch]
    times = [each["time_us"] for each in records if each["kind"] == "node"]
    assert len(times) == 3
    assert times == sorted(times)
    assert records[-1]["name"].encode() == batch[-1].key


def test_plots() -> None:
    assert blocks([0, 1, None, 8], 8) == " ▁·█"
    assert blocks([]) == ""
    assert bars(["a", "bcd"], [1, 4], width=8) == ["a    ██       1", "bcd  ████████ 4"]
    assert bars(["a"], [0], width=2) == ["a     0"]
