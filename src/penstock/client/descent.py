"""When the reader of a topic that grows may go on from a partition to its children.

A key's messages are in its parent first, and in the child after that. Whoever reads both hands out
all of the parent up to the split before anything of the child; a group whose members read different
partitions waits until the parent's part is committed. Whoever names partitions, and is of no group,
is not held back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping

from penstock.client.ops_group import committed
from penstock.client.ops_topic import split_offsets
from penstock.client.state import TopicState
from penstock.client.steps import Steps

_LOOK_S = 3.0  # how often a reader asks whether the topic has grown
_HINTED_S = 1.0  # the same after a sign of it: an answer without messages
_HELD_S = 0.25  # how often one that holds children back asks whether they may be read
_FOREVER_S = 3600.0


class Descent:
    """Partitions that wait for their parents, and news of others."""

    def __init__(
        self,
        topic: TopicState,
        group: str | None,
        named: bool,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._topic = topic
        self._group = group
        self._named = named  # the reader said which partitions it wants
        self._clock = clock or time.monotonic
        self._held: dict[int, None] = {}
        self._splits: dict[int, int] = {}  # child: the offset at which its parent was split
        self._looked_s = self._asked_s = float("-inf")
        self._hinted = False

    @property
    def holds(self) -> bool:
        """Whether partitions wait for their parents."""
        return bool(self._held)

    @property
    def patience_s(self) -> float:
        """How long a reader may wait for messages before it looks here again."""
        if self._held:
            return _HELD_S
        return _FOREVER_S if self._named else _LOOK_S

    def hint(self) -> None:
        """A fetch was answered without messages: that is how a split shows."""
        self._hinted = True

    def due(self) -> bool:
        """Whether it is time to `look`."""
        every_s = _HINTED_S if self._hinted else _LOOK_S
        return not self._named and self._clock() - self._looked_s >= every_s

    def look(self) -> Steps[None]:
        """Asks whether the topic has grown."""
        self._looked_s, self._hinted = self._clock(), False
        yield from self._topic._look()

    def unread(self, read: Collection[int]) -> list[int]:
        """Partitions that are not read and should be: new ones, unless some were named."""
        if self._named or len(read) >= self._topic.partitions:
            return []
        return sorted(set(range(self._topic.partitions)).difference(read))

    def hold(self, partitions: Iterable[int]) -> None:
        """These are to be read as soon as they may be."""
        self._held.update(dict.fromkeys(partitions))

    def released(self, reached: Mapping[int, int]) -> Steps[list[int]]:
        """Those held back that may be read now; `reached` is how far others have been handed out
        by the same reader."""
        parents = self._topic._layout.parents
        free = self._let_go(reached)
        now_s = self._clock()
        if self._held and now_s - self._asked_s >= _HELD_S:
            self._asked_s = now_s
            yield from self._learn_splits(list(self._held))
            elsewhere = {p for each in self._held if (p := parents[each]) is not None}
            elsewhere -= reached.keys()
            done: Mapping[int, int] = {}
            if elsewhere and self._group is not None:
                done = yield from committed(self._topic, self._group, sorted(elsewhere))
            free += self._let_go({**done, **reached})
        return free

    def _let_go(self, reached: Mapping[int, int]) -> list[int]:
        """Parents have lower numbers than their children: one after the other may be free."""
        free: list[int] = []
        for each in sorted(self._held):
            if not self._waits(each, reached):
                del self._held[each]
                free.append(each)
        return free

    def _waits(self, partition: int, reached: Mapping[int, int]) -> bool:
        parent = self._topic._layout.parents[partition]
        if parent is None or (parent not in reached and self._group is None):
            return False
        if parent in self._held:  # wherever it would begin, nothing of it has been handed out
            return True
        split = self._splits.get(partition)
        return split is None or reached.get(parent, -1) < split

    def _learn_splits(self, children: list[int]) -> Steps[None]:
        unknown = [each for each in children if each not in self._splits]
        if unknown:
            self._splits.update((yield from split_offsets(self._topic, unknown)))

    def by_generation(self, positions: Mapping[int, int]) -> list[dict[int, int]]:
        """The same, parents before their children."""
        born = self._topic._layout.born
        ordered: dict[int, dict[int, int]] = {}
        for partition in sorted(positions, key=born.__getitem__):
            ordered.setdefault(born[partition], {})[partition] = positions[partition]
        return list(ordered.values())
