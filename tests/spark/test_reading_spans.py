"""Reading a span of a partition, without Spark: all of it, whoever answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.client.ops_topic import PartitionReader
from penstock.errors import UnavailableError
from penstock.spark import topics
from penstock.spark.topics import read_span
from penstock.wire.batch import Batch

ROWS, KNOWN = 100, 60


@pytest.fixture
def topic(tmp_path: Path) -> Iterator[penstock.Topic]:
    with penstock.open(str(tmp_path / "data")) as fabric:
        made = fabric.topic("t", 1)
        made.publish_many([b"%d" % each for each in range(ROWS)], batch=10)
        yield made


class Replaced:
    """Reads are answered by a node that has lost the partition after its first rows, until somebody
    asks for offsets: that only its successor answers."""

    def __init__(self, patch: pytest.MonkeyPatch, topic: penstock.Topic) -> None:
        self.answers = True
        read, offsets = PartitionReader.read, topic.offsets

        def read_there(reader: PartitionReader, wait_s: float) -> Any:
            batches: list[Batch] = yield from read(reader, wait_s)
            if self.answers:
                batches = [batch for batch in batches if batch.header.base < KNOWN]
                reader.offset = batches[-1].end if batches else KNOWN
                reader.end, reader.at_end = KNOWN, reader.offset >= KNOWN
            return batches

        def asked() -> list[tuple[int, int]]:
            self.answers = self.answers and self.stays
            return offsets()

        self.stays = False
        patch.setattr(PartitionReader, "read", read_there)
        patch.setattr(topic, "offsets", asked)


def rows(topic: penstock.Topic, start: int, end: int) -> list[int]:
    return [int(each) for batch in read_span(topic, 0, start, end) for each in batch.values]


def test_a_node_that_was_replaced_does_not_end_a_span(
    topic: penstock.Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    Replaced(monkeypatch, topic)
    assert rows(topic, 10, ROWS) == list(range(10, ROWS))


def test_a_span_that_cannot_be_read_is_an_error(
    topic: penstock.Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "MOST_GAPS", 3)
    Replaced(monkeypatch, topic).stays = True
    with pytest.raises(UnavailableError):
        rows(topic, 0, ROWS)


def test_a_span_may_be_longer_than_what_there_is(topic: penstock.Topic) -> None:
    assert rows(topic, 90, 2 * ROWS) == list(range(90, ROWS))
    assert rows(topic, ROWS, 2 * ROWS) == []
