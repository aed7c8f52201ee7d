"""The next replica to move so that all nodes get their share, with as few moves as possible."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from penstock.cluster.map import STRONG
from penstock.cluster.view import View


class Move(NamedTuple):
    """A replica that goes from one node to another."""

    shard: int
    donor: int
    target: int


def next_move(view: View, touched: set[int]) -> Move | None:
    """One move that brings a node nearer to its fair share; None if all have theirs, or nothing
    can move now. Each takes from a node with too much or gives to one with too little, and both
    where that is possible: fewer moves would not do."""
    search = _Search(view, touched)
    if not search.over and not search.under:
        return None
    if search.over:
        found = search.direct(search.over, search.under) or search.direct(search.over, search.room)
        return found or search.detour(search.over, search.room)
    return search.direct(search.spare, search.under) or search.detour(search.spare, search.under)


class _Search:
    def __init__(self, view: View, touched: set[int]) -> None:
        self.view = view
        self.touched = touched
        shares, held = view.shares, view.held
        ready = view.neediest()
        self.under = [node for node in ready if held[node] < shares.low(node)]
        self.room = [node for node in ready if held[node] < shares.high(node)]
        by_excess = sorted(view.members, key=lambda node: (-shares.excess(node, held[node]), node))
        self.over = [node for node in by_excess if held[node] > shares.high(node)]
        self.spare = [node for node in by_excess if held[node] > shares.low(node)]

    def direct(self, donors: Sequence[int], targets: Sequence[int]) -> Move | None:
        """From one of these to one of those, the first of each if possible."""
        for donor in donors if targets else ():
            best = len(targets), 0
            for shard in self._movable(donor):
                replicas = self.view.state.shards[shard].replicas
                rank = next((i for i, node in enumerate(targets) if node not in replicas), best[0])
                if rank < best[0]:
                    best = rank, shard
                if rank == 0:
                    break
            if best[0] < len(targets):
                return Move(best[1], donor, targets[best[0]])
        return None

    def detour(self, donors: Sequence[int], targets: Sequence[int]) -> Move | None:
        """The donors' shards are on the targets already: others give to a target first, and so make
        room for what a donor has. The last move of the shortest such chain. Only while all is
        quiet: otherwise waiting may be all it takes."""
        if self.view.moving or self.touched or self.view.resting():
            return None
        last: dict[int, Move | None] = dict.fromkeys(targets)
        waiting = deque(targets if donors else ())
        while waiting:
            target = waiting.popleft()
            for node in self.view.members:
                move = None if node in last else self.direct([node], [target])
                if move is not None:
                    last[node] = last[target] or move
                    if node in donors:
                        return last[node]
                    waiting.append(node)
        return None

    def _movable(self, donor: int) -> list[int]:
        """Shards that are as they should be, those first whose owner need not change."""
        view = self.view
        shards = view.state.shards
        found = []
        for shard in view.state.map().shards_of(donor):
            place = shards[shard]
            if (
                shard not in self.touched
                and not place.joining
                and len(place.replicas) == view.copies
                and len(place.in_sync) >= min(view.copies, STRONG)
                and view.up.issuperset(place.replicas)
                and view.may_join(place.owner)
            ):
                found.append(shard)
        found.sort(key=lambda shard: shards[shard].owner == donor)
        return found
