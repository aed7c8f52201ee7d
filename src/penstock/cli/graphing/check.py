"""What has to hold of a run: every task has one effect, the right one, and came after its parents.

Nothing here but the graph is taken from whoever submitted: outcomes are those that workers have
published and stored, runs are what the tasks themselves have noted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.cli.graphing.graph import DOOMED, FLAKY, Graph, Node
from penstock.cli.graphing.ledger import BEGUN, ENDED, Line, RunName
from penstock.cli.graphing.standing import Excuses
from penstock.tasks.envelope import Status

NO_EXCUSES = Excuses()
MOST_NAMED = 20  # tasks that are named, of those of which something is wrong


class Effect(NamedTuple):
    """An outcome as a worker has committed it."""

    status: int
    value: int = 0
    run: int = 0
    """That it comes from; 0: it was not run."""


class Kill(NamedTuple):
    """Of a whole worker; or of one of its processes, if that is not 0."""

    worker: int
    process: int
    at_ns: int


@dataclass
class Run:
    """One run of a task, as far as it came. 0: it did not come to that."""

    name: int
    begun_ns: int
    ended_ns: int = 0
    raised_ns: int = 0
    saw: Sequence[int] = ()

    @property
    def over_ns(self) -> int:
        """When it had come to its end, this way or that."""
        return self.ended_ns or self.raised_ns


@dataclass
class Verdict:
    """How often each promise was broken, and how often tasks were run."""

    tasks: int = 0
    lost: int = 0
    twice: int = 0
    strange: int = 0
    wrong: int = 0
    early: int = 0
    other: int = 0
    unwanted: int = 0
    unexplained: int = 0
    runs: int = 0
    killed: int = 0
    stalled: int = 0
    raised: int = 0
    named: list[str] = field(default_factory=list)

    @property
    def promises(self) -> dict[str, int]:
        """Under the names that tables have: all have to be 0."""
        return {
            "tasks lost: no outcome": self.lost,
            "effects twice: more than one outcome, or another one kept": self.twice,
            "outcomes of tasks that nobody submitted": self.strange,
            "wrong outcomes, not those of a plain loop": self.wrong,
            "dependencies violated: begun before a parent's result was there": self.early,
            "dependencies violated: saw another result than the parent's": self.other,
            "run, although a parent had failed": self.unwanted,
            "run again, and neither killed nor failed before": self.unexplained,
        }

    @property
    def broken(self) -> int:
        """All of that together."""
        return sum(self.promises.values())

    def bad(self, what: str, node: Node, note: str) -> None:
        """One more of these."""
        setattr(self, what, getattr(self, what) + 1)
        if len(self.named) < MOST_NAMED:
            self.named.append(f"task {node.number} ({node.function}): {what}: {note}")


class Killed:
    """Whom a run may have been lost with."""

    def __init__(self, kills: Iterable[Kill]) -> None:
        self.at_ns = {(kill.worker, kill.process): kill.at_ns for kill in kills}

    def of(self, run: int) -> int:
        """When the worker, or the process, of a run was killed; 0 if it was not."""
        name = RunName.of(run)
        kills = [self.at_ns.get((name.worker, process), 0) for process in (0, name.process)]
        return min(filter(None, kills), default=0)

    def before(self, run: int, at_ns: int) -> bool:
        """Whether it was killed by then."""
        return 0 < self.of(run) <= at_ns


def runs_of(lines: Iterable[Line]) -> dict[int, list[Run]]:
    """The runs of each task, in the order of their beginnings."""
    runs: dict[int, Run] = {}
    tasks: defaultdict[int, list[Run]] = defaultdict(list)
    for line in lines:
        if line.kind == BEGUN:
            runs[line.run] = Run(line.run, line.at_ns, saw=line.saw)
            tasks[line.task].append(runs[line.run])
        elif line.kind == ENDED:
            runs[line.run].ended_ns = line.at_ns
        else:
            runs[line.run].raised_ns = line.at_ns
    for own in tasks.values():
        own.sort(key=lambda run: run.begun_ns)
    return dict(tasks)


class Checker:
    """Goes through a graph once. `published` are the outcomes of each task that its submitter was
    told of, `kept` those in the table, by its number; `came_ns`: when the first one was seen."""

    def __init__(
        self,
        published: Mapping[int, Sequence[Effect]],
        kept: Mapping[int, Effect],
        runs: Mapping[int, Sequence[Run]],
        killed: Killed,
        came_ns: Mapping[int, int],
        excuses: Excuses = NO_EXCUSES,
    ) -> None:
        self._published, self._kept, self._runs, self._killed = published, kept, runs, killed
        self._came_ns, self._excuses = came_ns, excuses
        self._winners: dict[int, Run] = {}
        self.verdict = Verdict()

    def check(self, graph: Graph) -> Verdict:
        """What is found."""
        verdict = self.verdict
        known = {*self._published, *self._kept, *self._runs}
        for node, value in graph.values():
            verdict.tasks += 1
            known.discard(node.number)
            self._check_effects(node, value)
            self._check_runs(node)
        verdict.strange += len(known)
        return verdict

    def _check_effects(self, node: Node, value: int) -> None:
        told, kept = self._published.get(node.number, ()), self._kept.get(node.number)
        effect = kept or next(iter(told), None)
        winner = None
        for run in self._runs.get(node.number, ()):
            if effect is not None and run.name == effect.run:
                winner = self._winners[node.number] = run
        if not told or kept is None:
            self.verdict.bad("lost", node, f"told: {list(told)}, kept: {kept}")
            return
        if len(told) > 1 or told[0] != kept:
            self.verdict.bad("twice", node, f"told: {list(told)}, kept: {kept}")
        if not self._is_right(node, value, kept, winner):
            self.verdict.bad("wrong", node, f"{kept}, of the run {winner}; expected: {value}")

    def _is_right(self, node: Node, value: int, kept: Effect, winner: Run | None) -> bool:
        if kept.status != node.status:
            return False
        if not node.is_run:
            return winner is None
        if node.status is Status.DONE:
            return winner is not None and winner.ended_ns > 0 and kept.value == value
        return winner is not None and winner.raised_ns > 0

    def _check_runs(self, node: Node) -> None:
        own = self._runs.get(node.number, ())
        winner = self._winners.get(node.number)
        self.verdict.runs += len(own)
        if own and not node.is_run:
            self.verdict.bad("unwanted", node, f"{list(own)}")
        for at, run in enumerate(own):
            self._check_parents(node, run)
            if run is not winner:
                self._explain(node, run)
            if not self._may_begin(node, run, own[:at]):
                self.verdict.bad("unexplained", node, f"{run} after {list(own[:at])}")
        if sum(run.raised_ns > 0 for run in own) > self._may_raise(node):
            self.verdict.bad("unexplained", node, "it was begun again after it had failed for good")

    def _check_parents(self, node: Node, run: Run) -> None:
        for parent, saw in zip(node.parents, run.saw, strict=True):
            winner = self._winners.get(parent)
            if winner is None:
                continue  # it was not run: there is nothing that could have been seen
            if run.begun_ns < winner.over_ns or not winner.over_ns:
                self.verdict.bad("early", node, f"{run}, parent {parent}: {winner}")
            elif saw != (winner.name if winner.ended_ns else 0):
                self.verdict.bad("other", node, f"{run}, parent {parent}: {winner}")

    def _explain(self, node: Node, run: Run) -> None:
        """Why this run did not come to be the task's effect."""
        if run.raised_ns and node.function in (FLAKY, DOOMED):
            self.verdict.raised += 1
        elif self._killed.of(run.name):
            self.verdict.killed += 1
        elif self._excuses.lost(run.begun_ns, run.over_ns):
            self.verdict.stalled += 1
        else:
            self.verdict.bad("unexplained", node, f"{run}: {RunName.of(run.name)}")

    def _may_begin(self, node: Node, run: Run, earlier: Sequence[Run]) -> bool:
        """Only if all runs before it were over then, and the outcome was not there. (An executor
        whose worker is dead may begin what it was given: nobody hears of it.)"""
        begun_ns = run.begun_ns
        if self._excuses.begun(begun_ns):
            return True
        if begun_ns > self._came_ns.get(node.number, begun_ns):
            return False
        return self._killed.before(run.name, begun_ns) or all(
            0 < each.raised_ns <= begun_ns or self._killed.before(each.name, begun_ns)
            for each in earlier
        )

    def _may_raise(self, node: Node) -> int:
        """How often. A kill may hide that it has failed, and it fails once more."""
        if node.function != DOOMED:
            return node.raises
        killed = sum(self._killed.of(run.name) > 0 for run in self._runs.get(node.number, ()))
        return 2 + killed
