"""Where a message has been: one place, or several that it was moved to one after the other."""

from __future__ import annotations

from penstock.sim.history import Delivery, History, Move, Place


class Paths:
    """The moves of one queue. `leaves`: by place, how the message that was there left."""

    def __init__(self, history: History, queue: str) -> None:
        self.moves = [move for move in history.moves if move.queue == queue]
        self.leaves: dict[Place, Move] = {}
        self._came_from: dict[Place, Place] = {}
        # What arrived in an earlier epoch may be lost, and something else have its place.
        for move in sorted(self.moves, key=lambda move: move.epoch):
            for source, target in move.steps():
                self.leaves[source] = move
                self._came_from[target] = source

    def is_one(self, places: set[Place]) -> bool:
        """Whether a message can have been at all of these without having been stored twice."""
        longest = max((self._path(place) for place in places), key=len, default=[])
        return places <= set(longest)

    def order(self, delivery: Delivery) -> tuple[int, int]:
        """Sorts the deliveries of a message as they were made: grants are numbered by shard."""
        return len(self._path((delivery.shard, delivery.position))), delivery.grant

    def _path(self, place: Place) -> list[Place]:
        """A place, and those that the message was at before. Each counts once, though a position
        whose message was lost may be given again."""
        path = [place]
        while (before := self._came_from.get(path[-1])) is not None and before not in path:
            path.append(before)
        return path
