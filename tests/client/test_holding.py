"""Holding many messages: taken lazily, grouped, bounded, and safe to repeat."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock import Hold
from penstock.client import ops_hold
from penstock.errors import InvalidError, LimitError

COUNT = 400


@pytest.fixture
def fabric(tmp_path: Path) -> Iterator[penstock.Fabric]:
    with penstock.open(str(tmp_path / "data")) as opened:
        yield opened


def test_what_is_kept_is_bounded(fabric: penstock.Fabric, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ops_hold, "_GROUP", 7)
    monkeypatch.setattr(ops_hold, "_UNDER_WAY", 3)
    queue, table = fabric.queue("q"), fabric.table("t")
    stored, taken, most = 0, 0, 0

    def holds() -> Iterator[Hold]:
        nonlocal taken, most
        for number in range(COUNT):
            taken += 1
            most = max(most, taken - stored)
            yield Hold(b"v", b"%d" % number, [(table, "k")])

    def progress(count: int) -> None:
        nonlocal stored
        assert count > stored
        stored = count

    assert queue.hold_many(holds(), progress=progress) == stored == COUNT
    assert most <= 7 * (3 + 1) + 1
    assert queue.stats()["held"] == COUNT


@pytest.mark.parametrize("limit", ["_GROUP_EDGES", "_GROUP_BYTES", "_KEPT", "_KEPT_BYTES"])
def test_every_bound_closes_a_group(
    fabric: penstock.Fabric, monkeypatch: pytest.MonkeyPatch, limit: str
):
    monkeypatch.setattr(ops_hold, limit, 10)
    queue, table = fabric.queue("q"), fabric.table("t")
    holds = [Hold(b"value", b"%d" % n, [(table, "k"), (table, "l")]) for n in range(50)]
    told: list[int] = []
    assert queue.hold_many(holds, progress=told.append) == 50
    assert len(told) >= 5
    assert queue.hold_many(holds) == 50  # they are known
    assert queue.stats()["held"] == 50


def test_an_error_says_how_far_it_came(fabric: penstock.Fabric, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ops_hold, "_GROUP", 10)
    queue, table = fabric.queue("q", max_messages=25), fabric.table("t")
    holds = [Hold(b"v", b"%d" % n, [(table, "k")]) for n in range(50)]
    with pytest.raises(LimitError) as caught:
        queue.hold_many(holds)
    assert "messages were stored before this error" in caught.value.__notes__[0]
    with pytest.raises(InvalidError):
        queue.hold_many([Hold(b"v", b"", [(table, "k")])])


def test_a_fallback_has_no_acks_and_no_offsets(fabric: penstock.Fabric):
    queue, table, topic = fabric.queue("q"), fabric.table("t"), fabric.topic("r", partitions=1)
    queue.push(b"v")
    message = queue.pop(timeout=5)
    assert message is not None
    acking = fabric.transaction()
    acking.ack(message)
    committing = fabric.transaction()
    committing.commit_offset(topic, "g", 0, 0)
    for wrong in (acking, committing):
        with pytest.raises(InvalidError):
            queue.hold(b"v", id="c", after=[(table, "k")], fallback=wrong)
    acking.commit()  # it was not taken
