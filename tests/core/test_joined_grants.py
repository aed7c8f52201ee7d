"""Neighbouring batches of a shard that one pop gets are one grant, and each still its own."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.canonical import state_of
from tests.core.harness import Got, Node

from penstock.core.index import BatchIndex
from penstock.core.liveness import Liveness
from penstock.core.records import Kind
from penstock.core.runs import full
from penstock.wire.frames import PopMode, Settle, SettleItem


def joined(sizes: tuple[int, ...] = (3, 2, 4), **options: Any) -> tuple[Node, int]:
    """A queue with batches of these sizes in shard 0."""
    node = Node()
    queue = node.open("queue", "q", **options)
    number = 0
    for size in sizes:
        node.push(queue, [b"%d" % each for each in range(number, number + size)])
        number += size
    return node, queue


def item(got: list[Got], mask: int, op: int = Settle.ACK, arg: int = 0) -> SettleItem:
    """One settlement of messages of a grant."""
    first = got[0]
    return SettleItem(op, first.shard, mask.bit_length(), first.grant, first.position, arg, mask)


def values(got: list[Got]) -> list[int]:
    return [int(one.value) for one in got]


def test_neighbours_are_one_grant() -> None:
    node, queue = joined()
    before = len(node.journal)
    got = node.popped(queue, 9)
    assert values(got) == list(range(9))
    assert len({one.grant for one in got}) == 1
    assert len(node.journal) == before + 1
    assert node.settle(queue, [item(got, full(9))]) == (9, {})
    assert len(node.journal) == before + 2
    assert not any(node.live.values())
    node.check()


def test_the_last_may_be_cut_and_the_rest_goes_on_with_others() -> None:
    node, queue = joined((3, 2, 4, 2))
    first, second = node.popped(queue, 7), node.popped(queue, 9)
    assert values(first) == list(range(7))
    assert values(second) == [7, 8, 9, 10]
    assert len({one.grant for one in second}) == 1
    for got in (second, first):
        for one in got:
            assert node.ack(queue, one) == (1, {})
    assert not any(node.live.values())


def test_what_is_nacked_comes_back_by_its_batch() -> None:
    node, queue = joined()
    got = node.popped(queue, 9)
    assert node.settle(queue, [item(got, 0b011101101)]) == (6, {})
    assert node.settle(queue, [item(got, 0b100010010, Settle.NACK)]) == (3, {})
    again = node.popped(queue, 9)
    assert values(again) == [1, 4, 8]
    assert [one.deliveries for one in again] == [2, 2, 2]
    assert len({one.grant for one in again}) == 3
    node.check()


def test_a_lease_that_runs_out_gives_everything_back() -> None:
    node, queue = joined()
    got = node.popped(queue, 9, lease_ms=1000)
    node.settle(queue, [item(got, 0b000000111)])
    node.tick(1_000_000)
    assert values(node.popped(queue, 9)) == [3, 4, 5, 6, 7, 8]
    assert node.settle(queue, [item(got, full(9))]).refused
    assert node.settle(queue, [item(got, 0b111)]) == (3, {})  # a resend is known


def test_one_batch_cannot_end_the_lease_of_the_others() -> None:
    node, queue = joined()
    got = node.popped(queue, 9, lease_ms=5000)
    assert node.settle(queue, [item(got, 0b111, Settle.EXTEND, 1000)]) == (3, {})
    node.tick(1_000_000)
    assert node.popped(queue, 9) == []
    assert node.settle(queue, [item(got, full(9))]) == (9, {})


@pytest.mark.parametrize("options", [{"ordered": "queue"}, {"ordered": "key"}])
def test_what_keeps_an_order_is_not_joined(options: dict[str, Any]) -> None:
    node = Node()
    queue = node.open("queue", "q", **options)
    shard = node.fabric.kernel.shard_of(b"q" if options["ordered"] == "queue" else b"k").id
    for number in range(3):
        terms: dict[str, Any] = {}
        if options["ordered"] == "key":
            terms["keys"] = [b"k", b"k"]
        node.push(queue, [b"%d" % number, b"%d" % number], shard, **terms)
    got = node.popped(queue, 9)
    assert len({one.grant for one in got}) * (2 if options["ordered"] == "queue" else 1) == len(got)


def test_only_what_is_next_in_all_shards_is_joined() -> None:
    node = Node()
    queue = node.open("queue", "q")
    for number, shard in enumerate((0, 0, 1, 0, 0)):
        node.tick(10)
        node.push(queue, [b"%d" % number] * 2, shard)
    got = node.popped(queue, 20)
    assert values(got) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert len({(one.shard, one.grant) for one in got}) == 3


def test_what_came_back_goes_first_and_by_itself() -> None:
    node, queue = joined((2, 2))
    got = node.popped(queue, 2)
    node.settle(queue, [item(got, 0b11, Settle.NACK)])
    again = node.popped(queue, 9)
    assert values(again) == [0, 1, 2, 3]
    assert [one.deliveries for one in again] == [2, 2, 1, 1]
    assert len({one.grant for one in again}) == 2


def test_in_a_cluster_every_batch_is_a_grant() -> None:
    """Nodes of an older release could not fold the others."""
    node, queue = joined()
    node.fabric.kernel.shared = True
    assert len({one.grant for one in node.popped(queue, 9)}) == 3


def test_leased_messages_are_seen_when_the_first_of_them_are_gone() -> None:
    for sizes in ((3, 2, 4), (1,) * 9):
        node, queue = joined(sizes)
        got = node.popped(queue, 9)
        node.settle(queue, [item(got, 0b000001111)])
        assert values(node.popped(queue, 9, mode=PopMode.PEEK_LEASED)) == [4, 5, 6, 7, 8]


def test_the_cleaner_keeps_what_is_leased_of_each_batch() -> None:
    node, queue = joined()
    got = node.popped(queue, 9)
    node.settle(queue, [item(got, 0b100101111)])
    kernel = node.fabric.kernel
    index = next(iter(kernel.shards[0].queues[queue].lanes.values())).index
    records = [each for each in node.journal if each.kind == Kind.PUSH]
    masks = []
    for record in records:
        liveness = Liveness(kernel)
        stored = liveness.at(0, record.kind, record.meta)
        masks.append(stored and liveness.live_mask(0, record.kind, record.meta, stored))
    assert masks == [None, 0b10, 0b0110]
    assert len(index) == 2


@given(data=st.data())
def test_any_life_is_folded_to_the_same_state(data: Any) -> None:
    sizes = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=8)))
    node, queue = joined(sizes, max_deliveries=0)
    held: list[list[Got]] = []
    for _ in range(data.draw(st.integers(1, 8))):
        if not held or data.draw(st.booleans()):
            got = node.popped(queue, data.draw(st.integers(1, 12)))
            grants = dict.fromkeys(one.grant for one in got)
            held += [[one for one in got if one.grant == each] for each in grants]
            continue
        chosen = data.draw(st.sampled_from(held))
        held.remove(chosen)
        first = chosen[0].position
        picked = [one for one in chosen if data.draw(st.booleans())]
        mask = sum(1 << one.position - first for one in picked)
        if mask:
            op = data.draw(st.sampled_from([Settle.ACK, Settle.NACK, Settle.EXTEND]))
            settled = node.settle(queue, [item(chosen, mask, op, 60_000 * (op == Settle.EXTEND))])
            assert settled.accepted == len(picked)
    node.check()
    assert state_of(node.crash().fabric) == state_of(node.fabric)
    assert state_of(node.crash(node.snapshot()).fabric) == state_of(node.fabric)


@given(
    spans=st.lists(st.integers(2, 5), min_size=2, max_size=6),
    masks=st.lists(st.integers(0, 1 << 30), min_size=1, max_size=4),
)
def test_an_index_frees_every_byte_of_neighbours_once(spans: list[int], masks: list[int]) -> None:
    index, base = BatchIndex(), 100
    for number, span in enumerate(spans):
        index.append(base, span, 1000 + number, 64 * span + number, 5)
        base += span
    left, freed = full(base - 100), dict.fromkeys(range(1000, 1000 + len(spans)), 0)
    for mask in [*masks, left]:
        if bits := mask & left:
            shift = (bits & -bits).bit_length() - 1
            for place, size in index.finish_run(100 + shift, bits >> shift, bits.bit_count()):
                freed[place] += size
            left &= ~bits
    assert list(freed.values()) == [64 * span + number for number, span in enumerate(spans)]
    assert len(index) == 0
