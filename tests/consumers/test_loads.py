"""Shares by load: nothing moves below the threshold, little above it, and never back and forth."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from penstock.consumers.loads import THRESHOLD, imbalance, plan_by_load
from penstock.consumers.membership import Drain, Member


def spread(chance: Random, names: str, total: int) -> dict[int, str]:
    return {p: chance.choice(names) for p in range(total)}


@st.composite
def busy_groups(draw: st.DrawFn):
    """Members, who has what, and how busy each partition is: most of them a little, a few much."""
    chance = Random(draw(st.integers(0, 1_000_000)))
    names = "abcdefgh"[: draw(st.integers(2, 8))]
    members = [Member(name, chance.randint(1, draw(st.sampled_from([1, 4])))) for name in names]
    total = draw(st.integers(2, 80))
    loads = {p: round(chance.lognormvariate(0, 1.2), 3) for p in range(total)}
    return members, spread(chance, names, total), loads


def test_below_the_threshold_nothing_moves():
    members = [Member("a"), Member("b")]
    holders = {0: "a", 1: "a", 2: "b", 3: "b"}
    loads = {0: 5.0, 1: 6.0, 2: 5.0, 3: 4.5}
    assert imbalance(members, holders, loads) < THRESHOLD
    assert plan_by_load(members, range(4), holders, loads, 0).owners == holders


def test_above_it_the_lightest_that_helps_moves():
    members = [Member("a"), Member("b")]
    holders = {0: "a", 1: "a", 2: "a", 3: "a", 4: "b"}
    loads = {0: 10.0, 1: 3.0, 2: 4.0, 3: 9.0, 4: 18.0}  # 26 and 18; the mean is 22
    plan = plan_by_load(members, range(5), holders, loads, 0, threshold=0.1)
    assert plan.moves(holders) == [1]


def test_one_partition_that_is_too_much_for_anybody_is_not_passed_around():
    members = [Member("a"), Member("b")]
    holders = {0: "a", 1: "b"}
    plan = plan_by_load(members, range(2), holders, {0: 100.0, 1: 1.0}, 0)
    assert plan.owners == holders


def test_what_has_no_owner_goes_to_whoever_is_least_busy_also_without_balance():
    members = [Member("a"), Member("b"), Member("c")]
    holders = {0: "a", 1: "b"}
    loads = {0: 9.0, 1: 5.0, 2: 4.0, 3: 1.0}
    plan = plan_by_load(members, range(4), holders, loads, 0, balance=False)
    assert plan.owners == {**holders, 2: "c", 3: "c"}


def test_weights_count():
    members = [Member("a", 3), Member("b", 1)]
    plan = plan_by_load(members, range(40), {}, dict.fromkeys(range(40), 1.0), 0)
    assert plan.targets == {"a": 30, "b": 10}


def test_pins_stay_however_busy():
    members = [Member("a", pins=frozenset({0, 1})), Member("b")]
    plan = plan_by_load(members, range(3), {}, {0: 10.0, 1: 10.0, 2: 1.0}, 0)
    assert plan.owners == {0: "a", 1: "a", 2: "b"}


def test_who_drains_gives_its_load_away_over_the_period():
    members = [Member("a", drain=Drain(0, 100)), Member("b"), Member("c")]
    holders = {p: "abc"[p % 3] for p in range(30)}
    loads = dict.fromkeys(range(30), 1.0)
    left = [
        plan_by_load(members, range(30), holders, loads, at).targets["a"] for at in (0, 50, 99, 100)
    ]
    assert left == [10, 5, 0, 0]


def test_a_partition_nobody_measured_counts_as_a_usual_one():
    members = [Member("a"), Member("b")]
    plan = plan_by_load(members, range(4), {}, {0: 2.0, 1: 2.0}, 0)
    assert plan.targets == {"a": 2, "b": 2}
    assert plan_by_load(members, range(4), {}, {}, 0).targets == {"a": 2, "b": 2}


@given(busy_groups(), st.sampled_from([0.05, 0.2, 0.5]))
def test_a_plan_that_is_carried_out_moves_nothing_more(case, threshold):
    members, holders, loads = case
    plan = plan_by_load(members, loads, holders, loads, 0, threshold=threshold)
    again = plan_by_load(members, loads, plan.owners, loads, 0, threshold=threshold)
    assert again.moves(plan.owners) == []


@given(busy_groups())
def test_moves_make_the_busiest_no_busier_and_come_only_above_the_threshold(case):
    members, holders, loads = case
    before = imbalance(members, holders, loads)
    plan = plan_by_load(members, loads, holders, loads, 0)
    assert imbalance(members, plan.owners, loads) <= before + 1e-9
    if before <= THRESHOLD:
        assert plan.moves(holders) == []


@given(busy_groups(), st.integers(0, 1_000_000))
def test_a_load_that_sways_moves_nothing_once_it_is_balanced(case, seed):
    members, holders, loads = case
    chance = Random(seed)
    plan = plan_by_load(members, loads, holders, loads, 0)
    if imbalance(members, plan.owners, loads) > THRESHOLD / 2 + 1e-9:
        return  # a partition is too busy for anybody
    for _ in range(5):
        swayed = {p: load * chance.uniform(0.96, 1.04) for p, load in loads.items()}
        assert plan_by_load(members, loads, plan.owners, swayed, 0).moves(plan.owners) == []


@given(busy_groups(), st.integers(0, 1_000_000))
def test_loads_that_change_for_good_are_followed_and_then_it_is_quiet(case, seed):
    """However they change, moves stop as soon as they stop changing."""
    members, holders, loads = case
    chance = Random(seed)
    for _ in range(4):
        loads = {p: load * chance.lognormvariate(0, 0.8) for p, load in loads.items()}
        holders = dict(plan_by_load(members, loads, holders, loads, 0).owners)
    assert plan_by_load(members, loads, holders, loads, 0).moves(holders) == []


def test_few_move():
    """A group of 50 with one hot member: it gives away about its excess, and nobody else moves."""
    chance = Random(7)
    names = [f"m{n:02}" for n in range(50)]
    members = [Member(name) for name in names]
    loads = {p: chance.uniform(0.5, 1.5) for p in range(1000)}
    holders = {p: names[p % 50] for p in range(1000)}
    hot = [p for p in range(1000) if holders[p] == "m00"]
    loads |= {p: 2 * loads[p] for p in hot}
    plan = plan_by_load(members, range(1000), holders, loads, 0)
    assert {holders[p] for p in plan.moves(holders)} == {"m00"}
    assert len(plan.moves(holders)) <= len(hot) // 2
    assert imbalance(members, plan.owners, loads) <= THRESHOLD / 2 + 1e-9
