"""Which partition has a key, now and before a topic grew.

A partition owns a range of hashes: the upper 32 bits of a key's. A growth splits some of them: the
parent keeps the first part of its range, its children, which are new partitions, get the rest in
equal parts. All of this follows from the number of partitions at the beginning and, for each
growth, the parents of those that it added: that is all a definition has to say.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from heapq import heapify, heapreplace
from itertools import pairwise
from typing import NamedTuple

import msgspec
import xxhash

from penstock.wire.numeric import Longs, np

HASH_BITS = 32
ANY_GENERATION = 0xFFFFFFFF  # of a batch that is meant for its partition, whatever its keys are


class Split(msgspec.Struct, frozen=True):
    """A partition gave up part of its range: `children[i]` owns hashes from `bounds[i]` on, up to
    the next bound, and has what came after `offset`."""

    generation: int
    offset: int
    children: list[int]
    bounds: list[int]


class PartitionFamily(msgspec.Struct, frozen=True):
    """Where a partition comes from, what it owns, and what it gave away."""

    number: int
    generation: int  # in which it was born; 0: with its topic
    parent: int | None
    low: int  # its keys have hashes from here on,
    high: int  # and below this
    origin: int | None  # the first offset that it ever had; None: it is not open yet
    splits: list[Split]


class Birth(NamedTuple):
    """Children of one parent in one growth, and where their ranges begin."""

    generation: int
    children: list[int]
    bounds: list[int]


def hash_of(key: bytes) -> int:
    """What decides on the partition of a key."""
    return xxhash.xxh3_64_intdigest(key) >> (64 - HASH_BITS)


class Layout:
    """The partitions of a topic: `initial` of them, and those that `growths` added, each a list of
    their parents. Generation 0 is how it began."""

    def __init__(self, initial: int, growths: Sequence[Sequence[int]]) -> None:
        self.initial = initial
        self.generation = len(growths)
        self.parents: list[int | None] = [None] * initial
        self.counts = [initial]  # of partitions, in each generation
        self.born = [0] * initial  # the generation of each partition
        self.births: list[list[Birth]] = [[] for _ in range(initial)]  # by parent
        # The least hash for which `hash * initial >> 32` is the partition's number.
        edges = [-(-(number << HASH_BITS) // initial) for number in range(initial + 1)]
        self.ranges = list(pairwise(edges))
        for generation, parents in enumerate(growths, start=1):
            self._grow(generation, parents)
        rows = sorted((low, number) for number, (low, _) in enumerate(self.ranges))
        self._lows = [low for low, _ in rows]
        self._numbers = [number for _, number in rows]

    def _grow(self, generation: int, parents: Sequence[int]) -> None:
        children: dict[int, list[int]] = {}
        for child, parent in enumerate(parents, start=len(self.born)):
            children.setdefault(parent, []).append(child)
        self.parents += parents
        self.born += [generation] * len(parents)
        self.counts.append(len(self.born))
        self.births += [[] for _ in parents]
        self.ranges += [(0, 0)] * len(parents)
        for parent, numbers in children.items():
            low, high = self.ranges[parent]
            parts = len(numbers) + 1
            edges = [low + (high - low) * part // parts for part in range(parts + 1)]
            self.ranges[parent] = low, edges[1]
            for number, own in zip(numbers, pairwise(edges[1:]), strict=True):
                self.ranges[number] = own
            self.births[parent].append(Birth(generation, numbers, edges[1:-1]))

    def partition_of(self, key: bytes) -> int:
        """Who has a key now."""
        hashed = xxhash.xxh3_64_intdigest(key) >> 32  # as `hash_of`, without the call
        if not self.generation:
            return (hashed * self.initial) >> HASH_BITS
        return self._numbers[bisect_right(self._lows, hashed) - 1]

    def partitions_of(self, keys: Iterable[bytes], count: int) -> Longs:
        """Who has each of these keys now; there are `count` of them."""
        digests = np.fromiter(map(xxhash.xxh3_64_intdigest, keys), np.uint64, count)
        hashed = digests >> np.uint64(HASH_BITS)
        if not self.generation:
            return ((hashed * np.uint64(self.initial)) >> np.uint64(HASH_BITS)).astype(np.int64)
        lows = np.array(self._lows, np.uint64)
        found = np.searchsorted(lows, hashed, side="right") - 1
        return np.array(self._numbers, np.int64)[found]

    def partition_at(self, key: bytes, generation: int) -> int:
        """Who had it in a generation."""
        number = self.partition_of(key)
        while self.born[number] > generation:
            parent = self.parents[number]
            assert parent is not None, "only those with a parent were born later"
            number = parent
        return number

    def next_of(self, number: int, key: bytes) -> int:
        """Whom a partition hands a message of this key to: itself if the key is its own, else the
        child that got the key from it, which may have handed it on. Itself, too, if the key never
        was its own."""
        owner: int | None = self.partition_of(key)
        while owner is not None and owner != number:
            parent = self.parents[owner]
            if parent == number:
                return owner
            owner = parent
        return number


def parents_for(layout: Layout, more: int) -> list[int]:
    """The parents of `more` new partitions: each time the one whose parts would be widest."""
    widths = [high - low for low, high in layout.ranges]
    heap = [(-float(width), number, 1) for number, width in enumerate(widths)]
    heapify(heap)
    parents: list[int] = []
    for _ in range(more):
        _, number, parts = heap[0]
        parents.append(number)
        heapreplace(heap, (-(widths[number] / (parts + 1)), number, parts + 1))
    return sorted(parents)
