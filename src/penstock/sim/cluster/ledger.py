"""What the nodes themselves show: who owned which shard when, who wrote to it, what moved."""

from __future__ import annotations

from penstock.cluster.map import ClusterMap
from penstock.core.records import Kind
from penstock.engine.member import Member
from penstock.sim.cluster.moves import Moves
from penstock.sim.world import World
from penstock.wire.entry import Entry

MAX_PROBLEMS = 20


class Ledger:
    """Looks over the shoulders of all members. `problems`: what must never be."""

    def __init__(self, world: World) -> None:
        self.problems: list[str] = []
        self.promotions = 0  # changes of owner because the one before was gone
        self.transfers = 0  # all others
        self.map: ClusterMap | None = None  # the newest that any node has
        self.moves = Moves(world)
        self._world = world
        self._owners: dict[tuple[int, int], int] = {}  # by shard and epoch, by the map
        self._writers: dict[tuple[int, int], int] = {}  # the same, by what was logged

    def watch(self, number: int, member: Member) -> None:
        """Notes every record that a member logs as an owner."""
        replicas = member.replicas
        appended, kernel = replicas.appended, member.engine.fabric.kernel

        def noted(entry: Entry, now_us: int) -> None:
            record = not entry.local and entry.kind != Kind.BARRIER
            if record and entry.shard < len(kernel.shards):
                self._wrote(number, entry.shard, entry.epoch)
                self.moves.logged(entry, kernel)
            appended(entry, now_us)

        vars(replicas)["appended"] = noted

    def _wrote(self, number: int, shard: int, epoch: int) -> None:
        writer = self._writers.setdefault((shard, epoch), number)
        if writer != number:
            self._wrong(f"two owners: nodes {writer} and {number} wrote to {shard} in {epoch}")
        owner = self._owners.get((shard, epoch))
        if owner is not None and owner != number:
            self._wrong(
                f"no owner: node {number} wrote to {shard} in epoch {epoch}, which is {owner}'s"
            )

    def learn(self, number: int, known: ClusterMap) -> None:
        """A node has a map."""
        for shard, place in enumerate(known.shards):
            owner = self._owners.setdefault((shard, place.epoch), place.owner)
            if owner != place.owner:
                self._wrong(
                    f"two maps: for node {number}, {place.owner} owns {shard} in epoch "
                    f"{place.epoch}, and for others {owner} does"
                )
        if self.map is None or known.version > self.map.version:
            if self.map is not None:
                self._compare(self.map, known)
            self.map = known

    def _compare(self, before: ClusterMap, after: ClusterMap) -> None:
        status = {node.id: node.status for node in after.nodes}
        for shard, (old, new) in enumerate(zip(before.shards, after.shards, strict=True)):
            if old.owner == new.owner:
                continue
            gone = status.get(old.owner, "left") in ("down", "left")
            self.promotions += gone
            self.transfers += not gone
            self._world.note(
                f"shard {shard} goes from node {old.owner} to {new.owner}, epoch {new.epoch}, "
                f"in sync {new.in_sync}{'' if gone else ' (planned)'}"
            )
        for node in after.nodes:
            known = before.node(node.id)
            if known is None or known.status != node.status:
                self._world.note(f"the cluster takes node {node.id} for {node.status}")

    def _wrong(self, text: str) -> None:
        if len(self.problems) < MAX_PROBLEMS and text not in self.problems:
            self.problems.append(text)
            self._world.note(text)
