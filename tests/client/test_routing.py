"""The policy of routing, without nodes."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.producer import shard_of
from penstock.client.requests import ANY, Pending, Request, Resend
from penstock.client.routing import Line, Pool, Routes, share_credit
from penstock.client.spread import ask_owners, for_each, join_figures, scan_owners
from penstock.client.steps import Finish, Start, Steps, decoder
from penstock.cluster.map import ClusterMap, NodeInfo, ShardPlace, diff, pack
from penstock.errors import ConflictError, MovedError, ProtocolError
from penstock.wire import messages
from penstock.wire.frames import Flag, Verb, frame

SHARDS = 12
OWNERS = st.lists(st.integers(1, 5), min_size=SHARDS, max_size=SHARDS)


def map_of(owners: list[int], version: int = 1, down: frozenset[int] = frozenset()) -> ClusterMap:
    nodes = tuple(
        NodeInfo(number, f"n{number}", "h", 7000 + number, "down" if number in down else "up", 1)
        for number in range(1, 6)
    )
    places = tuple(ShardPlace(version, (owner,), (owner,)) for owner in owners)
    return ClusterMap(9, version, nodes, places, 1)


def routes_of(owners: list[int], **kwargs: Any) -> Routes:
    routes = Routes(5.0)
    assert routes.learn(b"m" + pack(map_of(owners, **kwargs)))
    return routes


@given(OWNERS, OWNERS, st.booleans())
def test_newer_maps_and_changes_are_learnt_and_older_ones_are_not(before, after, whole):
    routes = routes_of(before, version=3)
    changed = routes.changed
    old, new = map_of(before, 3), map_of(after, 5)
    assert routes.learn(b"m" + pack(new) if whole else b"d" + pack(diff(old, new)))
    assert routes.map == new
    assert changed.done
    assert not routes.changed.done
    assert not routes.learn(b"m" + pack(old))
    assert not routes.learn(b"")
    assert routes.version == 5


def test_what_is_no_map_is_refused():
    routes = routes_of([1] * SHARDS, version=3)
    with pytest.raises(ProtocolError):
        routes.learn(b"x123")
    with pytest.raises(ProtocolError):
        routes.learn(b"m123")
    change = diff(map_of([1] * SHARDS, 4), map_of([2] * SHARDS, 5))
    with pytest.raises(ConflictError):
        routes.learn(b"d" + pack(change))


@given(OWNERS, st.lists(st.integers(0, SHARDS - 1)))
def test_shards_are_grouped_by_their_owners(owners, shards):
    routes = routes_of(owners)
    groups = routes.groups(shards)
    assert sorted(shard for group in groups.values() for shard in group) == sorted(shards)
    assert all(owners[shard] == node for node, group in groups.items() for shard in group)
    assert set(routes.owners()) == set(owners)
    owned = [shard for node in routes.owners() for shard in routes.owned_by(node)]
    assert sorted(owned) == list(range(SHARDS))


@given(OWNERS, st.frozensets(st.integers(1, 5), max_size=4), st.integers(0, 9))
def test_anyone_is_somebody_who_is_up(owners, down, times):
    routes = routes_of(owners, down=down)
    for _ in range(times):
        asked = routes.owner(ANY)
        assert asked not in down
        assert routes.owner(ANY) == asked
        routes.avoid(asked)
        assert routes.owner(ANY) != asked or len(down) == 4
    assert not down & set(routes.to_ask([], 0))
    assert set(routes.to_ask([3], 1)) == set(range(1, 6)) - down


@given(OWNERS, OWNERS, st.integers(1, 5))
def test_a_pop_begins_where_messages_were_last(before, after, node):
    routes = routes_of(before)
    routes.had_messages(7, node)
    assert sorted(routes.pop_order(7)) == sorted(set(before))
    if node in before:
        assert routes.pop_order(7)[0] == node
    routes.learn(b"m" + pack(map_of(after, 2)))
    assert sorted(routes.pop_order(7)) == sorted(set(after))


def test_trouble_counts_until_it_is_calm():
    routes = Routes(5.0)
    assert [routes.strike(3, at) for at in (0.0, 1.0, 2.0)] == [1, 2, 3]
    assert routes.strike(4, 2.0) == 1
    assert routes.strike(3, 60.0) == 1
    routes.strike(3, 61.0)
    routes.calm(3)
    assert routes.strike(3, 61.5) == 1


def test_a_stream_is_new_for_a_while():
    routes = Routes(5.0)
    assert not routes.may_be_new(0.0)
    routes.opened(100.0)
    assert routes.may_be_new(101.0)
    assert not routes.may_be_new(110.0)


def pending(order: int, resend: Resend = Resend.MARKED, since_s: float = 0.0) -> Pending:
    made = Pending(0, Request(Verb.PUSH, [], resend), [])
    made.order, made.since_s = order, since_s
    return made


@given(st.lists(st.integers(1, 1000), unique=True), st.integers(1, 1000))
def test_what_comes_back_is_sent_again_in_its_first_order(orders, later):
    line = Line()
    for order in orders:
        line.put_back(pending(order))
    assert line.again == bool(orders)
    assert line.has_before(later) == any(order < later for order in orders)
    taken = []
    while (each := line.take_again()) is not None:
        taken.append(each.order)
    assert taken == sorted(orders)
    assert not line


def test_what_no_node_may_know_again_is_taken_out():
    line = Line()
    old, look, new = pending(1), pending(2, Resend.ANEW), pending(3, since_s=50.0)
    for each in (new, look, old):
        line.put_back(each)
    assert line.drop_old(10.0) == [old]
    line.drop(look)
    line.drop(look)
    assert line.take_again() is new
    assert not line


@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.sampled_from(["use", "remove", "busy"]), st.integers(0, 7))),
)
def test_a_pool_keeps_what_was_used_last_and_never_too_much(limit, acts):
    pool: Pool[list[int]] = Pool(limit)
    model: OrderedDict[int, list[int]] = OrderedDict()
    busy: set[int] = set()

    def is_idle(each: list[int]) -> bool:
        return each[0] not in busy

    for act, key in acts:
        if act == "busy":
            busy.symmetric_difference_update({key})
        elif act == "remove":
            pool.remove(key, model.pop(key, []))
        elif (found := pool.get(key)) is not None:
            assert found is model[key]
            model.move_to_end(key)
        else:
            assert key not in model
            idle = [each for each in model if each not in busy]
            if len(model) == limit and not idle:
                with pytest.raises(LookupError):
                    pool.surplus(is_idle)
                continue
            surplus = pool.surplus(is_idle)
            assert (surplus is None) == (len(model) < limit)
            if surplus is not None:
                assert surplus is model[idle[0]]
                pool.remove(idle[0], model.pop(idle[0]))
            model[key] = [key]
            pool.add(key, model[key])
        assert pool.values() == list(model.values())


@given(st.dictionaries(st.integers(1, 9), st.integers(-5, 40), min_size=1), st.integers(-20, 300))
def test_credit_is_shared_and_nobody_is_left_without(outstanding, allowed):
    grants = share_credit(outstanding, allowed)
    assert all(grant > 0 for grant in grants.values())
    after = {node: has + grants.get(node, 0) for node, has in outstanding.items()}
    assert all(has >= 1 for has in after.values())
    had = sum(max(has, 0) for has in outstanding.values())
    poor = sum(has <= 0 for has in outstanding.values())
    assert sum(after.values()) <= max(allowed, had) + poor
    if all(has == 0 for has in outstanding.values()) and allowed >= len(outstanding):
        assert sum(after.values()) == allowed
        assert max(after.values()) - min(after.values()) <= 1


def test_no_node_gets_no_credit():
    assert share_credit({}, 10) == {}


# --- operations over several nodes ---------------------------------------------------------------


class Nodes:
    """Answers the calls of an operation: `answer(node, call)` gives the value, or raises."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer
        self.asked: list[tuple[int, Any]] = []

    def run(self, steps: Steps[Any]) -> Any:
        outcome: Any = None
        try:
            while True:
                step = steps.send(outcome)
                outcome = self._start(step.request) if isinstance(step, Start) else None
                while isinstance(step, Finish):
                    if step.pending.error is None:
                        outcome = step.pending.result()
                        break
                    step = steps.throw(step.pending.error)
                    outcome = self._start(step.request) if isinstance(step, Start) else None
        except StopIteration as stop:
            return stop.value

    def _start(self, request: Request) -> Pending:
        call = messages.read_request(b"".join(request.parts()))
        self.asked.append((request.node, call))
        made = Pending(0, request, [])
        try:
            value = self._answer(request.node, call)
        except MovedError as error:
            made.settle(None, error)
        else:
            whole = frame(Verb.CALL, 0, Flag.RESPONSE, messages.pack(value))
            made.settle(bytearray(whole), None)
        return made


@given(OWNERS, OWNERS, st.lists(st.integers(0, SHARDS - 1), unique=True))
def test_what_moves_while_it_is_asked_for_is_asked_for_again(before, after, shards):
    routes = routes_of(before)

    def answer(node: int, call: messages.Release) -> list[str]:
        if routes.version == 1 and len(nodes.asked) > 1:
            routes.learn(b"m" + pack(map_of(after, 2)))
        if any(routes.owner(int(key)) != node for key in call.ids):
            raise MovedError("not mine")
        return [f"{key.decode()} done" for key in call.ids]

    nodes = Nodes(answer)
    placed = [(shard, b"%d" % shard) for shard in shards]
    found = nodes.run(
        for_each(routes, placed, lambda ids: messages.Release(1, ids), decoder(list[str]))
    )
    assert found == [f"{shard} done" for shard in shards]


def test_every_owner_is_asked_once():
    routes = routes_of([1, 2, 3] * 4)
    nodes = Nodes(lambda node, _: node)
    told = nodes.run(ask_owners(routes, range(SHARDS), messages.Stats(), decoder(int)))
    assert {each.node: each.value for each in told} == {1: 1, 2: 2, 3: 3}
    assert len(nodes.asked) == 3


KEYS = st.sets(st.binary(min_size=1, max_size=2), max_size=40)


@given(OWNERS, KEYS, KEYS, st.integers(1, 5), st.integers(1, 9))
def test_a_scan_gives_every_entry_once_in_order(owners, keys, copies, limit, page):
    """Nodes have copies of entries that they do not own, some of them out of date."""
    routes = routes_of(owners)

    def owner(key: bytes) -> int:
        return routes.owner(shard_of(key, SHARDS))

    def answer(node: int, call: messages.Scan) -> list[messages.Entry]:
        own = {key for key in keys if owner(key) == node}
        there = own | {key for key in copies if owner(key) != node}
        after = sorted(key for key in there if call.after is None or key > call.after)
        return [messages.Entry(key, b"", int(key in own)) for key in after[:limit]]

    nodes, found, after = Nodes(answer), [], None
    read = decoder(list[messages.Entry])
    while entries := nodes.run(
        scan_owners(routes, lambda key: messages.Scan(1, b"", key, limit), read, after, page)
    ):
        assert len(entries) <= page or limit > page
        found += entries
        after = entries[-1].key
    assert [entry.key for entry in found] == sorted(keys)
    assert all(entry.version == 1 for entry in found)


def test_figures_are_joined():
    parts = [
        {"name": "q", "ready": 3, "oldest_ms": 5, "groups": ["a"]},
        {"name": "q", "ready": 4, "oldest_ms": None, "groups": ["b"]},
    ]
    assert join_figures(parts) == {"name": "q", "ready": 7, "oldest_ms": 5, "groups": ["a"]}
    assert join_figures([]) == {}
