"""Routes of pops: every message is found, no empty node is visited twice without news of it, and
consumers park only when all is empty, whatever becomes of the notices."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.cluster import pops
from penstock.cluster.pops import MAX_LISTED, Ask, Hint, Park, Pop, PopRoute, QueueOwner
from penstock.errors import InvalidError, LimitError

NODES = 5
CONSUMERS = 3
MAX_ROUNDS = 2000  # more than 50 pushes of 4 messages need


class Fabric(RuleBasedStateMachine):
    """Nodes that hold so many messages each, an owner that hears of it late, twice and in any
    order, and consumers that follow their routes."""

    def __init__(self) -> None:
        super().__init__()
        self.held = [0] * NODES
        self.fills = [0] * NODES
        self.notices: list[tuple[int, int, int]] = []  # messages, node, fill
        self.sent: list[tuple[int, int, int]] = []
        self.nodes_say = True
        self.owner = QueueOwner()
        self.routes: list[PopRoute] = []
        self.over: list[dict[int, int]] = [{} for _ in range(CONSUMERS)]  # fills seen empty
        self.heard: list[dict[int, int]] = [{} for _ in range(CONSUMERS)]  # latest fills listed
        self.visits = self.pushed = self.popped = 0

    @initialize(
        local=st.lists(st.none() | st.integers(0, NODES - 1), min_size=3, max_size=3),
        nodes_say=st.booleans(),
    )
    def begin(self, local: list[int | None], nodes_say: bool) -> None:
        """`nodes_say`: an empty node names its last fill."""
        self.routes = [PopRoute(node) for node in local]
        self.nodes_say = nodes_say

    @rule(node=st.integers(0, NODES - 1), count=st.integers(1, 4))
    def push(self, node: int, count: int) -> None:
        if not self.held[node]:
            self.fills[node] += 1
            self.held[node] += count
            self.notify(node)
        else:
            self.held[node] += count
        self.pushed += count

    @rule(data=st.data(), repeat=st.booleans())
    def notice_arrives(self, data: st.DataObject, repeat: bool) -> None:
        """One arrives, perhaps again."""
        if self.sent:
            of = self.sent if repeat or not self.notices else self.notices
            self.deliver(data.draw(st.sampled_from(of)))

    @rule(consumer=st.integers(0, CONSUMERS - 1))
    def step(self, consumer: int) -> None:
        self.advance(consumer)

    @rule(consumer=st.integers(0, CONSUMERS - 1))
    def two_go_at_once(self, consumer: int) -> None:
        """Pops of one client; the answer of the second is there first."""
        todo = self.routes[consumer].next()
        if isinstance(todo, Pop):
            first, second = self.asked(consumer, todo), self.asked(consumer, todo)
            second()
            first()

    def advance(self, consumer: int) -> bool:
        """What the route says; whether there was something to do."""
        route = self.routes[consumer]
        todo = route.next()
        assert route.next() == todo
        if isinstance(todo, Pop):
            self.visit(consumer, todo)
        elif isinstance(todo, Ask):
            hints = self.owner.ask(consumer, todo.emptied)
            self.tell(consumer, hints)
        return not isinstance(todo, Park)

    @rule()
    def owner_is_replaced(self) -> None:
        """The new one knows nothing; consumers that waited ask again, nodes say what they have."""
        self.owner = QueueOwner(range(NODES))
        for node in range(NODES):
            if self.held[node]:
                self.notify(node)
        for consumer, route in enumerate(self.routes):
            if isinstance(route.next(), Park):
                self.tell(consumer, self.owner.ask(consumer))

    @rule()
    def a_moment_passes(self) -> None:
        """Whoever still waits although a node is listed is told of it."""
        for consumer in self.owner.more():
            self.tell(consumer, self.owner.ask(consumer))

    @invariant()
    def who_parks_knows_of_nothing(self) -> None:
        """What a parked consumer does not know is on its way to the owner, or the owner knows that
        it owes somebody an answer."""
        coming = {(node, fill) for messages, node, fill in self.notices if messages}
        for route in self.routes:
            if isinstance(route.next(), Park) and not self.owner.owing:
                for node in range(NODES):
                    assert not self.held[node] or (node, self.fills[node]) in coming

    def teardown(self) -> None:
        """When all notices have arrived, everything is found, and all park."""
        while self.notices:
            self.deliver(self.notices[0])
        visits = self.visits
        left = sum(self.held)
        for _ in range(MAX_ROUNDS):
            todo = [self.advance(consumer) for consumer in range(len(self.routes))]
            if not any(todo) and not self.owner.owing:
                break
            while self.notices:
                self.deliver(self.notices[0])
            self.a_moment_passes()
        else:
            raise AssertionError("they go on for ever")
        if self.routes:
            assert sum(self.held) == 0
            assert self.popped == self.pushed
            # One empty answer for each consumer and node, beside those that found something; one
            # more if it does not hear how much is over.
            empty = CONSUMERS * NODES * (1 if self.nodes_say else 2)
            assert self.visits - visits <= left + empty

    def visit(self, consumer: int, todo: Pop) -> None:
        self.asked(consumer, todo)()

    def asked(self, consumer: int, todo: Pop) -> Callable[[], None]:
        """A node is asked; what has its answer arrive."""
        node = todo.node
        self.visits += 1
        over = self.over[consumer].get(node)
        assert over is None or self.heard[consumer].get(node, -1) > over, "without news"
        if self.held[node]:
            self.held[node] -= 1
            self.popped += 1
            if not self.held[node]:
                self.notify(node)
            return partial(self.found, consumer, node)
        seen = self.fills[node] if self.nodes_say else todo.fill
        return partial(self.empty, consumer, node, seen)

    def found(self, consumer: int, node: int) -> None:
        self.routes[consumer].found(node, 1)
        self.over[consumer].pop(node, None)

    def empty(self, consumer: int, node: int, over: int) -> None:
        self.routes[consumer].empty(node, over)
        self.over[consumer][node] = over

    def notify(self, node: int) -> None:
        self.notices.append((self.held[node], node, self.fills[node]))
        self.sent.append(self.notices[-1])

    def deliver(self, notice: tuple[int, int, int]) -> None:
        messages, node, fill = notice
        if notice in self.notices:
            self.notices.remove(notice)
        if not messages:
            self.owner.emptied(node, fill)
            return
        for consumer in self.owner.filled(node, fill, messages):
            self.tell(consumer, self.owner.ask(consumer))

    def tell(self, consumer: int, hints: tuple[Hint, ...]) -> None:
        for node, fill in hints:
            self.heard[consumer][node] = max(fill, self.heard[consumer].get(node, fill))
        self.routes[consumer].listed(hints)


TestFabric = Fabric.TestCase


def test_local_first_then_the_last_that_had_some_then_the_list():
    route = PopRoute(local=3)
    assert route.next() == Pop(3, 0)
    route.empty(3, 0)
    assert route.next() == Ask((Hint(3, 0),))
    route.listed([Hint(5, 1), Hint(6, 1), Hint(7, 4)])
    assert route.next() == Pop(5, 1)
    route.found(5, 10)
    assert route.next() == Pop(5, 1)
    route.listed([Hint(3, 1)])  # the local node tells of itself
    assert route.next() == Pop(3, 1)
    route.empty(3, 1)
    assert route.next() == Pop(5, 1)
    route.empty(5, 1)
    assert route.next() == Pop(6, 1)


def test_a_node_that_stays_empty_is_listed_in_vain():
    route = PopRoute()
    route.listed([Hint(5, 8)])
    route.empty(5, 8)
    assert route.next() == Ask((Hint(5, 8),))
    route.listed([Hint(5, 8)])
    assert route.next() == Ask((Hint(5, 8),))
    route.listed([])
    assert route.next() == Park()
    route.listed([Hint(5, 9)])
    assert route.next() == Pop(5, 9)


def test_what_was_heard_while_a_node_was_asked_is_not_over():
    route = PopRoute()
    route.listed([Hint(5, 8)])
    asked = route.next()
    route.listed([Hint(5, 9)])  # by another pop that follows the same route
    route.empty(5, 8)
    assert asked == Pop(5, 8)
    assert route.next() == Pop(5, 9)


def test_answers_that_overtake_each_other_end_no_fill_that_is_yet_to_come():
    """Two pops go one way at once: the one that found nothing hears of it first."""
    route, owner = PopRoute(), QueueOwner()
    assert owner.ask(1) == ()
    assert owner.filled(7, 1) == [1]
    route.listed(owner.ask(1))
    assert route.next() == route.next() == Pop(7, 1)
    route.empty(7, 1)
    route.found(7, 1)
    todo = route.next()
    assert isinstance(todo, Pop)
    route.empty(7, todo.fill)
    ask = route.next()
    assert isinstance(ask, Ask)
    assert owner.ask(1, ask.emptied) == ()
    assert owner.filled(7, 2) == [1]


def test_who_cannot_be_reached_is_not_said_to_be_empty():
    route = PopRoute()
    route.listed([Hint(5, 8)])
    route.unreachable(5)
    assert route.next() == Ask(())
    route.listed([Hint(5, 8)])
    assert route.next() == Pop(5, 8)


def test_what_a_node_says_of_itself_counts_more_than_what_was_heard_of_it():
    route = PopRoute()
    route.listed([Hint(5, 1)])
    route.empty(5, 3)  # others emptied it three times meanwhile
    route.listed([Hint(5, 2), Hint(5, 3)])
    assert route.next() == Ask((Hint(5, 3),))


def test_no_messages_are_not_found():
    with pytest.raises(InvalidError):
        PopRoute(1).found(1, 0)


@given(st.permutations([(full, fill) for full in (True, False) for fill in (1, 2, 3)]))
def test_the_order_of_notices_does_not_matter(notices):
    owner = QueueOwner()
    for full, fill in notices:
        if full:
            owner.filled(1, fill)
        else:
            owner.emptied(1, fill)
    assert owner.ask(7) == ()
    assert owner.filled(1, 4) == [7]
    assert owner.filled(1, 4) == []
    assert owner.ask(7) == (Hint(1, 4),)


def test_consumers_spread_over_the_nodes_and_lists_are_bounded():
    owner = QueueOwner()
    for node in range(1, 201):
        owner.filled(node, 1)
    lists = [owner.ask(consumer) for consumer in range(200)]
    assert {hints[0].node for hints in lists} == set(range(1, 201))
    assert {len(hints) for hints in lists} == {MAX_LISTED}


def test_who_leaves_is_not_told_and_who_is_gone_is_not_named():
    owner = QueueOwner()
    owner.ask(1)
    owner.ask(2)
    owner.leave(1)
    assert owner.filled(9, 1) == [2]
    owner.keep({1, 2})
    assert owner.ask(2) == ()


def test_as_many_are_told_as_there_are_messages_and_twice_as_many_each_time_after_that():
    owner = QueueOwner()
    for consumer in range(10):
        owner.ask(consumer)
    assert owner.filled(9, 1, messages=2) == [0, 1]
    assert owner.owing
    assert owner.more() == [2, 3, 4, 5]
    assert owner.more() == [6, 7, 8, 9]
    assert not owner.owing
    assert owner.more() == []


def test_nobody_is_told_more_once_it_is_over():
    owner = QueueOwner([1, 2])
    owner.emptied(1, 0)
    owner.emptied(2, 0)
    owner.ask(1)
    owner.ask(2)
    assert owner.filled(9, 1, messages=1) == [1]
    owner.emptied(9, 1)
    assert owner.more() == []
    assert owner.filled(9, 2, messages=1) == [2]


def test_waiting_is_bounded(monkeypatch):
    monkeypatch.setattr(pops, "MAX_WAITING", 2)
    owner = QueueOwner()
    owner.ask(1)
    owner.ask(2)
    assert owner.ask(2) == ()
    with pytest.raises(LimitError):
        owner.ask(3)
