"""Control planes of a few nodes on a network that loses, delays and parts; one seed, no clock."""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field

from penstock.cluster.commands import Command, Found, GrowInSync, Join, Outcome, Rejoin
from penstock.cluster.consensus.membership import Membership
from penstock.cluster.consensus.messages import Entry, HardState, Snapshot
from penstock.cluster.consensus.raft import Raft
from penstock.cluster.consensus.ready import Ready
from penstock.cluster.map import NodeInfo
from penstock.cluster.plane.plane import ControlPlane, Out
from penstock.cluster.state import ClusterState
from penstock.cluster.view import Limits

SYNC_US = 2_000
LIMITS = Limits(grace_us=20_000_000)


@dataclass
class Host:
    """A node: what its disk has, and the control plane that runs on it."""

    number: int
    incarnation: int = 1
    first: Membership = field(default_factory=Membership)
    hard_state: HardState = field(default_factory=HardState)
    snapshot: Snapshot | None = None
    entries: list[Entry] = field(default_factory=list)
    plane: ControlPlane | None = None
    outcomes: dict[int, Outcome] = field(default_factory=dict)

    def recover(self) -> ClusterState:
        data = self.snapshot.data if self.snapshot is not None else b""
        return ClusterState.restore(data) if data else ClusterState()


class World:
    """Events in order of time; everything is drawn from one seed."""

    def __init__(self, seed: int, shards: int = 12, replication: int = 3) -> None:
        self.random = random.Random(seed)
        self.now_us = 1_000_000
        self.hosts: dict[int, Host] = {}
        self.parted: set[frozenset[int]] = set()
        self.loss = 0.0
        self._events: list[tuple[int, int, tuple[object, ...]]] = []
        self._order = 0
        self._seed = seed
        self.owners: dict[tuple[int, int], int] = {}
        self.start(1, Membership(voters=(1,)))
        self.run(3_000_000)
        found = Found(7, shards, replication, node_info(1))
        self.do(1, found)

    # --- nodes -----------------------------------------------------------------------------

    def start(self, number: int, first: Membership | None = None) -> None:
        """Starts a node, for the first time or again."""
        host = self.hosts.get(number)
        if host is None:
            host = self.hosts[number] = Host(number, first=first or Membership())
        else:
            host.incarnation += 1
            host.outcomes.clear()  # tokens begin anew
        raft = Raft.restore(
            number, host.first, hard_state=host.hard_state, snapshot=host.snapshot,
            entries=host.entries, seed=self._seed, now_us=self.now_us,
        )  # fmt: skip
        host.plane = ControlPlane(raft, host.recover(), host.incarnation, self.now_us, LIMITS)
        if host.snapshot is not None:
            raft.applied(host.snapshot.index)
        if host.incarnation > 1:
            again = Rejoin(number, f"host-{number}", 7000 + number, host.incarnation)
            host.plane.ask(again, self.now_us)
        self._pump(host)

    def join(self, number: int) -> None:
        """A new node: an old one asks for it, then it starts."""
        self.do(next(iter(self.hosts)), Join(node_info(number)))
        self.start(number)

    def kill(self, number: int) -> None:
        """The process is gone; what was not synced is, too."""
        self.hosts[number].plane = None

    def leader(self) -> int | None:
        leaders = [
            (host.plane.raft.term, number)
            for number, host in self.hosts.items()
            if host.plane is not None and host.plane.raft.leader == number
        ]
        return max(leaders)[1] if leaders else None

    # --- commands --------------------------------------------------------------------------

    def ask(self, number: int, command: Command) -> int:
        host = self.hosts[number]
        assert host.plane is not None
        token = host.plane.ask(command, self.now_us)
        self._pump(host)
        return token

    def do(self, number: int, command: Command, limit_us: int = 20_000_000) -> Outcome:
        """Asks and waits for the outcome."""
        token = self.ask(number, command)
        end_us = self.now_us + limit_us
        while token not in self.hosts[number].outcomes:
            assert self.now_us < end_us, f"{command} got no outcome"
            self.run(10_000)
        return self.hosts[number].outcomes[token]

    # --- time ------------------------------------------------------------------------------

    def run(self, span_us: int) -> None:
        """Lets time pass."""
        end_us = self.now_us + span_us
        while True:
            due = [
                (host.plane.next_due(), number)
                for number, host in self.hosts.items()
                if host.plane is not None
            ]
            tick_us, number = min(due, default=(end_us, 0))
            event_us = self._events[0][0] if self._events else end_us
            if min(tick_us, event_us) >= end_us:
                break
            if event_us <= tick_us:
                self.now_us = max(self.now_us, event_us)
                self._happen(heapq.heappop(self._events)[2])
            else:
                self.now_us = max(self.now_us, tick_us)
                host = self.hosts[number]
                assert host.plane is not None
                host.plane.tick(self.now_us)
                self._pump(host)
        self.now_us = end_us

    def _at(self, due_us: int, *event: object) -> None:
        self._order += 1
        heapq.heappush(self._events, (due_us, self._order, event))

    def _happen(self, event: tuple[object, ...]) -> None:
        kind, number, incarnation, *rest = event
        host = self.hosts[number]  # type: ignore[index]
        if host.plane is None or host.incarnation != incarnation:
            return
        if kind == "deliver":
            source, data = rest
            if frozenset((source, number)) not in self.parted:
                host.plane.receive(source, data, self.now_us)  # type: ignore[arg-type]
        else:
            (ready,) = rest
            assert isinstance(ready, Ready)
            _store(host, ready)
            host.plane.persisted(ready.number, self.now_us)
        self._pump(host)

    def _pump(self, host: Host) -> None:
        plane = host.plane
        assert plane is not None
        out, plane.out = plane.out, Out()
        for node, data in out.messages:
            target = self.hosts.get(node)
            parted = frozenset((host.number, node)) in self.parted
            if target is not None and not parted and self.random.random() >= self.loss:
                delay_us = self.random.randint(200, 3_000)
                self._at(
                    self.now_us + delay_us, "deliver", node, target.incarnation, host.number, data
                )
        for ready in out.writes:
            self._at(self.now_us + SYNC_US, "synced", host.number, host.incarnation, ready)
        for token, _, outcome in out.outcomes:
            host.outcomes[token] = outcome
        if out.changed:
            self._learn(host, plane)

    def _learn(self, host: Host, plane: ControlPlane) -> None:
        """What the data plane would do: owners catch up whoever joins, or is not in sync."""
        for shard, place in enumerate(plane.state.shards):
            known = self.owners.setdefault((shard, place.epoch), place.owner)
            assert known == place.owner, f"shard {shard} has two owners in epoch {place.epoch}"
            if place.owner != host.number:
                continue
            behind = [n for n in (*place.replicas, place.joining) if n and n not in place.in_sync]
            for node in behind:
                up = plane.state.nodes[node].status != "down"
                strong = node in place.replicas[:2] or len(place.in_sync) < 2
                if up and (node == place.joining or strong):
                    grow = GrowInSync(shard, place.epoch, host.number, node, place.version)
                    plane.ask(grow, self.now_us)
                    break
        self._pump(host) if plane.out.messages or plane.out.writes else None


def _store(host: Host, ready: Ready) -> None:
    if ready.hard_state is not None:
        host.hard_state = ready.hard_state
    if ready.snapshot is not None:
        host.snapshot, host.entries = ready.snapshot, []
    first = ready.truncate_from
    if first is not None:
        host.entries = [entry for entry in host.entries if entry.index < first]
    host.entries += ready.entries


def node_info(number: int) -> NodeInfo:
    return NodeInfo(number, f"n{number}", f"host-{number}", 7000 + number, "up", 1)


