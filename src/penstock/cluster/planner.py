"""What the cluster should do next. Pure; the leader of the consensus asks it again and again.

Nothing is remembered between plans: a plan follows from the state alone, so a new leader goes on
where the old one was, and a command that was refused is simply planned anew. At most one command a
plan concerns a shard.
"""

from __future__ import annotations

from penstock.cluster.commands import AddReplica, Command, DropReplica, Promote, Transfer
from penstock.cluster.map import ShardPlace
from penstock.cluster.shares import Owners, Shares
from penstock.cluster.spread import next_move
from penstock.cluster.state import ClusterState
from penstock.cluster.view import Figures, Limits, View

_WINDOW = 256  # shards in need that are looked at together
_LONGEST_CHAIN = 32  # changes of owner that make one node's surplus another's


def plan(
    state: ClusterState, figures: Figures, now_us: int, limits: Limits | None = None
) -> list[Command]:
    """Commands to propose, the most urgent first, at most `limits.commands`. Empty when the
    cluster is as it should be, or must wait: for a join to end, or a node to return."""
    planner = _Planner(View(state, figures, now_us, limits or Limits()))
    for phase in (
        planner.promote,
        planner.cancel,
        planner.hand_off,
        planner.trim,
        planner.repair,
        planner.spread,
        planner.even_owners,
    ):
        phase()
    return planner.commands


class _Planner:
    def __init__(self, view: View) -> None:
        self.view = view
        self.commands: list[Command] = []
        self.touched: set[int] = set()
        self.transfers = 0

    def promote(self) -> None:
        """Shards whose owner is down. If nobody in sync is there, they wait: unavailable is better
        than wrong."""
        for shard, place in self._untouched():
            if place.owner not in self.view.alive:
                heir = self.view.heir(place, place.owner)
                if heir is not None and self._add(shard, Promote(shard, place.epoch, heir)):
                    self._owner_changes(place, heir)

    def cancel(self) -> None:
        """Joins of nodes that will not get there."""
        for shard, place in self._untouched():
            joining = place.joining
            if joining and joining not in self.view.members:
                self._add(shard, DropReplica(shard, place.epoch, joining))

    def hand_off(self) -> None:
        """Shards whose owner drains."""
        for shard, place in self._untouched():
            if place.owner in self.view.alive and place.owner not in self.view.up:
                self._transfer(shard, place)

    def trim(self) -> None:
        """Replicas too many, of nodes that drain or are gone, or that were moved."""
        for shard, place in self._untouched():
            if place.owner in self.view.alive and len(place.replicas) > 1:
                victim = self._victim(shard, place)
                if victim == place.owner:
                    self._transfer(shard, place)
                elif victim is not None:
                    self._add(shard, DropReplica(shard, place.epoch, victim))

    def _victim(self, shard: int, place: ShardPlace) -> int | None:
        view, state = self.view, self.view.state
        full = len(place.replicas) > state.replication
        for node in place.replicas:
            if node in view.members or node == place.owner:
                continue
            drains = node in state.draining
            enough = max(1, view.copies) if drains else state.replication
            lost = full and (node not in place.in_sync or node not in view.alive)
            if lost or view.sound(place, node) >= enough:
                return node
        for node in view.crowded.get(shard, ()):
            if node in view.up and view.sound(place, node) >= view.copies:
                return node
        return None

    def repair(self) -> None:
        """Shards with too few replicas; those with the fewest sound copies first."""
        view, shards = self.view, self.view.state.shards
        ready = [shard for shard in view.needy if self._can_be_fed(shard)]
        ready.sort(key=lambda shard: (view.sound(shards[shard], without=0), shard))
        for shard, target in self._targets(ready[:_WINDOW]).items():
            if view.moving >= view.limits.moves:
                return
            if view.may_join(target) and view.may_join(shards[shard].owner):
                self._move(shard, shards[shard], target)

    def _can_be_fed(self, shard: int) -> bool:
        place = self.view.state.shards[shard]
        full = place.joining or len(place.replicas) > self.view.state.replication
        return not full and shard not in self.touched and place.owner in self.view.alive

    def _targets(self, shards: list[int]) -> dict[int, int]:
        """Where each shard should get a replica: chosen for all together, whether or not it is
        their turn, so that no replica must be moved again for balance."""
        view = self.view
        ready = [node for node in view.members if node in view.up]
        owners = Owners(ready, view.shares, view.held)
        targets = {}
        for shard in shards:
            replicas = view.state.shards[shard].replicas
            fit = [node for node in ready if node not in replicas]
            if fit:
                targets[shard] = min(
                    fit, key=lambda node: (view.shares.excess(node, owners.count(node)), node)
                )
                owners.add(shard, targets[shard], fit)
        while chain := owners.next_chain(_LONGEST_CHAIN):
            targets.update(chain)
        return targets

    def spread(self) -> None:
        """Replicas from nodes with more than their share to those with less, once all shards have
        enough of them."""
        view = self.view
        if view.needy:
            return
        while view.moving < view.limits.moves:
            move = next_move(view, self.touched)
            if move is None:
                return
            shard, donor, target = move
            if not self._move(shard, view.state.shards[shard], target):
                return
            view.held[donor] -= 1

    def even_owners(self) -> None:
        """Owners from nodes with more than their share to those with less. While replicas move,
        only where one change is enough; while a node is expected back, not at all."""
        view = self.view
        shares = Shares(view.members, self._owned_by_members(), len(view.state.shards))
        if view.resting() or all(
            shares.low(node) <= view.owned[node] <= shares.high(node) for node in view.members
        ):
            return
        owners = self._owners(shares)
        settled = not (view.moving or view.needy or view.crowded or self.commands)
        while chain := owners.next_chain(_LONGEST_CHAIN if settled else 1):
            for shard, heir in chain:
                place = view.state.shards[shard]
                if not self._transfer_to(shard, place, heir):
                    return
                owners.add(shard, heir, ())  # once a plan is enough

    def _owned_by_members(self) -> int:
        return sum(self.view.owned[node] for node in self.view.members)

    def _owners(self, shares: Shares) -> Owners:
        """Owners as this plan leaves them; what it touched stays as it is."""
        view = self.view
        free = [(shard, place) for shard, place in self._untouched() if place.owner in view.up]
        fixed = view.owned.copy()
        fixed.subtract(place.owner for _, place in free)
        owners = Owners(view.members, shares, fixed)
        for shard, place in free:
            owners.add(shard, place.owner, [node for node in place.in_sync if node in view.up])
        return owners

    def _untouched(self) -> list[tuple[int, ShardPlace]]:
        shards = self.view.state.shards
        return [pair for pair in enumerate(shards) if pair[0] not in self.touched]

    def _transfer(self, shard: int, place: ShardPlace) -> None:
        heir = self.view.heir(place, place.owner)
        if heir is not None and heir in self.view.up:
            self._transfer_to(shard, place, heir)

    def _transfer_to(self, shard: int, place: ShardPlace, heir: int) -> bool:
        if self.transfers >= self.view.limits.transfers:
            return False
        if not self._add(shard, Transfer(shard, place.epoch, heir)):
            return False
        self.transfers += 1
        self._owner_changes(place, heir)
        return True

    def _move(self, shard: int, place: ShardPlace, target: int) -> bool:
        if not self._add(shard, AddReplica(shard, place.epoch, target)):
            return False
        view = self.view
        view.moving += 1
        view.held[target] += 1
        view.busy[target] += 1
        view.busy[place.owner] += 1
        return True

    def _owner_changes(self, place: ShardPlace, heir: int) -> None:
        self.view.owned[place.owner] -= 1
        self.view.owned[heir] += 1

    def _add(self, shard: int, command: Command) -> bool:
        if len(self.commands) >= self.view.limits.commands:
            return False
        self.commands.append(command)
        self.touched.add(shard)
        return True
