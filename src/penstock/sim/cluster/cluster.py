"""The nodes of a cluster, and what can be done to them."""

from __future__ import annotations

from collections.abc import Callable

from penstock.cluster.commands import Command, Down, Drain, Join, Outcome, Remove, Undrain
from penstock.cluster.map import ClusterMap, NodeInfo
from penstock.engine.maintenance import Pace
from penstock.sim.cluster.host import FOUNDER, PORT, NodeHost, host_name
from penstock.sim.cluster.ledger import Ledger
from penstock.sim.cluster.network import ClusterNetwork
from penstock.sim.history import Trouble
from penstock.sim.host import Size
from penstock.sim.world import World
from penstock.store.files import Limits

SIZE = Size(pace=Pace(192 << 10, 1500, Limits(keep_journal=2), 10_000_000, 100_000))
ASK_AGAIN_US = 3_000_000
MAX_ASKS = 40
VOTERS = 3  # so many survive the loss of one
LEAVE_US = 1_500_000  # so long a node that is stopped in order waits for its heirs
NOTICED_US = 60_000_000  # until then somebody drains a node that is lost


class Cluster:
    """Nodes are numbered from 1; the first founds the cluster, and lets the others in."""

    def __init__(self, world: World, size: Size = SIZE, drift: float = 0.0) -> None:
        self.world = world
        self.size = size
        self.trouble = Trouble(drift=2 * drift)
        self.network = ClusterNetwork(world)
        self.ledger = Ledger(world)
        self.hosts: dict[int, NodeHost] = {}
        self.draining: set[int] = set()
        self.joins = self.drains = self.restarts = 0
        self._drift = drift

    # --- nodes -----------------------------------------------------------------------------

    def found(self, nodes: int) -> None:
        """Starts the first node, and lets the others join one after the other."""
        self.start(FOUNDER)
        self._grow(nodes - 1)

    def _grow(self, more: int) -> None:
        if more:
            self.join(lambda _: self._grow(more - 1))

    def start(self, number: int) -> NodeHost:
        """Starts a node, for the first time or again."""
        host = self.hosts.get(number)
        if host is None:
            drift = self.world.random.uniform(-self._drift, self._drift)
            host = self.hosts[number] = NodeHost(self, number, drift)
        host.start()
        return host

    def join(self, then: Callable[[int], None] = lambda _: None) -> None:
        """One more node; `then` hears its number."""
        name = f"node-{self.joins + 2}"
        self.joins += 1

        def joined(outcome: Outcome) -> None:
            if outcome.accepted:
                self.world.note(f"node {outcome.value} joins")
                self.start(outcome.value)
                then(outcome.value)

        self.ask(Join(NodeInfo(0, name, "", 0, "up", 0)), joined)

    def drain(self, number: int) -> None:
        """Everything moves off a node; it is removed when that is done, or used again if it takes
        too long."""
        self.drains += 1
        self.draining.add(number)
        self.world.note(f"node {number} is drained")
        self.ask(Drain(number), lambda _: self._remove(number, MAX_ASKS))

    def _remove(self, number: int, tries: int) -> None:
        host = self.hosts[number]

        def decided(outcome: Outcome) -> None:
            # Unknown: it was removed when this was asked before, and whoever was asked did not say.
            if outcome.accepted or outcome.refused == "unknown":
                self.world.note(f"node {number} is removed")
                self.draining.discard(number)
                host.retired = True
                host.crash(power_loss=False, down_us=None, why="and is not needed")
            elif tries or host.retired:  # who is lost cannot be used again
                self.world.after(ASK_AGAIN_US, lambda: self._remove(number, max(tries - 1, 0)))
            else:
                self.ask(Undrain(number), lambda _: self.draining.discard(number))

        self.ask(Remove(number), decided)

    def replace(self, number: int) -> None:
        """A node is lost for ever: another joins, somebody drains it, sooner or later, and it is
        removed as soon as nothing needs it."""
        self.join()
        self.world.after(self.world.between(0, NOTICED_US), lambda: self.ask(Drain(number)))
        self._remove(number, MAX_ASKS)

    def restart(self, number: int, down_us: int) -> None:
        """Stops a node in order and starts it again."""
        host = self.hosts[number]
        if host.member is None:
            return
        self.restarts += 1
        self.world.note(f"node {number} is stopped in order")
        host.leave()
        host.ask(Down(number, host.incarnation))
        life = host.incarnation

        def stop() -> None:
            if host.member is not None and host.incarnation == life:
                host.crash(power_loss=False, down_us=down_us, why="in order")

        self.world.after(LEAVE_US, stop)

    # --- the control plane -----------------------------------------------------------------

    def ask(
        self, command: Command, then: Callable[[Outcome], None] = lambda _: None,
        tries: int = MAX_ASKS,
    ) -> None:  # fmt: skip
        """Asks any node for something, until there is an outcome or that was tried too often."""
        answered: list[Outcome] = []

        def once(outcome: Outcome) -> None:
            if not answered:
                answered.append(outcome)
                self.world.after(0, lambda: then(outcome))  # not in the middle of the node's work

        def attempt(left: int) -> None:
            if answered or not left:
                return
            up = [host for host in self.living() if host.member and host.member.present]
            if up or self.living():
                self.world.random.choice(up or self.living()).ask(command, once)
            self.world.after(ASK_AGAIN_US, lambda: attempt(left - 1))

        attempt(tries)

    # --- looking ---------------------------------------------------------------------------

    def living(self) -> list[NodeHost]:
        """Nodes that run."""
        return [host for _, host in sorted(self.hosts.items()) if host.member is not None]

    def members(self) -> list[NodeHost]:
        """Nodes that are there to stay, whether they run or not."""
        return [host for _, host in sorted(self.hosts.items()) if not host.retired]

    def map(self) -> ClusterMap | None:
        """The newest that any node has."""
        return self.ledger.map

    @property
    def whole(self) -> bool:
        """Whether all nodes run, every shard has an in-sync set of two, and one more node may be
        lost: of those that are, none is a member or votes any more. What nodes know of an earlier
        start of theirs does not count: without a majority nothing newer is heard."""
        known, members = self.map(), self.members()
        if known is None or not all(host.member and host.member.present for host in members):
            return False
        numbers = {host.number for host in members}
        for node in known.nodes:
            lost = node.id in self.hosts and node.id not in numbers
            if lost or (node.id in numbers and node.status == "down"):
                return False
        strong = min(2, len(members))
        in_sync = all(len(place.in_sync) >= strong for place in known.shards)
        return in_sync and all(self._can_decide(host, numbers) for host in members)

    def _can_decide(self, host: NodeHost, numbers: set[int]) -> bool:
        """Whether, as far as a node knows, those who vote are there, and are enough."""
        assert host.member is not None
        voters = host.member.plane.raft.membership.voters
        enough = VOTERS if len(numbers) >= VOTERS else 1
        return numbers.issuperset(voters) and len(voters) >= enough

    @property
    def broken(self) -> str | None:
        """What a node did that no fault explains."""
        return next((host.broken for host in self.hosts.values() if host.broken), None)

    @property
    def url(self) -> str:
        """What clients connect to."""
        hosts = [f"{host_name(number)}:{PORT + number}" for number in sorted(self.hosts)]
        return "penstock://" + ",".join(hosts)
