"""The checker of `make dag` against made-up histories: it passes what is right, only that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import count, pairwise
from pathlib import Path

import pytest

from penstock.cli.graphing.check import Checker, Effect, Kill, Killed, Run, Verdict, runs_of
from penstock.cli.graphing.graph import (
    COMBINE,
    DOOMED,
    FLAKY,
    REACH,
    WIDEST,
    Graph,
    Node,
    Shape,
    value_of,
)
from penstock.cli.graphing.ledger import BEGUN, ENDED, RAISED, Ledger, Line, RunName, read_ledgers
from penstock.cli.graphing.run import longest_pause, recoveries
from penstock.cli.graphing.standing import Excuses, Standstill, Standstills
from penstock.tasks.envelope import Status

GRAPH = Graph(1_000, seed=41)
NODES = list(GRAPH)
SECOND = 1_000_000_000
WORKER, PROCESS = 3, 4321
LAST_NS = 10**15


class History:
    """What came of the graph, if one worker runs it, a task a microsecond, and nothing is wrong."""

    def __init__(self) -> None:
        self.published: dict[int, list[Effect]] = {}
        self.kept: dict[int, Effect] = {}
        self.runs: dict[int, list[Run]] = {}
        self.came_ns: dict[int, int] = {}
        self.kills: list[Kill] = []
        self.standstills: list[Standstill] = []
        self._counts, self._clock = count(1), count(1_000, 1_000)
        for node, value in GRAPH.values():
            self._run(node, value)

    def _run(self, node: Node, value: int) -> None:
        effect = Effect(node.status)
        times = 2 if node.function == DOOMED else node.raises
        for _ in range(times * node.is_run):
            run = self.begin(node)
            run.raised_ns = next(self._clock)
            effect = Effect(node.status, run=run.name)
        if node.status is Status.DONE:
            run = self.begin(node)
            run.ended_ns = next(self._clock)
            effect = Effect(node.status, value, run.name)
        self.published[node.number] = [effect]
        self.kept[node.number] = effect
        self.came_ns[node.number] = next(self._clock)

    def begin(self, node: Node, worker: int = WORKER) -> Run:
        """One more run."""
        name = RunName(worker, PROCESS, next(self._counts)).packed
        saw = [self.seen(parent) for parent in node.parents]
        run = Run(name, next(self._clock), saw=saw)
        self.runs.setdefault(node.number, []).append(run)
        return run

    def lose(self, node: Node, worker: int = 8) -> Run:
        """A run before all others, whose worker should have been killed right then."""
        run = self.begin(node, worker)
        own = self.runs[node.number]
        own.insert(0, own.pop())
        run.begun_ns = own[1].begun_ns - 1
        return run

    def seen(self, number: int) -> int:
        """The run of a task that its children are given the result of."""
        effect = self.kept[number]
        return effect.run if effect.status == Status.DONE else 0

    def check(self) -> Verdict:
        checker = Checker(
            self.published, self.kept, self.runs, Killed(self.kills), self.came_ns,
            Excuses(self.standstills, lease_ns=100),
        )  # fmt: skip
        return checker.check(GRAPH)


def first(holds: Callable[[Node], object]) -> Node:
    return next(node for node in NODES if holds(node))


ORDINARY = first(lambda node: node.function == COMBINE and node.parents and node.is_run)
NOT_RUN = first(lambda node: not node.is_run)
DOOMED_ONE = first(lambda node: node.function == DOOMED)
FLAKY_ONE = first(lambda node: node.function == FLAKY)


@pytest.fixture
def history() -> History:
    return History()


def broken(verdict: Verdict) -> dict[str, int]:
    names = ("lost", "twice", "strange", "wrong", "early", "other", "unwanted", "unexplained")
    return {name: getattr(verdict, name) for name in names if getattr(verdict, name)}


def test_what_is_right_passes(history: History) -> None:
    verdict = history.check()
    assert broken(verdict) == {}
    assert verdict.broken == 0
    assert (verdict.tasks, verdict.killed) == (GRAPH.tasks, 0)
    raises = sum(node.raises for node in NODES)
    assert verdict.raised == raises + sum(node.function == DOOMED for node in NODES)


def test_a_task_without_an_outcome_is_lost(history: History) -> None:
    del history.published[ORDINARY.number]
    assert broken(history.check()) == {"lost": 1}


def test_so_is_one_whose_outcome_is_not_kept(history: History) -> None:
    del history.kept[NOT_RUN.number]
    assert broken(history.check()) == {"lost": 1}


def test_two_outcomes_are_an_effect_that_came_twice(history: History) -> None:
    history.published[ORDINARY.number] *= 2
    assert broken(history.check()) == {"twice": 1}


def test_so_is_an_outcome_that_was_written_over(history: History) -> None:
    history.begin(ORDINARY, worker=8).ended_ns = LAST_NS
    history.kills.append(Kill(8, 0, LAST_NS))
    late = history.kept[ORDINARY.number]._replace(run=history.runs[ORDINARY.number][-1].name)
    history.kept[ORDINARY.number] = late
    found = history.check()
    assert found.twice == 1
    assert found.early > 0  # those who have begun with the first


def test_outcomes_of_other_tasks_are_strange(history: History) -> None:
    history.published[GRAPH.tasks] = [Effect(Status.DONE)]
    assert broken(history.check()) == {"strange": 1}


@pytest.mark.parametrize(
    "other",
    [
        lambda effect: effect._replace(value=effect.value + 1),
        lambda effect: effect._replace(status=int(Status.FAILED)),
        lambda effect: effect._replace(status=int(Status.SKIPPED), run=0),
    ],
)
def test_other_outcomes_than_those_of_a_plain_loop_are_wrong(
    history: History, other: Callable[[Effect], Effect]
) -> None:
    changed = other(history.kept[ORDINARY.number])
    history.kept[ORDINARY.number] = changed
    history.published[ORDINARY.number] = [changed]
    assert history.check().wrong == 1


def test_so_is_an_outcome_of_a_run_that_did_not_end(history: History) -> None:
    node = next(node for node in reversed(NODES) if node.function == COMBINE and node.is_run)
    history.runs[node.number][-1].ended_ns = 0
    assert history.check().wrong == 1


def test_a_dependency_is_violated_by_who_begins_before_a_parent_ended(history: History) -> None:
    parent = history.runs[ORDINARY.parents[0]][-1]
    history.runs[ORDINARY.number][0].begun_ns = parent.ended_ns - 1
    assert broken(history.check()) == {"early": 1}


def test_also_in_a_run_that_came_to_nothing(history: History) -> None:
    run = history.lose(ORDINARY)
    run.begun_ns = history.runs[ORDINARY.parents[0]][-1].ended_ns - 1
    history.kills.append(Kill(8, 0, run.begun_ns))
    assert broken(history.check()) == {"early": 1}


def test_a_dependency_is_violated_by_another_result_than_the_parents(history: History) -> None:
    run = history.runs[ORDINARY.number][0]
    run.saw = [run.saw[0] + 1, *run.saw[1:]]
    assert broken(history.check()) == {"other": 1}


def test_what_a_failed_parent_ends_must_not_be_run(history: History) -> None:
    history.begin(NOT_RUN, worker=8).begun_ns = history.came_ns[NOT_RUN.number]
    history.kills.append(Kill(8, 0, LAST_NS))
    assert broken(history.check()) == {"unwanted": 1}


@pytest.mark.parametrize("node", [ORDINARY, FLAKY_ONE, DOOMED_ONE])
def test_a_run_that_came_to_nothing_needs_a_kill(history: History, node: Node) -> None:
    at_ns = history.lose(node).begun_ns
    others = [Kill(7, 0, at_ns), Kill(8, PROCESS + 1, at_ns)]
    too_late = [Kill(8, 0, LAST_NS)]
    for history.kills in ([], others, too_late):
        assert set(broken(history.check())) == {"unexplained"}
    for process in (0, PROCESS):  # the worker, or just its executor
        history.kills = [Kill(8, process, at_ns)]
        verdict = history.check()
        assert broken(verdict) == {}
        assert verdict.killed == 1


def test_nothing_is_begun_once_its_outcome_is_there(history: History) -> None:
    """Nor while another run of it goes on; whoever is killed afterwards."""
    run = history.begin(ORDINARY, worker=8)
    history.kills = [Kill(8, 0, LAST_NS), Kill(WORKER, 0, run.begun_ns)]
    assert broken(history.check()) == {"unexplained": 1}
    run.begun_ns = history.came_ns[ORDINARY.number]
    assert broken(history.check()) == {"unexplained": 1}


def test_an_executor_without_a_worker_may_begin_what_it_was_given(history: History) -> None:
    run = history.begin(ORDINARY, worker=8)
    run.begun_ns = history.runs[ORDINARY.number][0].begun_ns + 1
    history.kills = [Kill(8, 0, run.begun_ns - 1)]
    verdict = history.check()
    assert broken(verdict) == {}
    assert verdict.killed == 1


@pytest.mark.parametrize("node", [ORDINARY, FLAKY_ONE, DOOMED_ONE])
def test_nothing_fails_more_often_than_it_is_meant_to(history: History, node: Node) -> None:
    history.begin(node).raised_ns = LAST_NS
    assert history.check().unexplained >= 1


def test_a_machine_that_stood_still_explains_what_was_run_again(history: History) -> None:
    """But only what was under way, or begun right after."""
    run = history.lose(ORDINARY)
    following = history.runs[ORDINARY.number][1]
    history.standstills = [Standstill(run.begun_ns, following.begun_ns)]
    verdict = history.check()
    assert broken(verdict) == {}
    assert verdict.stalled == 1
    late, early = following.begun_ns + 1, run.begun_ns - 101
    for history.standstills in ([Standstill(late, LAST_NS)], [Standstill(0, early)]):
        assert broken(history.check())["unexplained"] >= 1


def test_a_clock_that_jumps_is_a_standstill() -> None:
    watching = Standstills(seconds=-1.0)  # so that any tick is one
    while not watching.found:
        pass
    watching.close()
    assert all(each.until_ns > each.from_ns for each in watching.found)
    never = Standstills(seconds=3600.0)
    never.close()
    assert never.found == []


def test_pauses_and_recoveries_count_from_the_kill() -> None:
    kills = [Kill(1, 0, 10 * SECOND), Kill(2, 0, 20 * SECOND)]
    assert longest_pause(kills, [9 * SECOND, 13 * SECOND, 21 * SECOND]) == 3.0
    names = [RunName(worker, PROCESS, 1).packed for worker in (1, 3)]
    runs = [Run(names[0], 9 * SECOND), Run(names[1], 15 * SECOND, 16 * SECOND)]
    assert recoveries({0: runs}, Killed(kills)) == [5.0]


def test_ledgers_tell_what_was_noted(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, WORKER)
    lost, ended = ledger.begin(1, [5, 0]), ledger.begin(1, [5, 0])
    ledger.note(ENDED, ended, 1)
    failed = ledger.begin(2, [])
    ledger.note(RAISED, failed, 2)
    (path,) = tmp_path.iterdir()
    with path.open("ab") as lines:
        lines.write(b"[0,1")  # it was killed
    found = runs_of(read_ledgers(tmp_path))
    assert [run.name for run in found[1]] == [lost, ended]
    assert [run.over_ns > 0 for run in found[1]] == [False, True]
    assert found[1][0].saw == [5, 0]
    assert found[2][0].raised_ns > found[2][0].begun_ns
    assert RunName.of(lost).worker == WORKER
    assert Line(BEGUN, lost, 1, 0).saw == []


def test_a_graph_has_all_that_is_to_be_tried() -> None:
    graph = Graph(4_000, seed=41)
    nodes, shape = list(graph), Shape.of(graph)
    assert nodes[: len(NODES)] == NODES
    assert all(child.number == parent.number + 1 for parent, child in pairwise(nodes))
    assert all(0 < node.number - each < REACH for node in nodes for each in node.parents)
    assert all(len(set(node.parents)) == len(node.parents) for node in nodes)
    assert WIDEST / 2 < shape.most_parents <= WIDEST
    assert shape.most_children > WIDEST / 2
    assert shape.depth > 50
    assert shape.edges > 2 * len(nodes)
    functions = Counter(node.function for node in nodes)
    assert functions[FLAKY] > 50
    assert functions[DOOMED] >= 3
    policies = {node.on_failure for node in nodes if not node.is_run}
    assert policies == {"fail", "skip"}
    rescued = [node for node in nodes if node.on_failure == "run"]
    assert all(node.status is Status.DONE for node in rescued)
    assert rescued


def test_a_value_depends_on_the_task_and_on_each_of_its_parents() -> None:
    assert value_of(1, [2, 3]) == value_of(1, [2, 3]) < 1 << 63
    assert len({value_of(*each) for each in ((1, [2, 3]), (1, [3, 2]), (2, [2, 3]), (1, []))}) == 4
