"""Held messages of a whole Fabric against a simple model, with crashes at any record."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from tests.core.canonical import state_of
from tests.core.edge_model import Model
from tests.core.harness import Node, Snapshot

from penstock.core import edges, forwards, holds
from penstock.core.table import Cell, TableShard
from penstock.errors import (
    ConflictError,
    InvalidError,
    LimitError,
    NotFoundError,
    TooLargeError,
)
from penstock.wire import messages as m
from penstock.wire.encode import encode_batch
from penstock.wire.holds import Policy

NAMES = [b"n%d" % number for number in range(8)]
NAME = st.sampled_from(NAMES)
KEYS = st.sets(st.sampled_from([*NAMES, b"x", b"y"]), max_size=4)
POLICY = st.sampled_from(list(Policy))
MARK = st.sampled_from([0, 0, 0, 1, 2])


class Graph:
    """A node with a queue and a table, and a producer of transactions."""

    def __init__(self, node: Node | None = None, **options: Any) -> None:
        self.node = node or Node(3)
        self.queue = self.node.open("queue", "q", **options)
        self.table = self.node.open("table", "t")
        self.producer = 99
        self.sequence = 0

    def part(
        self, name: bytes, after: set[bytes], policy: int = 0, ttl_ms: int = 0
    ) -> m.TxnHold:
        """A message that falls back to an entry under its own id."""
        batch = bytes(encode_batch([name], timestamp_us=1, ttl_ms=ttl_ms))
        mark = 2 if policy == Policy.SKIP else 1
        instead = m.TxnWrite(self.table, name, b"fell back", mark=mark)
        after_keys = [(self.table, key) for key in sorted(after)]
        return m.TxnHold(self.queue, name, batch, after_keys, policy, [instead])

    def transact(self, **parts: Any) -> Any:
        call = m.Transact(self.producer, self.sequence, 0, **parts)
        found = self.node.call(call)
        self.sequence += 1
        return found

    def hold(self, *parts: m.TxnHold) -> None:
        self.transact(holds=list(parts))

    def put(self, key: bytes, mark: int = 0) -> None:
        self.node.call(m.Put(self.table, key, b"v", mark=mark))

    def ready(self) -> set[bytes]:
        """What is popped, each once."""
        found = [got.value for got in self.node.popped(self.queue, 100)]
        assert len(found) == len(set(found))
        return set(found)

    def held(self, name: bytes) -> set[bytes] | None:
        found = self.node.call(m.Held(self.queue, name))
        return None if found is None else {key for _, key in found["edges"]}


class EdgeMachine(RuleBasedStateMachine):
    """Everything is committed at once, or, while it is kept back, not at all."""

    @initialize()
    def start(self) -> None:
        self.graph = Graph()
        self.model = Model()
        self.popped: set[bytes] = set()
        self.snapshot: Snapshot = {}

    @property
    def node(self) -> Node:
        return self.graph.node

    @rule(names=st.lists(NAME, min_size=1, max_size=3, unique=True), after=KEYS, policy=POLICY)
    def hold(self, names: list[bytes], after: set[bytes], policy: int) -> None:
        if after & self.model.marks.keys():
            names = names[:1]  # what one falls back to may overtake what another sees, or not
        parts = [self.graph.part(name, after - {name}, policy) for name in names]
        self.graph.hold(*parts)
        for name in names:
            self.model.hold(name, after - {name}, policy)

    @rule(key=st.sampled_from([*NAMES, b"x", b"y"]), mark=MARK, transaction=st.booleans())
    def put(self, key: bytes, mark: int, transaction: bool) -> None:
        if transaction:
            self.graph.transact(writes=[m.TxnWrite(self.graph.table, key, b"v", mark=mark)])
        else:
            self.graph.put(key, mark)
        self.model.put(key, mark)

    @rule(key=st.sampled_from([*NAMES, b"x", b"y"]))
    def remove(self, key: bytes) -> None:
        self.node.call(m.Remove(self.graph.table, key))
        self.model.remove(key)

    @rule(name=NAME)
    def release(self, name: bytes) -> None:
        (said,) = self.node.call(m.Release(self.graph.queue, [name]))
        assert (said == "released") == (name in self.model.waiting)
        if self.model.waiting.pop(name, None) is not None:
            self.model.ready.add(name)

    @rule()
    def pop(self) -> None:
        found = self.graph.ready()
        assert not found & self.popped, "a message is ready once"
        self.popped |= found
        assert self.popped == self.model.ready

    @rule(shards=st.sets(st.integers(0, 2)))
    def take_snapshot(self, shards: set[int]) -> None:
        self.snapshot |= self.node.snapshot(sorted(shards))

    @rule()
    def crash(self) -> None:
        before = state_of(self.node.fabric)
        self.graph.node = self.node.crash(self.snapshot)
        assert state_of(self.node.fabric) == before

    @invariant()
    def it_is_as_the_model_says(self) -> None:
        for name in NAMES:
            assert self.graph.held(name) == self.model.waiting.get(name)
            found = self.node.call(m.Get(self.graph.table, name))
            assert (None if found is None else found.get("mark", 0)) == self.model.marks.get(name)
        figures = self.node.call(m.StreamStats(self.graph.queue))
        assert figures["held"] == len(self.model.waiting)
        assert figures["messages"] == len(self.model.waiting) + len(self.model.ready)
        assert all(shard.outbox.parts == 0 for shard in self.node.fabric.kernel.shards)
        self.node.check()


def test_edges_against_a_model() -> None:
    run_state_machine_as_test(
        EdgeMachine,
        settings=settings(
            max_examples=200, stateful_step_count=30,
            suppress_health_check=[HealthCheck.too_slow], deadline=None,
        ),
    )  # fmt: skip


ROOTS = [b"r%d" % number for number in range(4)]


@st.composite
def graphs(draw: Any) -> tuple[dict[bytes, int], dict[bytes, tuple[set[bytes], int]], list[bytes]]:
    """Marks of roots, what every message waits for, and in which order all of it comes: the same
    in any order, as nothing is written with two marks."""
    marks = {root: draw(MARK) for root in ROOTS}
    messages = {
        name: (draw(st.sets(st.sampled_from([*ROOTS, *NAMES[:at]]), max_size=4)), draw(POLICY))
        for at, name in enumerate(NAMES)
    }
    return marks, messages, draw(st.lists(st.sampled_from([*ROOTS, *NAMES]), max_size=16))


def happen(graph: Graph, marks: Any, messages: Any, order: list[bytes]) -> Snapshot:
    """Sends all of it; a snapshot from the middle."""
    taken: Snapshot = {}
    for at, name in enumerate(order):
        if name in marks:
            graph.put(name, marks[name])
        else:
            graph.hold(graph.part(name, *messages[name]))
        if at == len(order) // 2:
            taken = graph.node.snapshot()
    return taken


@settings(max_examples=200, deadline=None)
@given(graphs(), st.booleans(), st.data())
def test_after_a_crash_at_any_record_nothing_is_lost_or_doubled(
    drawn: Any, whole: bool, data: Any
) -> None:
    """What may not have been answered is sent again; then all is as if there had been no crash."""
    marks, messages, order = drawn
    model = Model()
    for name in order:
        if name in marks:
            model.put(name, marks[name])
        else:
            model.hold(name, *messages[name])
    graph = Graph(Node(3))
    first = len(graph.node.journal)
    taken = happen(graph, marks, messages, order)
    last = len(graph.node.journal)
    if whole:
        graph.node = graph.node.crash(taken)
    else:
        graph.node = graph.node.crash(None, data.draw(st.integers(first, last), label="records"))
    graph.producer += 1
    graph.sequence = 0
    happen(graph, marks, messages, order)
    assert graph.ready() == model.ready
    assert {name: graph.held(name) for name in model.waiting} == model.waiting
    assert graph.node.call(m.StreamStats(graph.queue))["held"] == len(model.waiting)
    found = graph.node.call(m.Scan(graph.table))
    assert {each["key"]: each.get("mark", 0) for each in found} == model.marks
    graph.node.check()


# --- one thing at a time -----------------------------------------------------------------------


@pytest.fixture
def graph() -> Graph:
    return Graph()


def test_a_message_that_is_not_committed_can_be_met_before_it_is(graph: Graph) -> None:
    graph.node.lazy = True
    graph.put(b"x")
    before = len(graph.node.pending)
    txn = m.Transact(99, 0, 0, holds=[graph.part(b"n0", {b"x"}), graph.part(b"n1", {b"y"})])
    request = graph.node.send(9, m.pack(txn))
    assert len(graph.node.pending) > before
    assert not graph.node.has_answer(request)
    again = graph.node.crash(graph.node.snapshot())
    for node in (graph.node, again):
        node.commit()
        assert [got.value for got in node.popped(graph.queue, 9)] == [b"n0"]


def test_a_failure_ends_a_message_that_is_not_committed(graph: Graph) -> None:
    graph.node.lazy = True
    graph.put(b"x", mark=1)
    graph.node.send(9, m.pack(m.Transact(99, 0, 0, holds=[graph.part(b"n0", {b"x", b"y"})])))
    taken = graph.node.snapshot()
    for node in (graph.node.crash(taken), graph.node.crash(), graph.node):
        node.commit()
        assert node.popped(graph.queue, 9) == []
        assert node.call(m.Get(graph.table, b"n0"))["mark"] == 1
        assert node.call(m.StreamStats(graph.queue))["messages"] == 0
        node.check()


def test_time_to_live_falls_back_whatever_the_policy(graph: Graph) -> None:
    graph.hold(graph.part(b"n0", {b"x"}, Policy.RUN, ttl_ms=100), graph.part(b"n1", {b"n0"}))
    graph.node.tick(100_000)
    graph.node.commit()
    for node in (graph.node, graph.node.crash()):
        assert node.call(m.Get(graph.table, b"n0"))["mark"] == 1
        assert node.call(m.Get(graph.table, b"n1"))["mark"] == 1
        assert node.call(m.StreamStats(graph.queue))["messages"] == 0
        node.check()


def test_time_to_live_of_one_that_was_released_in_time(graph: Graph) -> None:
    graph.hold(graph.part(b"n0", {b"x"}, ttl_ms=100))
    graph.put(b"x")
    graph.node.tick(100_000)
    assert graph.node.call(m.Get(graph.table, b"n0")) is None
    assert graph.node.call(m.StreamStats(graph.queue))["messages"] == 0


def test_a_long_chain_fails_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwards, "MAX_STEP", 10)
    graph = Graph(Node(3, lazy=True))
    names = [b"c%04d" % number for number in range(2000)]
    for first in range(1, len(names), 500):
        chunk = range(first, min(first + 500, len(names)))
        graph.hold(*(graph.part(names[each], {names[each - 1]}) for each in chunk))
    graph.put(names[0], mark=1)
    assert graph.node.call(m.Get(graph.table, names[-1])) is None
    while graph.node.fabric.next_due() == graph.node.now_us + 1:
        graph.transact(writes=[m.TxnWrite(graph.table, b"between", b"v")])
        graph.node.tick(1)
    assert graph.node.call(m.Get(graph.table, names[-1]))["mark"] == 1
    assert graph.node.call(m.StreamStats(graph.queue))["messages"] == 0


def test_a_chain_that_was_cut_off_goes_on(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwards, "MAX_STEP", 1)
    names = [b"c%d" % number for number in range(50)]
    graph.hold(*(graph.part(names[each], {names[each - 1]}) for each in range(1, 50)))
    graph.put(names[0], mark=1)
    taken = graph.node.snapshot()
    monkeypatch.undo()
    for node in (graph.node.crash(taken), graph.node.crash()):
        assert node.call(m.Get(graph.table, names[-1]))["mark"] == 1
        node.check()


def test_a_deleted_table_has_no_watchers(graph: Graph) -> None:
    graph.hold(graph.part(b"n0", {b"x"}))
    graph.node.call(m.Delete("table", "t"))
    assert all(not shard.watchers.snapshot() for shard in graph.node.fabric.kernel.shards)
    assert graph.node.call(m.Held(graph.queue, b"n0"))["edges"] == [["", b"x"]]
    assert graph.node.call(m.Release(graph.queue, [b"n0"])) == ["released"]


def test_a_deleted_queue_waits_for_nothing(graph: Graph) -> None:
    other = Graph(graph.node)
    other.queue = graph.node.open("queue", "other")
    other.producer = 98
    other.hold(other.part(b"n0", {b"x"}))
    graph.hold(graph.part(b"n0", {b"x"}), graph.part(b"n1", {b"y"}))
    graph.node.call(m.Delete("queue", "q"))
    left = [row for shard in graph.node.fabric.kernel.shards for row in shard.watchers.snapshot()]
    assert [(key, len(watchers)) for _, key, watchers in left] == [(b"x", 1)]
    graph.put(b"x")
    assert other.ready() == {b"n0"}
    graph.node.crash()
    assert all(shard.outbox.parts == 0 for shard in graph.node.fabric.kernel.shards)


def test_bounds(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edges, "MAX_EDGES", 3)
    monkeypatch.setattr(edges, "MAX_EDGES_AT_ONCE", 5)
    monkeypatch.setattr(edges, "MAX_WATCHERS", 2)
    for wrong in (
        [graph.part(b"n0", {b"a", b"b", b"c", b"d"})],
        [graph.part(b"n0", {b"a", b"b", b"c"}), graph.part(b"n1", {b"a", b"b", b"c"})],
    ):
        with pytest.raises(LimitError):
            graph.hold(*wrong)
    graph.hold(graph.part(b"n0", {b"x"}), graph.part(b"n1", {b"x"}))
    with pytest.raises(LimitError):
        graph.hold(graph.part(b"n2", {b"x"}))


def test_what_is_known_of_held_messages_is_bounded(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edges, "MAX_FALLBACK_BYTES", 100)
    monkeypatch.setattr(holds, "MAX_HOLD_BYTES", 30)
    large = graph.part(b"n0", {b"x"})
    large.writes[0].value = bytes(101)
    with pytest.raises(TooLargeError):
        graph.hold(large)
    names = [name for name in NAMES if graph.node.fabric.kernel.place_of(name) == 0]
    graph.hold(graph.part(names[0], {b"x"}))
    queue = graph.node.fabric.kernel.shards[0].queues[graph.queue]
    assert queue.holds.bytes == 30
    with pytest.raises(LimitError):
        graph.hold(graph.part(names[1], {b"x"}))
    graph.put(b"x")
    assert queue.holds.bytes == 0


def test_held_messages_count_towards_the_depth() -> None:
    graph = Graph(max_messages=2)
    graph.hold(graph.part(b"n0", {b"x"}))
    graph.hold(graph.part(b"n1", {b"x"}))
    with pytest.raises(LimitError):
        graph.hold(graph.part(b"n2", {b"x"}))
    graph.hold(graph.part(b"n1", {b"x"}))  # it is known


def test_what_is_refused(graph: Graph) -> None:
    good = graph.part(b"n0", {b"x"})
    two = bytes(encode_batch([b"a", b"b"], timestamp_us=1))
    late = bytes(encode_batch([b"a"], timestamp_us=1, due_us=-5))
    known = bytes(encode_batch([b"a"], timestamp_us=1, producer=3))
    for batch in (two, late, known):
        with pytest.raises(InvalidError):
            graph.hold(m.TxnHold(graph.queue, b"n0", batch, good.after))
    versioned = m.TxnWrite(graph.table, b"k", b"v", if_version=1)
    marked = m.TxnWrite(graph.table, b"k", b"v", mark=3)
    for write in (versioned, marked):
        with pytest.raises(InvalidError):
            graph.hold(m.TxnHold(graph.queue, b"n0", good.batch, good.after, 0, [write]))
    with pytest.raises(InvalidError):
        graph.hold(m.TxnHold(graph.queue, b"n0", good.batch, good.after, 3))
    with pytest.raises(NotFoundError):
        graph.hold(m.TxnHold(graph.queue, b"n0", good.batch, [(99, b"x")]))
    with pytest.raises(InvalidError):
        graph.put(b"x", mark=-1)
    assert graph.node.call(m.StreamStats(graph.queue))["messages"] == 0


def test_before_all_nodes_are_upgraded_nothing_is_held(graph: Graph) -> None:
    graph.node.fabric.kernel.shared = True
    for call in (
        m.Put(graph.table, b"x", b"v", mark=1),
        m.Transact(99, 0, 0, holds=[graph.part(b"n0", {b"x"})]),
        m.Transact(99, 0, 0, writes=[m.TxnWrite(graph.table, b"x", b"v", mark=1)]),
    ):
        with pytest.raises(ConflictError):
            graph.node.call(call)


def test_older_releases_read_what_has_no_marks_and_no_holds() -> None:
    assert b"mark" not in m.pack(m.Put(1, b"k", b"v"))
    assert b"mark" not in m.pack(m.Entry(b"k", b"v", 1))
    assert b"holds" not in m.pack(m.Transact(1, 2, 3))
    table = TableShard(1)
    table.put(b"plain", Cell(b"v", 1))
    table.put(b"marked", Cell(b"v", 2, mark=1))
    plain, marked = table.snapshot()
    assert (len(plain), len(marked)) == (5, 6)
    assert TableShard.restore(1, [plain, marked]).cells == table.cells
