"""Who is alive: heartbeats, and suspicions of those who could not reach a node."""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Literal

from penstock.cluster.map import MAX_NODES
from penstock.errors import InvalidError, LimitError

Verdict = Literal["down", "up"]

MAX_REPORTERS = 3  # more of them change nothing
_STALE = 8  # entries of the heap for every node, before those that mean nothing are dropped


@dataclass(slots=True)
class _Watched:
    incarnation: int
    heard_us: int
    down: bool = False
    reporters: dict[int, int] = field(default_factory=dict)  # who suspects it, since when
    queued_us: int = 0  # the earliest time at which it stands in the heap


class Detector:
    """Declares nodes down that are silent for a time-out, and up when they are heard again.

    Each of up to three reporters takes a quarter off the time-out, so that a failed node is found
    sooner while somebody needs it; a heartbeat clears all suspicion. Call `tick` at `next_due`.
    """

    def __init__(self, timeout_us: int, now_us: int) -> None:
        if timeout_us < 4:
            raise InvalidError(f"a time-out of {timeout_us} us")
        self.timeout_us = timeout_us
        self._ticked_us = now_us
        self._nodes: dict[int, _Watched] = {}
        self._heap: list[tuple[int, int]] = []
        self._risen: set[int] = set()

    def watch(self, node: int, incarnation: int, now_us: int, down: bool = False) -> None:
        """Expect heartbeats from now on, from a node that is known (a new leader knows them all).
        LimitError if there are too many."""
        if node not in self._nodes and len(self._nodes) >= MAX_NODES:
            raise LimitError(f"{MAX_NODES} nodes are watched")
        self._nodes[node] = _Watched(incarnation, now_us, down)
        self._risen.discard(node)
        self._queue(node)

    def forget(self, node: int) -> None:
        """It is no longer part of the cluster."""
        self._nodes.pop(node, None)
        self._risen.discard(node)

    def incarnation_of(self, node: int) -> int | None:
        """The incarnation that was heard of last; None if the node is not watched."""
        watched = self._nodes.get(node)
        return None if watched is None else watched.incarnation

    def takes_for_down(self, node: int) -> bool:
        """What was said last of a node."""
        watched = self._nodes.get(node)
        return watched is not None and watched.down

    def heard(self, node: int, incarnation: int, now_us: int) -> None:
        """A heartbeat. One of an older incarnation says nothing."""
        watched = self._nodes.get(node)
        if watched is None:
            self.watch(node, incarnation, now_us)
            return
        if incarnation < watched.incarnation:
            return
        watched.incarnation = incarnation
        watched.heard_us = max(watched.heard_us, now_us)
        watched.reporters.clear()
        if watched.down:
            self._risen.add(node)

    def suspect(self, node: int, by: int, now_us: int) -> None:
        """Somebody, a client or another node, could not reach it."""
        watched = self._nodes.get(node)
        if watched is None or watched.down or by == node:
            return
        reporters = watched.reporters
        if by in reporters or len(reporters) < MAX_REPORTERS:
            reporters[by] = now_us
            self._queue(node)

    def tick(self, now_us: int) -> list[tuple[int, Verdict]]:
        """What changed, by node. After a pause of its own it knows nothing of the time it missed,
        and listens for a full time-out before it declares anybody down."""
        if now_us - self._ticked_us > self.timeout_us:
            self._start_anew(now_us)
        self._ticked_us = max(self._ticked_us, now_us)
        changes: list[tuple[int, Verdict]] = [(node, "up") for node in self._risen]
        for node in self._risen:
            self._nodes[node].down = False
            self._queue(node)
        self._risen.clear()
        while self._heap and self._heap[0][0] <= now_us:
            due_us, node = heappop(self._heap)
            if self._has_failed(node, due_us, now_us):
                changes.append((node, "down"))
        return sorted(changes)

    def next_due(self) -> int | None:
        """When to call `tick`: early enough that its own pauses are told from others' silence.
        None if there is nobody to wait for."""
        if self._risen:
            return self._ticked_us
        if not self._heap:
            return None
        return min(self._heap[0][0], self._ticked_us + self.timeout_us // 2)

    def _has_failed(self, node: int, due_us: int, now_us: int) -> bool:
        watched = self._nodes.get(node)
        if watched is None or watched.down or due_us != watched.queued_us:
            return False
        watched.queued_us = 0
        self._expire(watched, now_us)
        if self._deadline_us(watched) <= now_us:
            watched.down = True
            watched.reporters.clear()
        else:
            self._queue(node)
        return watched.down

    def _expire(self, watched: _Watched, now_us: int) -> None:
        oldest_us = now_us - self.timeout_us
        for by in [by for by, at_us in watched.reporters.items() if at_us < oldest_us]:
            del watched.reporters[by]

    def _deadline_us(self, watched: _Watched) -> int:
        shortened = self.timeout_us // 4 * len(watched.reporters)
        return watched.heard_us + self.timeout_us - shortened

    def _queue(self, node: int) -> None:
        """Stands in the heap at its deadline or before; heartbeats cost the heap nothing."""
        watched = self._nodes[node]
        due_us = self._deadline_us(watched)
        if not watched.down and (not watched.queued_us or due_us < watched.queued_us):
            watched.queued_us = due_us
            heappush(self._heap, (due_us, node))
        if len(self._heap) > _STALE * len(self._nodes):
            self._rebuild()

    def _start_anew(self, now_us: int) -> None:
        for watched in self._nodes.values():
            watched.heard_us = max(watched.heard_us, now_us)
            watched.reporters.clear()
        self._rebuild()

    def _rebuild(self) -> None:
        self._heap.clear()
        for node, watched in self._nodes.items():
            if not watched.down:
                watched.queued_us = self._deadline_us(watched)
                self._heap.append((watched.queued_us, node))
        heapify(self._heap)
