"""Whatever a connection sends: an answer, an error or a closed connection; never an exception."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.canonical import state_of
from tests.core.harness import Node, push_body

from penstock.errors import InvalidError, PenstockError
from penstock.wire import frames
from penstock.wire import messages as m
from penstock.wire.batch import checksum_of
from penstock.wire.encode import encode_batch
from penstock.wire.frames import Settle, Verb

EXTREMES = st.sampled_from([0, 1, 2, 3, 5, 255, 1 << 31, (1 << 32) - 1])
WIDE = st.sampled_from([0, 1, 2, 15 << 56, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
SIGNED = st.sampled_from([-(1 << 63), -1, 0, 1, 2, 1 << 31, (1 << 63) - 1, (1 << 64) - 1])


def busy_node() -> Node:
    """A node with one stream of every kind, numbered 1 to 5, and something in each."""
    node = Node(2)
    plain = node.open("queue", "plain")
    keyed = node.open("queue", "keyed", ordered="key")
    node.open("topic", "topic", partitions=2)
    table = node.open("table", "table")
    node.open("topic", "latest", partitions=1, keep="latest")
    node.push(plain, [b"a", b"b", b"c"])
    node.push(keyed, [b"a", b"b"], keys=[b"k", b"k"])
    node.push(3, [b"a", b"b"])
    node.call(m.Put(table, b"k", b"v"))
    node.popped(plain, 2)
    return node


def check(node: Node) -> None:
    """The node is alive and whole, and so is the one that comes up after it."""
    node.tick(1_000_000)
    state_of(node.fabric)
    node.check()
    again = node.crash(node.snapshot())
    again.tick(0)
    assert state_of(again.fabric, timed=False) == state_of(node.fabric, timed=False)


@given(frames_sent=st.lists(st.tuples(st.integers(0, 12), st.binary(max_size=40)), max_size=5))
def test_random_bodies(frames_sent: list[tuple[int, bytes]]) -> None:
    node = busy_node()
    for verb, body in frames_sent:
        node.send(verb, body)
    check(node)


@given(data=st.data())
def test_hot_verbs_with_extreme_numbers(data: Any) -> None:
    node = busy_node()
    for _ in range(4):
        verb = data.draw(st.sampled_from([Verb.POP, Verb.SUBSCRIBE, Verb.FETCH, Verb.SETTLE]))
        stream = data.draw(st.integers(1, 6))
        if verb == Verb.FETCH:
            body = frames.FETCH.pack(
                stream, data.draw(EXTREMES), data.draw(WIDE), data.draw(EXTREMES),
                data.draw(EXTREMES),
            )  # fmt: skip
        elif verb == Verb.SETTLE:
            item = frames.SettleItem(
                data.draw(st.integers(0, 6)), data.draw(st.integers(0, 2)), data.draw(EXTREMES),
                data.draw(st.integers(0, 3)), data.draw(WIDE), data.draw(WIDE),
            )  # fmt: skip
            if 0 < item.count < 64:
                item = item._replace(mask=data.draw(st.integers(0, (1 << item.count) - 1)))
            body = frames.pack_settle(stream, [item] * data.draw(st.integers(0, 2)))
        else:
            body = frames.POP.pack(stream, *[data.draw(EXTREMES) for _ in range(5)])
        node.send(verb, body)
    check(node)


CALLS: list[type[Any]] = [
    m.Open, m.Configure, m.Delete, m.Streams, m.Stats, m.StreamStats, m.Purge, m.Redrive, m.Release,
    m.Producer, m.Offsets, m.OffsetAt, m.Commit, m.Committed, m.Claim, m.Unclaim, m.Renew,
    m.Claims, m.Put, m.Get, m.Remove, m.Scan, m.Watch, m.SessionOpen, m.SessionKeep,
    m.SessionClose, m.Transact, m.Held,
]  # fmt: skip


def values_for(kind: Any) -> st.SearchStrategy[Any]:
    """Awkward values of a field's type."""
    shown = str(kind)
    if "TxnSettle" in shown:
        parts = [*[SIGNED] * 4, SIGNED | st.sampled_from([1, 4]), st.binary(max_size=2)]
        return st.lists(st.builds(m.TxnSettle, st.integers(1, 6), *parts), max_size=2)
    if "TxnHold" in shown:
        batch = bytes(encode_batch([b"x"], timestamp_us=0))
        pairs = st.lists(st.tuples(SIGNED | st.integers(1, 6), st.binary(max_size=2)), max_size=2)
        held = [st.integers(1, 6), st.binary(max_size=2), st.sampled_from([b"", batch]), pairs]
        instead = [SIGNED | st.just(0), values_for("TxnWrite"), values_for("TxnPush")]
        return st.lists(st.builds(m.TxnHold, *held, *instead), max_size=2)
    if "TxnPush" in shown:
        batch = bytes(encode_batch([b"x"], timestamp_us=0))
        place = [st.integers(1, 6), SIGNED, SIGNED]
        return st.lists(st.builds(m.TxnPush, *place, st.sampled_from([b"", batch])), max_size=2)
    if "TxnCommit" in shown:
        group = st.sampled_from(["", "g"])
        parts = [st.integers(1, 6), SIGNED, group, SIGNED, SIGNED, st.binary(max_size=2)]
        return st.lists(st.builds(m.TxnCommit, *parts), max_size=2)
    if "TxnWrite" in shown:
        parts = [st.binary(max_size=2), st.none() | st.binary(max_size=2), st.none() | SIGNED]
        marked = [st.integers(1, 6), *parts, SIGNED, SIGNED | st.just(0)]
        return st.lists(st.builds(m.TxnWrite, *marked), max_size=2)
    if "tuple[int, int, int]" in shown:
        return st.lists(st.tuples(SIGNED, SIGNED, SIGNED), max_size=2)
    if "tuple[int, int]" in shown:
        return st.lists(st.tuples(SIGNED, SIGNED), max_size=2)
    if "dict" in shown:
        names = st.sampled_from(["lease_ms", "ttl_ms", "partitions", "durability", "nosuch"])
        return st.dictionaries(names, SIGNED | st.text(max_size=3) | st.none(), max_size=2)
    if "list" in shown:
        return st.lists(st.binary(max_size=2), max_size=2)
    if "bool" in shown:
        return st.booleans()
    if "bytes" in shown:
        return st.binary(max_size=2)
    if "str" in shown:
        return st.sampled_from(["", "queue", "topic", "table", "plain", "g", "é" * 150])
    return SIGNED


@settings(max_examples=200)
@given(data=st.data())
def test_calls_with_extreme_values(data: Any) -> None:
    node = busy_node()
    for _ in range(3):
        kind = data.draw(st.sampled_from(CALLS))
        fields = {}
        for field in msgspec.structs.fields(kind):
            small = field.name == "stream" and data.draw(st.booleans())
            strategy = st.integers(1, 6) if small else values_for(field.type)
            fields[field.name] = data.draw(strategy)
        try:
            node.call(kind(**fields))
        except PenstockError:
            continue
    check(node)


@settings(max_examples=100)
@given(data=st.data(), stream=st.sampled_from([1, 2, 3, 5]), packed=st.booleans())
def test_hostile_batches(data: Any, stream: int, packed: bool) -> None:
    """Any byte changed, under a checksum that holds: stored or refused, and readable by a fold."""
    batch = encode_batch(
        [b"value" * 20] * 4, keys=[b"k1", b"k2", b"k1", b"k3"], timestamp_us=1,
        compression="zstd" if packed else "none",
    )  # fmt: skip
    for _ in range(data.draw(st.integers(0, 3))):
        batch[data.draw(st.integers(40, len(batch) - 1))] = data.draw(st.integers(0, 255))
    batch[32:40] = checksum_of(batch).to_bytes(8, "little")
    extra = data.draw(st.none() | st.builds(frames.PushExtra, st.binary(max_size=3), st.booleans()))
    node = busy_node()
    node.send(Verb.PUSH, push_body(stream, data.draw(st.integers(0, 3)), batch, extra=extra))
    check(node)


def test_numbers_that_would_not_fit_a_record_are_bounded() -> None:
    node = busy_node()
    got = node.popped(1)[0]
    assert node.ack(1, got, Settle.NACK, (1 << 64) - 1).accepted == 1
    for call in (
        m.Put(4, b"k", b"v", ttl_ms=1 << 62),
        m.Put(4, b"k", b"v", ttl_ms=-1),
        m.Configure(1, {"ttl_ms": 1 << 62}),
        m.Configure(1, {"lease_ms": 1 << 62}),
        m.Commit(3, "g", [(-1, 0, 0)]),
    ):
        with pytest.raises(InvalidError):
            node.call(call)
    check(node)
