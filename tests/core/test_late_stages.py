"""Stages of a topic that has grown since they were written: every row gets to the partition that
has its key, once, whatever crash comes between."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.canonical import state_of
from tests.core.harness import Node
from tests.core.test_staging import Stager, name

from penstock.core.late_stages import MAX_READS
from penstock.core.staging import MAX_STAGE_MS
from penstock.errors import ConflictError, StaleError
from penstock.wire import messages as m
from penstock.wire.frames import PushExtra, Verb
from penstock.wire.growth import ANY_GENERATION, Layout

KEYS = [b"key-%d" % number for number in range(24)]


class Grower(Stager):
    """A topic of two partitions, in which keys are staged, and which grows."""

    def after(self, node: Node) -> Grower:
        other = Grower(node)
        other.queue, other.topic, other.staged = self.queue, self.topic, self.staged
        return other

    @property
    def layout(self) -> Layout:
        return self.node.fabric.kernel.streams[self.topic].info.layout()

    def keyed(self, stage: int, keys: list[bytes] | None = None, **terms: Any) -> None:
        """One message for each key, where it belongs now; its value names the stage."""
        layout = self.layout
        for number in range(len(layout.born)):
            mine = [key for key in keys or KEYS if layout.partition_of(key) == number]
            values = [b"%s:%d" % (key, stage) for key in mine]
            terms["generation"] = layout.generation
            if mine:
                self._staged(stage, number, values, keys=mine, **terms)

    def _staged(self, stage: int, partition: int, values: list[bytes], **terms: Any) -> None:
        extra = PushExtra(stage=name(stage))
        request = self.node.push(self.topic, values, partition=partition, extra=extra, **terms)
        self._count(stage, self.place(partition), request)

    def grow(self, partitions: int) -> None:
        self.node.call(m.Grow(self.topic, partitions))
        self.node.commit()

    def rows(self) -> dict[int, list[tuple[int, bytes]]]:
        found: dict[int, list[tuple[int, bytes]]] = {}
        for number in range(len(self.layout.born)):
            self.node.commit()
            fetched = self.node.answer(self.node.fetch(self.topic, number, 0)).fetched
            assert fetched is not None
            found[number] = fetched[2]
        return found

    def check(self, *stages: int) -> None:
        """All of these stages is there once, in its place, and nothing else."""
        layout, found = self.layout, self.rows()
        for number, rows in found.items():
            offsets = [offset for offset, _ in rows]
            assert offsets == sorted(set(offsets))
            for _, value in rows:
                assert layout.partition_of(value.split(b":")[0]) == number
        values = [value for rows in found.values() for _, value in rows]
        assert sorted(values) == sorted(b"%s:%d" % (key, n) for key in KEYS for n in stages)
        self.node.check()


@pytest.mark.parametrize("growths", [[4], [3], [4, 9], [3, 4, 5, 12]])
def test_rows_go_where_their_keys_are_now(growths: list[int]):
    here = Grower()
    here.keyed(1)
    here.keyed(2)
    for partitions in growths:
        here.grow(partitions)
    here.keyed(3)
    assert here.publish("job", 1, 2, 3) == (1, "published")
    here.check(2, 3)
    assert here.publish("job", 2, 1) == (2, "published")
    here.check(1, 2, 3)
    assert here.stages() == 0
    splits = here.node.call(m.Family(here.topic, list(range(len(here.layout.born)))))
    for number, rows in here.rows().items():
        assert all(offset >= splits[number]["origin"] for offset, _ in rows)


@pytest.mark.parametrize("shards", [4, 16])
def test_nothing_waits_for_an_event_that_may_not_come(shards: int):
    """Rows that have to be passed on twice, and those of more shards than are read at a time."""
    node = Node(shards)
    here = Grower(node)
    here.topic = node.open("topic", "t", partitions=3 * MAX_READS)
    here.keyed(1)
    here.grow(20)
    here.grow(36)
    here.node.lazy = True
    here.publish("job", 1, 1)
    here.node.commit()
    here.node.read()
    while here.node.pending or here.node.reads:
        here.node.commit()
        here.node.read()
    assert not any(shard.outbox.parts for shard in here.node.fabric.kernel.shards)
    here.check(1)


def test_of_one_key_what_was_staged_first_is_first():
    here = Grower()
    for stage in (1, 2, 3):
        here.keyed(stage)
    here.grow(5)
    here.publish("job", 1, 3, 1)
    here.publish("job", 2, 2)
    for rows in here.rows().values():
        for key in KEYS:
            mine = [value[-1:] for _, value in rows if value.startswith(key + b":")]
            assert mine in ([], [b"3", b"1", b"2"])


def test_what_is_not_placed_by_its_keys_stays():
    here = Grower()
    moved = next(key for key in KEYS if Layout(2, [[0, 1]]).partition_of(key) == 2)
    here._staged(1, 0, [b"meant"], keys=[moved], generation=ANY_GENERATION)
    here._staged(1, 0, [b"no key"])
    here.grow(4)
    before = len(here.node.journal)
    here.publish("job", 1, 1)
    assert here.rows()[0] == [(0, b"meant"), (1, b"no key")]
    assert len(here.node.journal) - before < 5, "nothing was written again"
    assert here.stages() == 0


def test_one_that_nobody_can_read_stays_whole_where_it_is():
    here = Grower()
    here.keyed(1)
    here.grow(4)
    here.node.lazy = True
    here.publish("job", 1, 1)
    while here.node.reads or here.node.pending:
        for wanted in here.node.reads:
            here.node.fabric.was_read(wanted, None)
        here.node.reads.clear()
        here.node.tick()
        here.node.commit()
    found = here.rows()
    assert (found[2], found[3]) == ([], [])
    assert len(found[0]) + len(found[1]) == len(KEYS)
    assert here.stages() == 0
    here.node.check()
    again = here.after(here.node.crash())
    assert again.rows() == found


def late(here: Grower) -> Grower:
    """It is published, and has not been read."""
    here.keyed(1)
    here.grow(6)
    here.node.lazy = True
    assert here.publish("job", 1, 1) == (1, "published")
    here.node.commit()
    assert here.node.reads
    assert here.stages() == 2
    return here


def test_nothing_else_ends_it():
    here = late(Grower())
    assert here.node.call(m.DiscardStages(here.place(0), [name(1)])) == 0
    assert here.publish("job", 1, 1) == (1, "published")
    with pytest.raises(ConflictError):
        here.publish("other", 1, 1)
    with pytest.raises(ConflictError):
        here._staged(1, 0, [b"more"])
    here.staged[9] = {here.place(0): 1}
    assert here.publish("job", 0, 1, 9) == (1, "already")
    here.node.tick(MAX_STAGE_MS * 1000)
    here.node.commit()
    assert here.stages() == 2
    here.node.read()
    here.node.commit()
    here.node.read()
    here.check(1)
    assert here.stages() == 0


def test_a_deleted_topic_takes_it_along():
    here = late(Grower())
    here.node.call(m.Delete("topic", "t"))
    assert here.stages() == 0
    here.node.read()
    here.node.commit()
    here.node.check()
    assert not any(here.node.live.values())


def test_it_waits_while_the_outbox_is_full(monkeypatch: pytest.MonkeyPatch):
    here = Grower()
    here.keyed(1)
    here.grow(4)
    here.node.lazy = True
    here.node.send(Verb.CALL, m.pack(here.call("job", 1, 1)))
    with monkeypatch.context() as patch:
        patch.setattr("penstock.core.outbox.MAX_OUTSTANDING_PARTS", 0)
        here.node.commit()
        here.node.tick(2_000_000)
        assert not here.node.reads
        assert here.stages() == 2
    here.node.lazy = False
    here.node.tick(2_000_000)
    here.check(1)


def test_after_a_crash_at_any_record_all_of_it_is_there_or_nothing():
    here = Grower()
    here.keyed(1)
    here.grow(5)
    node = here.node
    node.lazy = True
    before, checkpoints = len(node.journal), [None, node.snapshot()]
    node.send(Verb.CALL, m.pack(here.call("job", 1, 1)))
    for _ in range(6):
        node.commit(1)
        checkpoints.append(node.snapshot())
    while node.pending or node.reads:
        node.commit()
        node.read()
        checkpoints.append(node.snapshot())
    here.check(1)
    outcomes = set()
    for taken in checkpoints:
        for keep in range(before, len(node.journal) + 1):
            if taken in checkpoints[2:] and keep < len(node.journal):
                continue
            again = here.after(node.crash(taken, keep))
            again.node.lazy = False
            again.node.tick(2_000_000)
            values = [row for rows in again.rows().values() for row in rows]
            outcomes.add(len(values))
            again.check(*([1] if values else []))
            assert again.publish("job", 1, 1) == (1, "published")
            again.check(1)
            assert again.stages() == 0
            assert state_of(again.node.crash().fabric) == state_of(again.node.fabric)
    assert outcomes == {0, len(KEYS)}


def test_a_stale_batch_is_not_staged_any_more():
    here = Grower()
    here.grow(4)
    with pytest.raises(StaleError):
        here._staged(1, 0, [b"a"], keys=[KEYS[0]], generation=0)
