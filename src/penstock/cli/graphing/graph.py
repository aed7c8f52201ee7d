"""A random graph of tasks, drawn from a seed, one after the other: parents come before children."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple

from penstock.tasks.envelope import Status

COMBINE, FLAKY, DOOMED = "combine", "flaky", "doomed"

WINDOW = 5_000  # tasks back that another may depend on
REACH = 2 * WINDOW  # no parent is further back, those that fail not counted
MOST_PARENTS = 8  # of an ordinary task
WIDEST = 500  # children of one task, and parents of another
SOURCES = 0.02  # of the ordinary tasks: depend on nothing
FLAKY_SHARE = 0.03  # fail at first, and are tried again
LONG_SHARE = 0.02
LONG_MS = (20.0, 100.0)
SHORT_MS = (0.0, 2.0)
INSTEAD = {Status.FAILED: 1, Status.SKIPPED: 2}  # of the value of a parent that has none


class Node(NamedTuple):
    """One task: what it is called with, and how it has to end."""

    number: int
    function: str
    parents: tuple[int, ...]
    on_failure: str = "fail"
    status: Status = Status.DONE
    work_ms: float = 0.0
    raises: int = 0
    """How often it fails before it succeeds."""
    is_run: bool = True
    """Whether it is begun at all: not if a parent's failure ends it."""


def value_of(number: int, parents: Sequence[int]) -> int:
    """What a task makes of the values of its parents."""
    digest = blake2b(number.to_bytes(8, "big"), digest_size=8)
    for value in parents:
        digest.update(value.to_bytes(8, "big"))
    return int.from_bytes(digest.digest(), "big") >> 1


@dataclass(frozen=True)
class Graph:
    """So many tasks; the same ones for the same seed, every time that they are iterated over."""

    tasks: int
    seed: int

    def __iter__(self) -> Iterator[Node]:
        growth, count = _Growth(random.Random(self.seed)), 0
        while True:
            for node in growth.piece():
                if count == self.tasks:
                    return
                count += 1
                yield node

    def values(self) -> Iterator[tuple[Node, int]]:
        """Each task with its value, by a plain loop; of those that fail, what stands for it."""
        known: dict[int, int] = {}
        for node in self:
            if node.status is Status.DONE:
                value = value_of(node.number, [known[each] for each in node.parents])
            else:
                value = INSTEAD[node.status]
            known[node.number] = value
            known.pop(node.number - REACH, None)
            yield node, value


@dataclass
class Shape:
    """Figures of a graph."""

    edges: int = 0
    depth: int = 0
    most_parents: int = 0
    most_children: int = 0

    @classmethod
    def of(cls, graph: Graph) -> Shape:
        """Counted by going through it once."""
        found = cls()
        depths: dict[int, int] = {}
        children: dict[int, int] = {}
        for node in graph:
            depth = 1 + max((depths[each] for each in node.parents), default=0)
            depths[node.number] = depth
            for parent in node.parents:
                children[parent] = children.get(parent, 0) + 1
            found.edges += len(node.parents)
            found.depth = max(found.depth, depth)
            found.most_parents = max(found.most_parents, len(node.parents))
        found.most_children = max(children.values(), default=0)
        return found


@dataclass
class _Growth:
    """Adds a piece of some shape after the other, each tied to what is there."""

    chance: random.Random
    recent: deque[int] = field(default_factory=lambda: deque(maxlen=WINDOW))  # that succeed
    added: list[Node] = field(default_factory=list)
    count: int = 0

    def piece(self) -> list[Node]:
        """The tasks of the next piece."""
        self.added = []
        shape = self.chance.choices(_SHAPES, _WEIGHTS)[0]
        shape(self)
        return self.added

    def _add(self, parents: Sequence[int]) -> int:
        """A task that succeeds, sooner or later."""
        chance = self.chance
        raises = chance.randint(1, 2) if chance.random() < FLAKY_SHARE else 0
        work_ms = chance.uniform(*(LONG_MS if chance.random() < LONG_SHARE else SHORT_MS))
        function = FLAKY if raises else COMBINE
        node = Node(self.count, function, tuple(parents), work_ms=round(work_ms, 2), raises=raises)
        return self._take(node)

    def _take(self, node: Node) -> int:
        self.added.append(node)
        self.count += 1
        if node.status is Status.DONE:
            self.recent.append(node.number)
        return node.number

    def _some(self, most: int) -> list[int]:
        """A few that are there, each once."""
        count = min(self.chance.randint(1, most), len(self.recent))
        places = self.chance.sample(range(len(self.recent)), count)
        return [self.recent[place] for place in places]

    def web(self) -> None:
        """Ordinary tasks, few parents each, from anywhere."""
        for _ in range(self.chance.randint(50, 400)):
            source = self.chance.random() < SOURCES
            most = self.chance.randint(1, MOST_PARENTS)
            self._add([] if source else self._some(most))

    def layers(self) -> None:
        """Each task depends on some of the layer above; one on the whole of the last."""
        width = self.chance.randint(10, 60)
        above = [self._add(self._some(2)) for _ in range(width)]
        for _ in range(self.chance.randint(3, 9)):
            drawn = [self.chance.sample(above, self.chance.randint(1, 5)) for _ in range(width)]
            above = [self._add(parents) for parents in drawn]
        self._add(above)

    def fan(self) -> None:
        """One, then many that depend on it, then one that depends on them all."""
        first = self._add(self._some(3))
        width = self.chance.randint(50, WIDEST)
        self._add([self._add([first]) for _ in range(width)])

    def chain(self) -> None:
        """One after the other."""
        last = self._add(self._some(2))
        for _ in range(self.chance.randint(10, 40)):
            last = self._add([last])

    def failing(self) -> None:
        """A task that fails for good, and what depends on it, with every policy."""
        doomed = self._take(Node(self.count, DOOMED, tuple(self._some(2)), status=Status.FAILED))
        ended = [doomed]
        for policy, status in (("fail", Status.FAILED), ("skip", Status.SKIPPED)):
            parents = (doomed, *self._some(2))
            child = self._take(
                Node(self.count, COMBINE, parents, policy, status, is_run=False)
            )
            ended += [child, self._take(
                Node(self.count, COMBINE, (child,), policy, status, is_run=False)
            )]  # fmt: skip
        self._take(Node(self.count, COMBINE, (*ended, *self._some(2)), "run"))


_SHAPES: list[Callable[[_Growth], None]] = [
    _Growth.web, _Growth.layers, _Growth.fan, _Growth.chain, _Growth.failing,
]  # fmt: skip
_WEIGHTS = (4, 2, 2, 2, 2)
