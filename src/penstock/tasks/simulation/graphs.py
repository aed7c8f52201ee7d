"""Tasks for simulations: lengths, and random graphs of what comes after what."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

SHORTEST_US, LONGEST_US = 1_000, 1_000_000


def mixed_lengths(count: int, chance: Random) -> list[int]:
    """1 ms to 1 s, as many short as long ones on a logarithmic scale; in microseconds."""
    low, high = math.log(SHORTEST_US), math.log(LONGEST_US)
    return [int(math.exp(chance.uniform(low, high))) for _ in range(count)]


def random_graph(count: int, window: int, most: int, chance: Random) -> list[tuple[int, ...]]:
    """For each task up to `most` that it comes after, of the `window` before it."""
    graph: list[tuple[int, ...]] = [()]
    for task in range(1, count):
        wanted = chance.randint(0, most)
        first = max(0, task - window)
        graph.append(tuple({chance.randrange(first, task) for _ in range(wanted)}))
    return graph


def depth(graph: Sequence[Sequence[int]]) -> int:
    """Tasks on the longest way through a graph."""
    level = [0] * len(graph)
    for task, parents in enumerate(graph):
        level[task] = 1 + max((level[parent] for parent in parents), default=0)
    return max(level)
