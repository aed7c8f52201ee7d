"""Topics that grow: a model of keys over crashes, growths and resends; what comes too late."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.harness import Node, push_body

from penstock.core.outbox import OpenPartition, Packed
from penstock.core.records import Kind, Opened, read_forward, read_note
from penstock.errors import InvalidError, MovedError, StaleError
from penstock.wire import frames
from penstock.wire import messages as m
from penstock.wire.encode import encode_batch
from penstock.wire.frames import Flag, Verb
from penstock.wire.growth import ANY_GENERATION, Layout

KEYS = [b"k%d" % number for number in range(12)]
Rows = list[tuple[int, bytes]]


def info_of(node: Node, stream: int) -> m.StreamInfo:
    return node.fabric.kernel.streams[stream].info


def rows_of(node: Node, stream: int, partition: int) -> Rows:
    node.commit()
    request = node.fetch(stream, partition, 0, max_bytes=8 << 20)
    fetched = node.answer(request).fetched
    assert fetched is not None
    return fetched[2]


def key_for(layout: Layout, partition: int, generation: int | None = None) -> bytes:
    """A key that a partition has, in a generation or now."""
    at = layout.generation if generation is None else generation
    keys = (b"key-%d" % number for number in range(100_000))
    return next(key for key in keys if layout.partition_at(key, at) == partition)


# --- a model -------------------------------------------------------------------------------------


@dataclass
class Producer:
    """Publishes one message after the other, as a client does: an answer that is lost is asked for
    again, with the same bytes; after a growth the message is placed anew, under a new number."""

    identity: int
    info: m.StreamInfo
    sent: list[tuple[bytes, bytes]] = field(default_factory=list)  # key and value
    stored: set[bytes] = field(default_factory=set)
    next: dict[int, int] = field(default_factory=dict)  # by shard
    request: int | None = None
    body: bytes = b""
    shard: int = 0

    def publish(self, node: Node, key: bytes) -> None:
        if self.request is None:
            self.sent.append((key, b"%d:%d" % (self.identity, len(self.sent))))
            self._place(node)

    def _place(self, node: Node) -> None:
        key, value = self.sent[-1]
        partition = self.info.layout().partition_of(key)
        self.shard = self.info.placement[partition]
        batch = encode_batch(
            [value], keys=[key], timestamp_us=0, producer=self.identity,
            sequence=self.next.get(self.shard, 0), generation=self.info.generation,
        )  # fmt: skip
        self.body = push_body(self.info.id, self.shard, batch, partition)
        self.send(node)

    def send(self, node: Node) -> None:
        """Again, if it was sent before."""
        self.request = node.send(Verb.PUSH, self.body)

    def hear(self, node: Node) -> None:
        if self.request is None or not node.has_answer(self.request):
            return
        answer = node.answer(self.request)
        self.request = None
        if answer.flags & Flag.ERROR:
            assert isinstance(frames.read_error(answer.body), StaleError)
            found = node.call(m.Open("topic", "t", create=False))  # which waits until it is safe
            self.info = msgspec.convert(found, m.StreamInfo)
            self._place(node)
            return
        self.next[self.shard] = self.next.get(self.shard, 0) + 1
        self.stored.add(self.sent[-1][1])


class Run:
    """A node that grows a topic and crashes while producers publish."""

    def __init__(self) -> None:
        self.node = Node(4, lazy=True)
        self.stream = self.node.open("topic", "t", partitions=2)
        info = info_of(self.node, self.stream)
        self.producers = [Producer(100 + number, info) for number in range(2)]

    def hear(self) -> None:
        for producer in self.producers:
            producer.hear(self.node)

    def grow(self, more: int) -> None:
        count = len(info_of(self.node, self.stream).placement)
        self.node.send(Verb.CALL, m.pack(m.Grow(self.stream, count + more)))

    def crash(self, part: int, snapshot: bool) -> None:
        """Any part of what is not committed survives: `part` tenths of it."""
        unsafe = sum(1 for entry in self.node.pending if entry.kind)
        total = len(self.node.journal)
        keep = total - unsafe + unsafe * part // 10
        taken = self.node.snapshot() if snapshot and keep == total else None
        self.node = self.node.crash(taken, keep)
        for producer in self.producers:
            if producer.request is not None:
                producer.send(self.node)

    def check(self) -> None:
        self.node.lazy = False
        self.node.commit()
        for _ in range(3):
            self.hear()
            self.node.commit()
        info = info_of(self.node, self.stream)
        parts = [rows_of(self.node, self.stream, n) for n in range(len(info.placement))]
        stored = [value for rows in parts for _, value in rows]
        assert len(stored) == len(set(stored)), "stored twice"
        places = {value: offset for rows in parts for offset, value in rows}
        for producer in self.producers:
            assert producer.request is None
            assert set(stored) >= producer.stored, "lost"
            for key in KEYS:
                offsets = [places[v] for k, v in producer.sent if k == key]
                assert offsets == sorted(set(offsets)), "out of order"
        self._check_kin(info.layout())

    def _check_kin(self, layout: Layout) -> None:
        kin = self.node.call(m.Family(self.stream))
        for child, parent in enumerate(layout.parents):
            if parent is not None:
                splits = dict(map(tuple, kin[parent]["splits"]))
                assert kin[child]["origin"] == splits[layout.born[child]]
        assert sum(shard.outbox.parts for shard in self.node.fabric.kernel.shards) == 0


ACTIONS = st.one_of(
    st.tuples(st.just("publish"), st.integers(0, 1), st.sampled_from(KEYS)),
    st.tuples(st.just("commit"), st.integers(1, 6), st.none()),
    st.tuples(st.just("grow"), st.integers(1, 3), st.none()),
    st.tuples(st.just("crash"), st.integers(0, 10), st.booleans()),
)


@given(st.lists(ACTIONS, max_size=60))
def test_keys_keep_their_order_and_nothing_is_lost_or_doubled(actions: list[Any]):
    run = Run()
    for name, first, second in actions:
        if name == "publish":
            run.producers[first].publish(run.node, second)
        elif name == "commit":
            run.node.commit(first)
            run.hear()
        elif name == "grow":
            run.grow(first)
        else:
            run.crash(first, second)
    run.check()


# --- every step of a growth ----------------------------------------------------------------------


@pytest.mark.parametrize("snapshot", [False, True])
def test_a_growth_is_finished_after_a_crash_at_any_record(snapshot: bool):
    node = Node(4)
    stream = node.open("topic", "t", partitions=2)
    for partition in (0, 1):
        node.push(stream, [b"x"] * (partition + 1), partition=partition)
    before = len(node.journal)
    taken = node.snapshot() if snapshot else None
    node.call(m.Grow(stream, 6))
    whole = node.call(m.Family(stream))
    assert [each["origin"] for each in whole] == [0, 0, 1, 1, 2, 2]
    for keep in range(before + 1, len(node.journal) + 1):
        again = node.crash(taken, keep)
        assert again.call(m.Family(stream)) == whole
        assert sum(shard.outbox.parts for shard in again.fabric.kernel.shards) == 0
        last = again.crash(again.snapshot())
        assert last.call(m.Family(stream)) == whole
    assert len(info_of(node.crash(taken, before), stream).placement) == 2


def test_offsets_claims_and_states_of_children():
    node = Node(4)
    stream = node.open("topic", "t", partitions=1)
    node.push(stream, [b"a", b"b"])
    node.call(m.Grow(stream, 3))
    with pytest.raises(InvalidError):
        node.call(m.Commit(stream, "g", [(2, 3, 0)]))
    node.call(m.Commit(stream, "g", [(0, 2, 0), (2, 2, 0)], [b"", b"seed"]))
    claim = node.call(m.Claim(stream, 2, "g", "me", 1000))
    assert claim["token"] == 1
    status = node.call(m.Claims(stream, "g", [2], True))[0]
    assert (status["offset"], status["lag"], status["state"]) == (2, 0, b"seed")
    assert node.call(m.OffsetAt(stream, 0)) == [0, 2, 2]


# --- what comes too late -------------------------------------------------------------------------


def transact(node: Node, stream: int, *pushes: bytearray) -> None:
    """All to the first partition."""
    shard = info_of(node, stream).placement[0]
    parts = [m.TxnPush(stream, 0, shard, bytes(batch)) for batch in pushes]
    node.call(m.Transact(900, 0, 0, pushes=parts))


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_rows_of_a_transaction_go_on_to_where_their_keys_are(compression: str):
    node = Node(4)
    stream = node.open("topic", "t", partitions=1)
    node.call(m.Grow(stream, 2))
    node.call(m.Grow(stream, 4))
    layout = info_of(node, stream).layout()
    keys = [key_for(layout, number) for number in (3, 0, 2, 1)]
    batch = encode_batch(
        [*keys, b"nobody", *keys], keys=[*keys, None, *keys], timestamp_us=5,
        headers=[{"row": b"%d" % row} for row in range(9)], compression=compression,
    )  # fmt: skip
    transact(node, stream, batch)
    found = {number: [v for _, v in rows_of(node, stream, number)] for number in range(4)}
    assert found == {0: [keys[1], b"nobody", keys[1]], 1: [keys[3]] * 2, 2: [keys[2]] * 2,
                     3: [keys[0]] * 2}  # fmt: skip


def test_what_is_meant_for_a_partition_stays_there():
    node = Node(4)
    stream = node.open("topic", "t", partitions=1)
    node.call(m.Grow(stream, 2))
    key = key_for(info_of(node, stream).layout(), 1)
    plain = encode_batch([b"a"], timestamp_us=0)
    meant = encode_batch([b"b"], keys=[key], timestamp_us=0, generation=ANY_GENERATION)
    transact(node, stream, plain, meant)
    assert [value for _, value in rows_of(node, stream, 0)] == [b"a", b"b"]


def test_a_transaction_that_is_cut_off_is_split_once():
    for keep_more in range(12):
        node = Node(4, lazy=True)
        stream = node.open("topic", "t", partitions=1)
        node.call(m.Grow(stream, 3))
        layout = info_of(node, stream).layout()
        keys = [key_for(layout, number) for number in range(3)]
        before = len(node.journal)
        batch = encode_batch(keys, keys=keys, timestamp_us=0)
        part = m.TxnPush(stream, 0, info_of(node, stream).placement[0], bytes(batch))
        node.send(Verb.CALL, m.pack(m.Transact(900, 0, 1, pushes=[part])))
        total = len(node.journal)
        again = node.crash(None, min(before + keep_more, total))
        again.lazy = False
        again.commit()
        found = [rows_of(again, stream, number) for number in range(3)]
        wanted = [[] if not keep_more else [(0, key)] for key in keys]
        assert found == wanted


def test_what_is_passed_on_does_not_overtake_the_rest_of_its_transaction():
    """A shard knows of each home how far it has come: were rows passed on from there first, a crash
    before the next part would leave that out."""
    for keep_more in range(1, 14):
        node = Node(4, lazy=True)
        stream, queue = node.open("topic", "t", partitions=1), node.open("queue", "q")
        node.call(m.Grow(stream, 3))
        info = info_of(node, stream)
        keys = [key_for(info.layout(), number) for number in range(3)]
        before = len(node.journal)
        home, *others = info.placement
        late = bytes(encode_batch(keys, keys=keys, timestamp_us=0))
        plain = bytes(encode_batch([b"v"], timestamp_us=0))
        parts = [m.TxnPush(stream, 0, home, late)]
        parts += [m.TxnPush(queue, 0, shard, plain) for shard in others]
        node.send(Verb.CALL, m.pack(m.Transact(900, 0, home, pushes=parts)))
        again = node.crash(None, min(before + keep_more, len(node.journal)))
        again.lazy = False
        again.commit()
        assert [rows_of(again, stream, number) for number in range(3)] == [[(0, k)] for k in keys]
        assert [got.value for got in again.popped(queue, 9)] == [b"v"] * len(others)


def test_a_partition_that_is_not_open_yet():
    node = Node(4)
    stream = node.open("topic", "t", partitions=1)
    node.push(stream, [b"a"])
    node.fabric.control.on_defined = lambda _: None  # nobody seals it
    node.call(m.Grow(stream, 2))
    request = node.push(stream, [b"b"], partition=1, generation=1)
    with pytest.raises(MovedError):
        node.receipt(request)
    empty = node.answer(node.fetch(stream, 1, 0)).fetched
    assert empty == (0, 0, [])
    waiting = node.fetch(stream, 1, 0, wait_ms=60_000)
    assert [each["origin"] for each in node.call(m.Family(stream))] == [0, None]
    node.fabric.growing.defined(stream)
    node._carry_out()
    assert node.answer(waiting).fetched == (1, 1, [])
    assert node.receipt(node.push(stream, [b"b"], partition=1, generation=1)).base == 1


def test_what_others_bring_waits_until_the_partition_is_open():
    node = Node(4)
    stream = node.open("topic", "t", partitions=1)
    shard = node.fabric.kernel.shards[(info_of(node, stream).placement[0] + 1) % 4]
    node.fabric.control.on_defined = lambda _: None  # nobody seals it
    node.call(m.Grow(stream, 2))
    batch = bytes(encode_batch([b"v"], keys=[b"k"], timestamp_us=0, generation=1))
    push = m.TxnPush(stream, 1, shard.id, batch)
    packed = [_packed(3, 0, 3, push)]
    told: list[bool] = []
    node.fabric.forwards.take(2, shard, packed, told.append)
    node._carry_out()
    assert told == [False]
    opening = _packed(2, 0, 5, OpenPartition(stream, 1, 10))
    node.fabric.forwards.take(2, shard, [opening, *packed], told.append)
    node._carry_out()
    assert told == [False, True]
    assert rows_of(node, stream, 1) == [(10, b"v")]


@pytest.mark.parametrize("shards", [1, 2, 3, 4, 7])
def test_each_partition_is_opened_once_however_many_growths_come_together(shards: int):
    """To open one may be to seal it, and to open its children, and so on, back to where the rest of
    the first ones are still to be opened."""
    grown, node = Node(shards), Node(shards)
    stream = grown.open("topic", "t", partitions=1)
    for partitions in (7, 20, 60):
        grown.call(m.Grow(stream, partitions))
    node.fabric.control.adopt(info_of(grown, stream))
    node._carry_out()
    carried_out = [each for each in node.journal if each.kind & Kind.FORWARDED]
    notes = [read_note(read_forward(each.meta)[1]) for each in carried_out]
    opened = [note.partition for note in notes if isinstance(note, Opened)]
    assert sorted(opened) == list(range(1, 60))


def _packed(number: int, index: int, kind: int, part: Any) -> Any:
    return Packed(number, index, kind, msgspec.msgpack.encode(part))
