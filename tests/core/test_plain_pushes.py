"""Plain pushes take fewer steps: every answer, every record and all state must be the same."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.harness import Node

from penstock.core import fabric
from penstock.wire import messages as m
from penstock.wire import plain
from penstock.wire.frames import Settle, SettleItem, Verb, pack_settle

pytestmark = pytest.mark.skipif(
    not plain.COMPILED, reason="the compiled module was not built, or PENSTOCK_PURE is set"
)
STREAMS = ["plain", "bounded", "ordered", "topic", "kept", "unknown"]
PUSHES = st.fixed_dictionaries(
    {
        "stream": st.sampled_from(["plain", "plain", "kept", "bounded", *STREAMS]),
        "shard": st.sampled_from([0] * 8 + [1, 4]),  # of four
        "producer": st.sampled_from([1] * 8 + [0, 2]),
        "ahead": st.sampled_from([0] * 6 + [1, -1]),
        "instance": st.sampled_from([0] * 6 + [1]),
        "values": st.lists(st.binary(max_size=9), min_size=1, max_size=3),
        "durability": st.sampled_from([0, 0, 0, 2]),
        "terms": st.sampled_from([{}, {}, {}, {}, {"priority": 3}, {"ttl_ms": 5}, {"due_us": -10}]),
    }
)
STEPS = st.lists(
    PUSHES.map(lambda push: ("push", push))
    | PUSHES.map(lambda push: ("push", push))
    | st.sampled_from(STREAMS[:3]).map(lambda name: ("pop", name))
    | st.sampled_from(STREAMS[:3]).map(lambda name: ("subscribe", name))
    | st.just(("tick", 20))
    | st.sampled_from(STREAMS).map(lambda name: ("delete", name))
    | st.just(("ack", None)),
    min_size=10,
    max_size=40,
)


class Driver:
    """Runs steps on a node. Sequences are those that a producer would use, or beside them."""

    def __init__(self) -> None:
        self.node = Node()
        self.ids = {
            "plain": self.node.open("queue", "plain"),
            "bounded": self.node.open("queue", "bounded", max_messages=2),
            "ordered": self.node.open("queue", "ordered", ordered="queue"),
            "topic": self.node.open("topic", "topic", partitions=4),
            "kept": self.node.open("queue", "kept", durability="memory"),
            "unknown": 99,
        }
        self.sequences: dict[tuple[int, int], int] = {}

    def push(self, push: dict[str, Any]) -> None:
        key = push["producer"], push["shard"]
        sequence = max(self.sequences.get(key, 0) + push["ahead"], 0)
        request = self.node.push(
            self.ids[push["stream"]], push["values"], push["shard"],
            partition=push["shard"] if push["stream"] == "topic" else 0,
            producer=push["producer"], sequence=sequence, instance=push["instance"],
            durability=push["durability"], **push["terms"],
        )  # fmt: skip
        answer = next(each for each in self.node.inbox if each.request == request)
        if len(answer.body) == 16 and not push["ahead"]:  # a receipt
            self.sequences[key] = sequence + len(push["values"])

    def step(self, what: str, given: Any) -> None:
        node = self.node
        if what == "push":
            self.push(given)
        elif what == "pop":
            node.pop(self.ids[given], 2, wait_ms=1)
        elif what == "subscribe":
            node.pop(self.ids[given], 3, verb=Verb.SUBSCRIBE)
        elif what == "tick":
            node.tick(given)
        elif what == "delete":
            node.call(m.Delete("topic" if given == "topic" else "queue", given))
        else:
            for answer in [each for each in node.inbox if each.messages][:1]:
                got = answer.messages[0]
                item = SettleItem(Settle.ACK, got.shard, 1, got.grant, got.position, 0)
                node.send(Verb.SETTLE, pack_settle(self.ids["plain"], [item]))

    def state(self) -> dict[str, bytes]:
        return self.node.snapshot()


@settings(deadline=None, max_examples=250)
@given(STEPS)
def test_nothing_differs_from_the_way_of_all_others(steps: list[tuple[str, Any]]) -> None:
    drivers: list[Driver] = []
    for read in (plain.read_push, lambda body: None):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fabric, "read_push", read)
            driver = Driver()
            for what, given_ in steps:
                driver.step(what, given_)
            drivers.append(driver)
    one, other = drivers
    assert one.node.inbox == other.node.inbox
    assert one.node.journal == other.node.journal
    assert one.node.closed == other.node.closed
    assert one.state() == other.state()
