"""Shares by count: even, by weight, pinned, draining; and as few moves as they allow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import combinations, product
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.consumers.membership import Drain, Member
from penstock.consumers.schedule import Schedule, Window
from penstock.consumers.shares import Plan, plan_by_count
from penstock.errors import InvalidError

NAMES = "abcdefgh"
SECOND = 1_000_000


def group(*names: str, **weights: int) -> list[Member]:
    return [Member(name) for name in names] + [Member(n, weight) for n, weight in weights.items()]


def counts(plan: Plan) -> list[int]:
    return sorted(Counter(plan.owners.values()).values(), reverse=True)


@st.composite
def groups(draw: st.DrawFn, most_members: int, most_partitions: int, weights: int = 1):
    """Members and who has what; some of it with nobody, or with somebody who is gone."""
    names = draw(st.sets(st.sampled_from(NAMES), min_size=1, max_size=most_members))
    total = draw(st.integers(0, most_partitions))
    members = [Member(name, draw(st.integers(1, weights))) for name in sorted(names)]
    holder = st.sampled_from([*names, *names, "gone", ""])
    holders = {p: draw(holder) for p in range(total)}
    return members, total, {p: name for p, name in holders.items() if name}


def with_pins(draw_from: Random, members: list[Member], total: int) -> list[Member]:
    numbers = range(total)
    return [
        Member(m.id, m.weight, frozenset(p for p in numbers if draw_from.random() < 0.15))
        for m in members
    ]


def moved(owners: Mapping[int, str], holders: Mapping[int, str], members: list[Member]) -> int:
    ids = {member.id for member in members}
    return sum(holders[p] != owners[p] for p in holders if holders[p] in ids and p in owners)


def test_thirteen_over_five():
    plan = plan_by_count(group(*"abcde"), range(13), {}, 0)
    assert counts(plan) == [3, 3, 3, 2, 2]


def test_shares_follow_the_weights_and_the_largest_remainders_are_rounded_up():
    plan = plan_by_count(group(a=5, b=3, c=1), range(10), {}, 0)  # 5.55, 3.33, 1.11
    assert plan.targets == {"a": 6, "b": 3, "c": 1}


def test_who_comes_gets_what_it_lacks_and_nothing_else_moves():
    holders = {p: "ab"[p % 2] for p in range(12)}
    plan = plan_by_count(group(*"abc"), range(12), holders, 0)
    assert counts(plan) == [4, 4, 4]
    assert [plan.owners[p] for p in plan.moves(holders)] == ["c"] * 4


def test_what_somebody_left_is_divided_and_nothing_else_moves():
    holders = {p: "abc"[p % 3] for p in range(12)}
    plan = plan_by_count(group(*"ab"), range(12), holders, 0)
    assert counts(plan) == [6, 6]
    assert plan.moves(holders) == []


def test_a_pin_is_honoured_and_one_to_somebody_who_is_not_there_is_none():
    members = [Member("a"), Member("b", pins=frozenset({0, 1, 2}))]
    holders = dict.fromkeys(range(6), "a")
    plan = plan_by_count(members, range(6), holders, 0)
    assert [plan.owners[p] for p in range(6)] == ["b", "b", "b", "a", "a", "a"]
    alone = plan_by_count(members[:1], range(6), {}, 0)
    assert alone.owners == holders


def test_who_pins_more_than_its_share_has_them_and_the_others_divide_the_rest():
    members = [Member("a", pins=frozenset(range(7))), Member("b"), Member("c")]
    plan = plan_by_count(members, range(10), {}, 0)
    assert plan.targets == {"a": 7, "b": 2, "c": 1}


def test_of_two_who_pin_the_same_the_first_by_id_has_it():
    members = [Member("b", pins=frozenset({4})), Member("a", pins=frozenset({4})), Member("c")]
    assert plan_by_count(members, range(6), {4: "c"}, 0).owners[4] == "a"


@pytest.mark.parametrize(
    ("after", "left"), [(-5, 10), (0, 10), (25, 8), (50, 5), (90, 1), (100, 0)]
)
def test_a_share_falls_evenly_while_its_member_drains(after: int, left: int):
    members = [Member("a", drain=Drain(0, 100 * SECOND)), Member("b")]
    holders = {p: "ab"[p % 2] for p in range(20)}
    plan = plan_by_count(members, range(20), holders, after * SECOND)
    assert plan.targets == {"a": left, "b": 20 - left}


def test_who_drains_gets_nothing_new_and_its_pins_are_void():
    members = [Member("a", drain=Drain(0, 100), pins=frozenset({3})), Member("b")]
    assert plan_by_count(members, range(4), {0: "a"}, 0).owners == {0: "a", 1: "b", 2: "b", 3: "b"}


def test_when_all_drain_nothing_is_left_alone():
    members = [Member("a", drain=Drain(0, 1)), Member("b", drain=Drain(0, 1))]
    holders = {0: "a", 1: "a", 2: "b"}
    assert plan_by_count(members, range(3), holders, 5).owners == holders


def test_without_balance_only_what_has_no_owner_is_given_out_to_whom_lacks_most():
    holders = dict.fromkeys(range(8), "a")
    plan = plan_by_count(group(*"abc"), range(12), holders, 0, balance=False)
    assert plan.moves(holders) == []
    assert plan.targets == {"a": 8, "b": 2, "c": 2}


def test_nobody_there_is_no_plan():
    assert plan_by_count([], range(3), {0: "a"}, 0) == Plan({}, {})


@given(groups(5, 6), st.integers(0, 1000))
def test_no_plan_with_these_shares_moves_less(case, seed):
    """Against all ways to place the partitions."""
    members, total, holders = case
    members = with_pins(Random(seed), members, total)[:3]
    plan = plan_by_count(members, range(total), holders, 0)
    pins = {p: min(m.id for m in members if p in m.pins) for m in members for p in m.pins}
    names = [member.id for member in members]
    fewest = min(
        moved(dict(enumerate(places)), holders, members)
        for places in product(names, repeat=total)
        if all(places.count(name) == plan.targets[name] for name in names)
        and all(places[p] == name for p, name in pins.items())
    )
    assert moved(plan.owners, holders, members) == fewest


@given(groups(6, 40))
def test_no_choice_of_even_shares_moves_less(case):
    """With equal weights any of the members may have the one more; the best choice is made."""
    members, total, holders = case
    plan = plan_by_count(members, range(total), holders, 0)
    floor, extras = divmod(total, len(members))
    has = Counter(holders.values())
    fewest = min(
        sum(max(0, has[m.id] - floor - (m in larger)) for m in members)
        for larger in combinations(members, extras)
    )
    assert len(plan.moves(holders)) == moved(plan.owners, holders, members) == fewest


@given(groups(8, 400, weights=9), st.integers(0, 1000))
def test_shares_are_as_even_as_weights_and_pins_allow(case, seed):
    members, total, holders = case
    members = with_pins(Random(seed), members, total)
    plan = plan_by_count(members, range(total), holders, 0)
    assert Counter(plan.owners.values()) == Counter(plan.targets)
    assert sorted(plan.owners) == list(range(total))
    weights = sum(member.weight for member in members)
    pinned = {p for member in members for p in member.pins}
    for member in members:
        exact = member.weight * total / weights
        if not pinned:
            assert exact - 1 < plan.targets[member.id] < exact + 1
    assert all(p in next(m for m in members if m.id == plan.owners[p]).pins for p in pinned)


@given(groups(8, 400, weights=9), st.booleans())
def test_moves_are_those_above_the_shares(case, balance):
    """The formula, for groups too large to try all."""
    members, total, holders = case
    plan = plan_by_count(members, range(total), holders, 0, balance)
    has = Counter(holders.values())
    above = sum(max(0, has[m.id] - plan.targets[m.id]) for m in members)
    assert len(plan.moves(holders)) == above
    assert balance or above == 0


@given(groups(8, 60, weights=3), st.integers(0, 10_000), st.booleans())
def test_a_plan_stays_the_same_while_it_is_carried_out_in_any_order(case, seed, pins):
    members, total, holders = case
    chance = Random(seed)
    if pins:
        members = with_pins(chance, members, total)
    plan = plan_by_count(members, range(total), holders, 0)
    state = dict(holders)
    for p in chance.sample(range(total), total):
        if chance.random() < 0.5:
            state[p] = plan.owners[p]  # has arrived
        elif state.get(p) != plan.owners[p]:
            state.pop(p, None)  # is given up, and not claimed yet
    assert plan_by_count(members, range(total), state, 0) == plan


@given(groups(8, 60), st.integers(0, 10_000))
def test_a_plan_without_balance_stays_the_same_too(case, seed):
    members, total, holders = case
    chance = Random(seed)
    plan = plan_by_count(members, range(total), holders, 0, balance=False)
    state = holders | {p: name for p, name in plan.owners.items() if chance.random() < 0.5}
    assert plan_by_count(members, range(total), state, 0, balance=False) == plan


@given(groups(8, 100, weights=4), st.randoms(use_true_random=False))
def test_the_order_of_members_and_holders_does_not_matter(case, chance):
    members, total, holders = case
    shuffled = chance.sample(members, len(members))
    items = chance.sample(sorted(holders.items()), len(holders))
    numbers = chance.sample(range(total), total)
    plan = plan_by_count(members, range(total), holders, 0)
    assert plan_by_count(shuffled, numbers, dict(items), 0) == plan


def test_three_hundred_members_and_four_thousand_partitions():
    names = [f"m{n:03}" for n in range(300)]
    before = plan_by_count(group(*names), range(4000), {}, 0).owners
    plan = plan_by_count(group(*names[:-1]), range(4000), before, 0)
    assert plan.moves(before) == []
    assert set(counts(plan)) == {13, 14}


def test_windows_open_and_close():
    nightly = Window(2, 2, 24)
    assert [nightly.opens_in_us(t) for t in (0, 1, 2, 3, 4)] == [2, 1, 0, 0, 22]
    assert [nightly.opens_in_us(t) for t in (25, 26, 27, 28)] == [1, 0, 0, 22]
    assert Schedule().opens_in_us(5) == 0
    assert Schedule((nightly, Window(10, 1, 24))).opens_in_us(5) == 5


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Member(""),
        lambda: Member("a", 0),
        lambda: Member("a", drain=Drain(0, -1)),
        lambda: Window(0, 0, 10),
        lambda: Window(0, 11, 10),
        lambda: Schedule((Window(0, 1, 10),) * 101),
    ],
)
def test_what_makes_no_sense_is_refused(wrong):
    with pytest.raises(InvalidError):
        wrong()
