"""A cluster without I/O: the agreed state, a leader that plans, owners that feed their replicas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from penstock.cluster import commands as c
from penstock.cluster.check import check
from penstock.cluster.map import ClusterMap, NodeInfo, ShardPlace, pack
from penstock.cluster.planner import plan
from penstock.cluster.shares import Shares
from penstock.cluster.state import ClusterState
from penstock.cluster.view import Figures, Limits

SECOND_US = 1_000_000
GRACE_US = 60 * SECOND_US
LIMITS = Limits(grace_us=GRACE_US, moves=8, moves_per_node=4, transfers=8, commands=64)


def node(name: str, weight: int = 1, number: int = 0, status: str = "up") -> NodeInfo:
    return NodeInfo(number, name, f"{name}.example", 7000, status, 1, weight)  # type: ignore[arg-type]


class World:
    """Nodes fail and return; every command is checked. `moves` counts the replicas that moved."""

    def __init__(self, shards: int = 12, replication: int = 3, weight: int = 1) -> None:
        self.state = ClusterState()
        self.figures = Figures()
        self.limits = LIMITS
        self.now_us = 0
        self.moves = self.handovers = 0
        self.owners: dict[tuple[int, int], int] = {}  # who ever owned a shard in an epoch
        self.do(c.Found(7, shards, replication, node("n1", weight)))

    @classmethod
    def of(cls, weights: dict[int, int], replicas: Sequence[tuple[int, ...]]) -> World:
        """A cluster in which all is in sync; the first replica owns."""
        world = cls(len(replicas), len(replicas[0]))
        nodes = tuple(node(f"n{number}", weight, number) for number, weight in weights.items())
        shards = tuple(ShardPlace(1, places, places) for places in replicas)
        agreed = ClusterMap(7, 1, nodes, shards, len(replicas[0]))
        world.state = ClusterState.restore(pack([1, agreed, max(weights) + 1, [], {}]))
        world.owners.clear()
        return world

    # --- commands --------------------------------------------------------------------------

    def do(self, command: c.Command) -> c.Outcome:
        """Applies a command and checks that the step was allowed."""
        before = self.state.map() if self.state.shards else None
        outcome = self.state.apply(command)
        assert check(self.state, before) == []
        changed = before is None or self.state.version != before.version
        assert not (outcome.refused and changed)
        for shard, place in enumerate(self.state.shards if changed else ()):
            assert self.owners.setdefault((shard, place.epoch), place.owner) == place.owner
        return outcome

    def accept(self, command: c.Command) -> int:
        """Applies a command that must be accepted; its value."""
        outcome = self.do(command)
        assert outcome.accepted, outcome.reason
        return outcome.value

    def join(self, count: int = 1, weight: int = 1) -> list[int]:
        first = self.state.next_node
        return [
            self.accept(c.Join(node(f"n{number}", weight)))
            for number in range(first, first + count)
        ]

    def fail(self, number: int) -> None:
        self.accept(c.Down(number, self.state.nodes[number].incarnation))

    def back(self, number: int) -> None:
        """As the same process."""
        self.accept(c.Up(number, self.state.nodes[number].incarnation))

    def restart(self, number: int) -> None:
        """As a new process."""
        known = self.state.nodes[number]
        self.accept(c.Rejoin(number, known.host, known.port, known.incarnation + 1))

    # --- time ------------------------------------------------------------------------------

    def plan(self) -> list[c.Command]:
        self.figures.observe(self.state, self.now_us)
        return plan(self.state, self.figures, self.now_us, self.limits)

    def lead(self) -> list[c.Command]:
        """The leader plans, and its commands are carried out: none may be refused."""
        planned = self.plan()
        assert len(planned) <= self.limits.commands
        for command in planned:
            self.accept(command)
            self.moves += isinstance(command, c.AddReplica)
            self.handovers += isinstance(command, c.Transfer | c.Promote)
        moving = sum(place.joining != 0 for place in self.state.shards)
        assert moving <= self.limits.moves
        return planned

    def feed(self) -> bool:
        """Owners that are up bring one replica each up to date, or go on without it."""
        before = self.state.version
        for shard in range(len(self.state.shards)):
            place = self.state.shards[shard]
            if self.alive(place.owner):
                self._feed(shard, place)
        return self.state.version != before

    def _feed(self, shard: int, place: ShardPlace) -> None:
        head = (shard, place.epoch, place.owner)
        lost = tuple(number for number in place.in_sync if not self.alive(number))
        behind = [n for n in (*place.replicas, place.joining) if n and n not in place.in_sync]
        ready = [number for number in behind if self.alive(number)]
        if lost:
            self.accept(c.ShrinkInSync(*head, lost, place.version))
        elif ready:
            self.accept(c.GrowInSync(*head, ready[0], place.version))

    def settle(self, rounds: int = 400) -> None:
        """Plans and feeds until nothing is left to do."""
        for _ in range(rounds):
            busy = self.lead()
            if not self.feed() and not busy:
                return
            self.now_us += SECOND_US // 100
        raise AssertionError(f"still busy: {self.plan()[:5]}")

    def wait(self, span_us: int) -> None:
        self.plan()  # sees who is down by now
        self.now_us += span_us

    # --- what came of it -------------------------------------------------------------------

    def alive(self, number: int) -> bool:
        return self.state.nodes[number].status in ("up", "draining")

    def replicas(self) -> Counter[int]:
        return Counter(number for place in self.state.shards for number in place.replicas)

    def owned(self) -> Counter[int]:
        return Counter(place.owner for place in self.state.shards)

    def unfairness(self) -> list[str]:
        """What is not as it should be in a cluster where all is well and done."""
        state = self.state
        weights = {number: n.weight for number, n in state.nodes.items() if n.status == "up"}
        copies, shards = min(state.replication, len(weights)), len(state.shards)
        found = [
            f"shard {shard}: {place}"
            for shard, place in enumerate(state.shards)
            if place.joining or not len(place.replicas) == len(place.in_sync) == copies
        ]
        for what, counts, total in (
            ("replicas", self.replicas(), copies * shards),
            ("owned", self.owned(), shards),
        ):
            shares = Shares(weights, total, shards)
            found += [
                f"node {number}: {what} {counts[number]}"
                for number in counts.keys() | weights.keys()
                if number not in weights
                or not shares.low(number) <= counts[number] <= shares.high(number)
            ]
        return found
