"""Whole groups with clocks, messages and faults: they settle, evenly, and nothing is had twice."""

from __future__ import annotations

from collections import Counter

import pytest

from penstock.consumers import claim_events as e
from penstock.consumers.claims import Claims
from penstock.consumers.membership import Member
from penstock.consumers.rules import Rules
from penstock.consumers.schedule import Schedule, Window
from penstock.consumers.simulation.changes import Change, measure
from penstock.consumers.simulation.group import SESSION_US, Group, Weather
from penstock.consumers.simulation.host import Host
from penstock.consumers.simulation.storm import Storm

SECOND = 1_000_000
RULES = Rules()
# The longest that a settled state can take once faults stop: sessions and leases of who is gone run
# out, and whoever missed the news looks at its next audit.
SETTLED_US = SESSION_US + RULES.lease_us + RULES.audit_us * 3 // 2


def settled_group(seed: int, members: int, partitions: int, rules: Rules | None = None) -> Group:
    group = Group(seed, partitions, rules)
    group.join(members)
    group.world.run(group.world.now_us + SECOND)
    assert group.settle(SETTLED_US) is not None
    return group


def change(group: Group, what, limit_us: int = SETTLED_US) -> Change:
    measured = measure(group, "change", what, limit_us)
    assert measured.settled_us is not None, group.unsettled()
    assert group.problems == []
    return measured


def shares(group: Group) -> list[int]:
    return sorted(Counter(group.owners().values()).values(), reverse=True)


def test_thirteen_partitions_over_five_members():
    assert shares(settled_group(1, 5, 13)) == [3, 3, 3, 2, 2]


@pytest.mark.parametrize("seed", range(3))
def test_a_planned_change_costs_two_calls_for_a_partition_and_a_look_for_a_member(seed: int):
    group = settled_group(seed, 20, 100)
    joined = change(group, group.join)
    assert joined.moved == 4
    assert (joined.claims, joined.releases, joined.refused) == (4, 4, 0)
    assert joined.looks == 21 + 5  # all, and once more those who gave or got something
    assert joined.notices == 21 + 4
    assert joined.stopped == 0
    assert joined.settled_us is not None
    assert joined.settled_us < 3 * SECOND
    assert joined.still_us < SECOND


@pytest.mark.parametrize("seed", range(3))
def test_what_a_crashed_member_had_is_claimed_once_its_lease_is_over(seed: int):
    group = settled_group(seed, 20, 100)
    [victim] = group.some(1)
    crashed = change(group, victim.crash)
    assert crashed.moved == crashed.claims == 5
    assert (crashed.releases, crashed.refused, crashed.stopped) == (0, 0, 0)
    assert crashed.settled_us is not None
    assert crashed.settled_us < SESSION_US + RULES.lease_us + 2 * SECOND


def test_who_leaves_or_drains_moves_only_what_it_had():
    group = settled_group(3, 12, 60)
    [first] = group.some(1)
    left = change(group, lambda: first.take(e.Leave()))
    assert (left.moved, left.claims, left.releases, left.stopped) == (5, 5, 5, 0)
    [second] = group.some(1)
    drained = change(group, lambda: second.drain(10 * SECOND))
    assert (drained.stopped, drained.refused) == (0, 0)
    assert drained.moved == drained.claims == drained.releases
    assert drained.settled_us is not None
    assert drained.settled_us >= 10 * SECOND
    assert not second.up


def test_a_short_pause_moves_nothing_and_a_long_one_is_fenced():
    group = settled_group(4, 10, 50)
    [host] = group.some(1)

    def stand_still(seconds: int) -> None:
        host.pause()
        group.world.after(seconds * SECOND, host.resume)

    assert change(group, lambda: stand_still(4)).moved == 0
    assert group.node.fenced == 0
    change(group, lambda: stand_still(30))
    assert group.node.fenced == 5  # what it was about to commit when it was stopped


def test_weights_count():
    group = settled_group(5, 4, 60)
    change(group, lambda: group.join(1, weight=2))
    assert shares(group) == [20, 10, 10, 10, 10]


def test_a_node_that_was_away_loses_nothing():
    group = settled_group(6, 10, 50)
    before = group.owners()

    def away() -> None:
        group.node.down = True
        group.world.after(20 * SECOND, group.node.restart)
        group.world.run(group.world.now_us + 21 * SECOND)

    change(group, away)
    assert group.owners() == before


def test_outside_of_windows_only_what_has_no_owner_moves():
    window = Window(0, 60 * SECOND, 600 * SECOND)
    group = Group(7, 40, Rules(schedule=Schedule((window,))))
    group.world.run(group.world.now_us + window.opens_in_us(group.world.now_us))
    group.join(4)
    assert group.settle(30 * SECOND) is not None
    group.world.run(group.world.now_us + 60 * SECOND)
    before = group.owners()
    group.join(1)
    [victim] = group.some(1)
    victim.crash()
    group.world.run(group.world.now_us + 60 * SECOND)
    after = group.owners()
    assert {number for number in before if before[number] != after[number]} == {
        number for number, owner in before.items() if owner == victim.member.id
    }
    opens_us = window.opens_in_us(group.world.now_us)
    group.world.run(group.world.now_us + opens_us)
    assert group.settle(10 * SECOND) is not None
    assert group.problems == []


def test_a_pin_moves_a_partition_and_only_another_for_it():
    group = settled_group(9, 5, 50)
    host = group.some(1)[0]
    foreign = next(n for n, owner in group.owners().items() if owner != host.member.id)
    pinned = change(group, lambda: host.amend(Member(host.member.id, pins=frozenset({foreign}))))
    assert group.owners()[foreign] == host.member.id
    assert pinned.moved == 2


@pytest.mark.parametrize("seed", range(4))
def test_by_load_it_settles_and_stays_while_loads_sway(seed: int):
    group = Group(seed, 80, Rules(by_load=True))
    chance = group.world.random
    usual = {number: chance.lognormvariate(0, 0.7) for number in range(80)}
    group.loads = dict(usual)
    group.join(6)
    group.world.run(group.world.now_us + SECOND)
    assert group.settle(SETTLED_US) is not None, group.unsettled()
    owners = group.owners()
    for _ in range(20):
        group.loads = {number: load * chance.uniform(0.96, 1.04) for number, load in usual.items()}
        group.world.run(group.world.now_us + 10 * SECOND)
    assert group.owners() == owners
    hot = owners[0]
    group.loads = {n: load * (3 if owners[n] == hot else 1) for n, load in usual.items()}
    moved = change(group, lambda: None)
    assert 0 < moved.moved <= 20
    assert moved.claims == moved.releases == moved.moved
    assert moved.stopped == 0


@pytest.mark.parametrize("loss", [0.02, 0.1])
def test_it_settles_although_messages_get_lost_and_come_twice(loss: float):
    group = settled_group(8, 12, 60)
    group.weather = Weather(latency_us=20_000, loss=loss, twice=loss)
    change(group, lambda: group.join(2), 2 * SETTLED_US)
    change(group, group.some(1)[0].crash, 2 * SETTLED_US)


@pytest.mark.parametrize("seed", range(12))
def test_it_settles_after_a_storm(seed: int):
    group = Group(seed, 60)
    group.join(8)
    storm = Storm(group, 3, 16)
    storm.blow(40 * SECOND)
    assert storm.happened > 10
    assert group.settle(SETTLED_US) is not None, group.unsettled()
    assert group.problems == []
    begun_us = group.world.now_us
    group.world.run(begun_us + 3 * SECOND)
    assert min(group.node.progress_us.values()) > begun_us, "a partition makes no progress"


def test_the_same_seed_makes_the_same_run():
    def run() -> tuple[object, ...]:
        group = Group(3, 30)
        group.join(5)
        Storm(group, 2, 8).blow(20 * SECOND)
        return group.world.events, group.world.now_us, group.counted, group.owners()

    assert run() == run()


@pytest.mark.slow
@pytest.mark.parametrize("first", range(100, 300, 20))
def test_it_settles_after_many_storms(first: int):
    for seed in range(first, first + 20):
        group = Group(seed, 100)
        group.join(12)
        Storm(group, 3, 24, every_us=(seed % 5 + 1) * SECOND // 2).blow(60 * SECOND)
        assert group.settle(SETTLED_US) is not None, (seed, group.unsettled())
        assert group.problems == [], seed


# --- the checks find what they are for ------------------------------------------------------


class Careless(Claims):
    """Goes on with what it has without a look at the clock."""

    def may_process(self, partition: int, now_us: int) -> bool:
        held = self.holdings.get(partition)
        return held is not None and held.running


class Young(Claims):
    """Takes answers for younger than they are."""

    def handle(self, event: e.Event, now_us: int) -> list[e.Action]:
        if isinstance(event, e.Renewed):
            event = e.Renewed(event.claims, now_us + 5 * SECOND)
        return super().handle(event, now_us)


class Greedy(Claims):
    """Does not give anything away."""

    def handle(self, event: e.Event, now_us: int) -> list[e.Action]:
        actions = super().handle(event, now_us)
        return [a for a in actions if not isinstance(a, e.HandOver | e.Release | e.Offer)]


def with_kind(kind: type[Claims], members: int = 6) -> Group:
    group = Group(2, 30)

    class Replaced(Host):
        def take(self, event: e.Event) -> None:
            if type(self.claims) is Claims:
                self.claims = kind(self.member.id, group.rules)
            super().take(event)

    for number in range(members):
        host = Replaced(group, Member(f"odd-{number}"))
        group.hosts[host.member.id] = host
    group.world.run(group.world.now_us + 5 * SECOND)
    return group


def test_who_processes_after_a_pause_without_asking_is_found():
    group = with_kind(Careless)
    [host] = group.some(1)
    host.pause()
    group.world.run(group.world.now_us + 30 * SECOND)
    host.paused = False  # it does not even hear that time has passed
    group.world.run(group.world.now_us + SECOND)
    assert any("processes" in problem for problem in group.problems)


def test_who_takes_answers_for_younger_than_they_are_is_found():
    group = with_kind(Young)
    group.node.down = True
    group.world.run(group.world.now_us + 14 * SECOND)
    assert any("its lease ended" in problem for problem in group.problems)


def test_who_gives_nothing_away_does_not_settle():
    group = with_kind(Greedy)
    assert group.settle(30 * SECOND) is not None
    group.join(1)
    assert group.settle(60 * SECOND) is None
    assert "partition" in group.unsettled()
