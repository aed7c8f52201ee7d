"""Producers: identity and sequences per shard."""

from __future__ import annotations

import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from enum import IntEnum

import xxhash

from penstock.client.routing import Routes
from penstock.cluster.ring import ALONE_TURNS, Walk, permutation, walk_order
from penstock.errors import (
    ForgottenError,
    InvalidError,
    PenstockError,
    ProtocolError,
    UnavailableError,
)

_IDLE_S = 300.0  # a node may forget a producer that it has not heard of for some longer time


def shard_of(name: bytes, shards: int) -> int:
    """The shard of an id, of an ordered queue's name or key, and of a table's key."""
    return xxhash.xxh3_64_intdigest(name) % shards


class Verdict(IntEnum):
    """What the refusal of a request with numbers means."""

    FINAL = 0  # refused for its own sake, or nobody knows whether it was stored
    SUSPECT = 1  # not stored; perhaps only because the node does not know the numbers before it
    DISPLACED = 2  # not stored, because one before it was refused


class Lane:
    """One producer's sequence on one shard. All but `refused` only by whoever is sending."""

    __slots__ = ("_hole", "_refused", "instance", "next", "producer", "stored", "used_s")

    def __init__(self, producer: int, instance: int = 0, first: int = 0) -> None:
        self.producer = producer
        self.instance = instance
        self.next = first
        self.stored = first  # messages that the node has answered for
        self.used_s = 0.0  # when it was last sent on
        self._hole: int | None = None  # the lowest number that was refused for its own sake
        # Filled by whoever reads answers, emptied by whoever sends: no lock is shared.
        self._refused: deque[tuple[int, int]] = deque()

    def refused(self, sequence: int, count: int, error: PenstockError, resent: bool) -> Verdict:
        """A request with these numbers failed. Those that were not stored can be sent again.

        A node takes no number before it has all those below it, so a refusal takes those behind it
        along; and a node that lost or forgot the producer takes none but the first.
        """
        unknown = type(error) is InvalidError or type(error) is ForgottenError
        if unknown and self._hole is not None and self._hole < sequence:
            self._refused.append((sequence, count))
            return Verdict.DISPLACED
        if isinstance(error, UnavailableError | ProtocolError) or (
            resent and isinstance(error, ForgottenError)
        ):
            self._refused.append((sequence, 0))  # nobody knows whether it was stored
            return Verdict.FINAL
        self._hole = sequence if self._hole is None else min(self._hole, sequence)
        self._refused.append((sequence, 0 if unknown else count))
        return Verdict.SUSPECT if unknown else Verdict.FINAL

    def mend(self) -> bool:
        """Gives back the last numbers if they were refused; False if the lane is of no more use:
        a hole is left below other numbers, or the node's count may differ.
        """
        if not self._refused:
            return True
        failed = sorted(self._refused.popleft() for _ in range(len(self._refused)))
        for sequence, count in reversed(failed):
            if not count or sequence + count != self.next:
                return False
            self.next = sequence
        self._hole = None
        return True


def unsequenced(shard: int) -> Lane:
    """For a push with an id of its own, which is what makes a resend of it harmless: producer 0."""
    return Lane(0)


class Producer:
    """The identity under which a fabric pushes. All but `give_back` only by whoever is sending."""

    def __init__(
        self,
        identity: int,
        shards: int,
        seed: int,
        now_s: Callable[[], float] | None = None,
    ) -> None:
        self.shards = shards
        self._now_s = now_s or time.monotonic
        self._chance = random.Random(seed)
        self._identity = identity
        self._lanes: dict[int, Lane] = {}
        # Filled by whoever reads answers, emptied by whoever sends: no lock is shared.
        self._free: dict[int, list[Lane]] = {}

    def lane(self, shard: int) -> Lane:
        """The sequence on a shard; with a new identity if the one before is of no more use."""
        lane = self._lanes.get(shard)
        now_s = self._now_s()
        if lane is None:
            lane = self._lanes[shard] = Lane(self._identity)
        elif now_s - lane.used_s > _IDLE_S or not lane.mend():
            lane = self._lanes[shard] = Lane(self._chance.getrandbits(63) | 1)
        lane.used_s = now_s
        return lane

    def free_lane(self, shard: int) -> Lane:
        """A lane with nothing under way, for one request alone until `give_back`: its refusal takes
        no other along, and the node still knows the answer. As many as are needed at once."""
        free = self._free.setdefault(shard, [])
        lane = free.pop() if free else None
        now_s = self._now_s()
        if lane is None or now_s - lane.used_s > _IDLE_S or not lane.mend():
            lane = Lane(self._chance.getrandbits(63) | 1)
        lane.used_s = now_s
        return lane

    def give_back(self, shard: int, lane: Lane) -> None:
        """The request has its answer. Called by whoever reads answers."""
        self._free[shard].append(lane)

    def own(self) -> Producer:
        """A producer for one stream alone, whose order no failure elsewhere may disturb."""
        identity, seed = self._chance.getrandbits(63) | 1, self._chance.getrandbits(64)
        return Producer(identity, self.shards, seed, self._now_s)

    def walk_over(self, places: int) -> SharedWalk:
        """A new walk over so many shards or partitions."""
        return SharedWalk(Walk(permutation(places, self._chance.getrandbits(64))))

    def walk_shards(self, routes: Routes | None) -> SharedWalk:
        """A new walk over all shards; in a cluster, one on which its nodes take turns."""
        if routes is None:
            order = permutation(self.shards, self._chance.getrandbits(64))
            return SharedWalk(Walk(order, together=True, turns=ALONE_TURNS))
        return SharedWalk(ClusterWalk(routes, self._chance.getrandbits(64)))


class SharedWalk:
    """A walk of all threads that push to a stream. Without a lock, two of them at the end of a
    stretch would leave the path for ever. In a forked process the lock may be another's who is not
    there; nothing is pushed from there, but whoever tries must be told."""

    __slots__ = ("_lock", "_process", "_walk")

    def __init__(self, walk: Walk | ClusterWalk) -> None:
        self._walk = walk
        self._lock = threading.RLock()
        self._process = os.getpid()

    def batch(self) -> int:
        """Where the next batch goes."""
        if os.getpid() != self._process:
            return 0
        with self._lock:
            return self._walk.batch()

    def single(self) -> int:
        """Where the next single message goes."""
        if os.getpid() != self._process:
            return 0
        with self._lock:
            return self._walk.single()


class ClusterWalk:
    """A walk over the shards of a cluster, as `Walk`, that follows the map: when owners change, the
    round that is under way is finished in the old order, and the next has the new one. So no shard
    is left out or visited twice, wherever it lies by then."""

    __slots__ = ("_placed", "_routes", "_seed", "_walk")

    def __init__(self, routes: Routes, seed: int) -> None:
        self._routes = routes
        self._seed = seed
        self._placed = routes.placed
        self._walk = Walk(*walk_order(self._placed, seed), together=True)

    def batch(self) -> int:
        """Where the next batch goes."""
        return self._current().batch()

    def single(self) -> int:
        """Where the next single message goes."""
        return self._current().single()

    def _current(self) -> Walk:
        placed = self._routes.placed
        if placed is not self._placed:
            self._placed = placed
            self._walk.follow(*walk_order(placed, self._seed))
        return self._walk
