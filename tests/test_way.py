"""Making way: always where nobody minds, rarely where others take the core for long."""

from __future__ import annotations

from penstock.way import CALM, LONG_S, LONGEST_REST, SHORTEST_REST, Way

SHORT_NS, LONG_NS = 50_000, int(LONG_S * 2e9)


class Core:
    """One that others have for so long whenever it is given away."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.others_ns = 0
        self.given = 0
        self.way = Way(lambda: self.now_ns, self._give)

    def _give(self) -> None:
        self.given += 1
        self.now_ns += self.others_ns

    def times_until_given(self) -> int:
        """How often it is asked to make way, until it does."""
        before = self.given
        for times in range(1, 2 * LONGEST_REST):
            self.way.make()
            if self.given > before:
                return times
        raise AssertionError("it never makes way again")


def test_it_makes_way_each_time_while_that_is_soon_over():
    core = Core()
    core.others_ns = SHORT_NS
    assert [core.times_until_given() for _ in range(1000)] == [1] * 1000


def test_after_one_long_time_it_rests_for_a_moment():
    core = Core()
    core.others_ns = LONG_NS
    assert core.times_until_given() == 1
    core.others_ns = SHORT_NS
    assert [core.times_until_given() for _ in range(3)] == [SHORTEST_REST + 1, 1, 1]


def test_the_more_often_it_takes_long_the_longer_it_rests():
    core = Core()
    core.others_ns = LONG_NS
    rests = [core.times_until_given() - 1 for _ in range(12)]
    assert rests[:4] == [0, 8, 16, 32]
    assert rests[-1] == rests[-2] == LONGEST_REST


def test_calm_times_shorten_the_next_rest_by_and_by():
    core = Core()
    core.others_ns = LONG_NS
    for _ in range(12):
        core.times_until_given()
    core.others_ns = SHORT_NS
    core.times_until_given()
    for _ in range(2 * CALM - 1):
        assert core.times_until_given() == 1
    core.others_ns = LONG_NS
    core.times_until_given()
    assert core.times_until_given() == LONGEST_REST // 4 + 1
