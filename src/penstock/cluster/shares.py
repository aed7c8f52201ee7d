"""Fair shares by weight, exactly: who has too much, who too little, and how owners even out."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence


class Shares:
    """What each node's part of a total is. Every count between `low` and `high` is fair: the part
    rounded down and up. No part is larger than `cap`; the others share what a capped node cannot
    take."""

    def __init__(self, weights: Mapping[int, int], total: int, cap: int) -> None:
        free = dict(weights)
        rest = total
        while True:
            self._scale = sum(free.values()) or 1
            full = [node for node, weight in free.items() if weight * rest > cap * self._scale]
            if not full:
                break
            for node in full:
                del free[node]
            rest -= cap * len(full)
        self._parts = dict.fromkeys(weights, cap * self._scale)  # times the scale
        self._parts.update((node, weight * rest) for node, weight in free.items())

    def low(self, node: int) -> int:
        """The least that is fair."""
        return self._parts[node] // self._scale

    def high(self, node: int) -> int:
        """The most that is fair."""
        return -(-self._parts[node] // self._scale)

    def excess(self, node: int, count: int) -> int:
        """How far a count is above the node's part; in a unit that compares between nodes."""
        return count * self._scale - self._parts[node]

    def whole(self, total: int) -> dict[int, int]:
        """The parts as whole numbers that sum up to the total, which they were made for."""
        counts = {node: self.low(node) for node in self._parts}
        neediest = sorted(counts, key=lambda node: (self.excess(node, counts[node]), node))
        for node in neediest[: total - sum(counts.values())]:
            counts[node] += 1
        return counts


class Owners:
    """Who owns each shard and who else could. Moves owners along the shortest chains that help.
    `base` is what nodes have beside that, and keep."""

    def __init__(
        self, nodes: Iterable[int], shares: Shares, base: Mapping[int, int] | None = None
    ) -> None:
        self._shares = shares
        self._base = base or {}
        self._owned: dict[int, dict[int, Sequence[int]]] = {node: {} for node in nodes}
        # Dicts for sets, whose order is always the same.
        self._over: dict[int, None] = {}
        self._under: dict[int, None] = {}
        self._spare: dict[int, None] = {}
        for node in self._owned:
            self._weigh(node)

    def add(self, shard: int, owner: int, heirs: Sequence[int]) -> None:
        """A shard that one of the nodes owns; heirs (the owner may be one) are nodes, too."""
        self._owned[owner][shard] = heirs
        self._weigh(owner)

    def count(self, node: int) -> int:
        """How much a node has in all."""
        return self._base.get(node, 0) + len(self._owned[node])

    def next_chain(self, longest: int) -> list[tuple[int, int]]:
        """The next changes (shard, new owner), which are taken as made: none if all is fair, or as
        fair as chains of this length make it."""
        if self._over:
            return self._chain(self._over, self._is_under, longest) or self._chain(
                self._over, self._has_room, longest
            )
        return self._chain(self._spare, self._is_under, longest) if self._under else []

    def _is_under(self, node: int) -> bool:
        return node in self._under

    def _has_room(self, node: int) -> bool:
        return self.count(node) < self._shares.high(node)

    def _weigh(self, node: int) -> None:
        count, shares = self.count(node), self._shares
        for group, belongs in (
            (self._over, count > shares.high(node)),
            (self._under, count < shares.low(node)),
            (self._spare, count > shares.low(node)),
        ):
            if belongs:
                group[node] = None
            else:
                group.pop(node, None)

    def _chain(
        self, sources: Iterable[int], wanted: Callable[[int], bool], longest: int
    ) -> list[tuple[int, int]]:
        came: dict[int, tuple[int, int]] = dict.fromkeys(sources, (0, 0))
        waiting = deque((node, 0) for node in came)
        while waiting:
            node, length = waiting.popleft()
            if length == longest:
                break
            for shard, heirs in self._owned[node].items():
                for heir in heirs:
                    if heir not in came:
                        came[heir] = (node, shard)
                        if wanted(heir):
                            return self._pass_on(heir, came)
                        waiting.append((heir, length + 1))
        return []

    def _pass_on(self, target: int, came: dict[int, tuple[int, int]]) -> list[tuple[int, int]]:
        chain = []
        heir = target
        while (step := came[heir]) != (0, 0):
            owner, shard = step
            self._owned[heir][shard] = self._owned[owner].pop(shard)
            chain.append((shard, heir))
            heir = owner
        self._weigh(target)
        self._weigh(heir)
        return chain
