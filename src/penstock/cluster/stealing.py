"""Message stealing: who takes messages of a queue from whom, when, and how many.

A node whose consumers wait in vain says so to the owner of the queue's list, who names a node that
has messages; that one is asked, and moves some of its batches. All of it is soft: whatever is lost
on the way is said again a while later, and nothing depends on it but how soon a consumer is served.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

STARVED_US = 20_000  # so long consumers have waited in vain before their node says so
LYING_US = 50_000  # so long nobody has wanted messages before they are given away
PATIENCE_US = 2_000_000  # with whoever was asked for messages
AGAIN_US = 10_000_000  # what was told to the owner of the list may be lost: it is told again
FIRST_PAUSE_US = 100_000  # after a node that was asked had nothing to give; it doubles
LONGEST_PAUSE_US = 5_000_000
MOST_BYTES = 1 << 20  # of one theft; it is one batch at least, however large that is
MOST_BATCHES = 256
KEPT = 1000  # messages that a node keeps for each consumer of its own
MOST_WANTED = 100_000


class Lying(NamedTuple):
    """A batch that could be given away."""

    messages: int
    size: int
    arrived_us: int


class Hunger:
    """One queue on a node whose consumers wait. `due_us` is when `next` should be called."""

    def __init__(self, now_us: int) -> None:
        self.due_us = now_us + STARVED_US
        self._strikes = 0
        self._asked = 0  # the node that is to give

    def next(self, now_us: int) -> None:
        """The consumers still wait: the owner of the list is told so."""
        self._asked = 0
        self.due_us = now_us + AGAIN_US

    def offered(self, node: int, now_us: int) -> bool:
        """The owner of the list names a node that has messages; whether it is asked for some."""
        if self._asked:
            return False
        self._asked = node
        self.due_us = now_us + PATIENCE_US
        return True

    def given(self, node: int, messages: int, now_us: int) -> None:
        """The node that was asked says how many it gave."""
        if node != self._asked:
            return
        self._asked = 0
        self._strikes = 0 if messages else self._strikes + 1
        pause_us = min(FIRST_PAUSE_US << min(self._strikes, 10) >> 1, LONGEST_PAUSE_US)
        self.due_us = now_us + (STARVED_US if messages else pause_us)


class Hungry:
    """The nodes whose consumers wait for one queue, at the owner of its list. Who was named a node
    is not hungry any more, until it says so again."""

    def __init__(self) -> None:
        self._nodes: dict[int, None] = {}  # the longest waiting first
        self._turn = 0

    def __bool__(self) -> bool:
        return bool(self._nodes)

    def add(self, node: int) -> None:
        """A node's consumers wait."""
        self._nodes.setdefault(node)

    def keep(self, nodes: Iterable[int]) -> None:
        """All others own nothing any more, and so can take nothing."""
        kept = set(nodes)
        self._nodes = {node: None for node in self._nodes if node in kept}

    def match(self, full: Iterable[int]) -> Iterator[tuple[int, int]]:
        """Who takes from whom: each hungry node gets another to ask, as far as there are any, and
        not the same again and again: it may keep what it has for consumers of its own."""
        left = [node for node in full if node not in self._nodes]
        at = self._turn % max(len(left), 1)
        left = [*left[at:], *left[:at]]
        self._turn += 1
        for thief, victim in zip(list(self._nodes), left, strict=False):
            del self._nodes[thief]
            yield thief, victim


def most_given(ready: int, wanted: int, consumers: int) -> int:
    """How many messages a node gives away of those that are ready: at most half, rounded up, no
    more than are wanted, and not what its own consumers will soon take."""
    return max(min((ready + 1) // 2, wanted, ready - KEPT * consumers), 0)


def chosen(lying: Iterable[Lying], messages: int, now_us: int) -> int:
    """How many of these batches are given away, from the first on, where so many messages may be:
    whole ones only, one at least. What came a moment ago may still be taken where it is."""
    batches = size = 0
    for each in lying:
        over = batches and (each.messages > messages or size + each.size > MOST_BYTES)
        if messages <= 0 or over or batches >= MOST_BATCHES:
            break
        if each.arrived_us > now_us - LYING_US:
            break
        batches += 1
        messages -= each.messages
        size += each.size
    return batches
