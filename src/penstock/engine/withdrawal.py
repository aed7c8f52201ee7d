"""A node that starts with damage: others own what it owned, and it gets copies.

Shards of which recovery lacks something are neither served nor followed until the cluster has left
this node out of their in-sync sets. Then it forgets them, and catches up as a new replica does.
"""

from __future__ import annotations

from penstock.cluster.commands import Outcome, Withdraw
from penstock.cluster.map import ShardPlace
from penstock.engine.copying import forget_shard
from penstock.engine.engine import Engine
from penstock.engine.replicas import Replicas


class Withdrawal:
    """What became of the damaged shards of one start of a node. With nobody else in sync, a shard
    that lacks batches is served without them; one that lacks its state is not served at all."""

    def __init__(self, engine: Engine, replicas: Replicas, node: int, incarnation: int) -> None:
        self._engine = engine
        self._replicas = replicas
        self._node = node
        self._incarnation = incarnation
        self.asked = False  # the cluster, for what `command` says
        replicas.withheld |= engine.damaged_shards | engine.broken_shards

    def give_in(self) -> None:
        """The cluster knows of no such thing: what can be served is served."""
        if not self.asked:
            self._replicas.withheld &= self._engine.broken_shards

    def command(self) -> Withdraw | None:
        """What to ask the cluster for, if there is anything."""
        if self.asked or not self._replicas.withheld:
            return None
        return Withdraw(self._node, self._incarnation, tuple(sorted(self._replicas.withheld)))

    def answered(self, outcome: Outcome, places: list[ShardPlace]) -> None:
        """The cluster has decided, and these are the places of all shards."""
        if not outcome.accepted:
            return  # another life of this node has begun
        withheld = self._replicas.withheld
        for number in sorted(withheld):
            if self._node not in places[number].in_sync:
                shard = self._engine.fabric.kernel.shards[number]
                forget_shard(self._engine, shard, None)
            elif number in self._engine.broken_shards:
                self._engine.read_damage.append(
                    f"shard {number}: its state is lost, and nobody else is in sync"
                )
                continue
            withheld.discard(number)
