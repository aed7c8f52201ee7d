"""A machine with one node of a cluster: the production member, driven by events of the world."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from penstock.cluster.commands import Command, Found, Outcome, Rejoin
from penstock.cluster.consensus.membership import Membership
from penstock.cluster.map import NodeInfo, Stated
from penstock.cluster.view import Limits
from penstock.engine.engine import Engine
from penstock.engine.member import Member
from penstock.errors import DamagedError
from penstock.node.cluster_calls import ClusterCalls
from penstock.sim.cluster.ledger import Ledger
from penstock.sim.cluster.network import SILENCE_US, ClusterNetwork, Messages, PeerLink
from penstock.sim.disk import SimDisk
from penstock.sim.history import Trouble
from penstock.sim.host import Host, Size
from penstock.sim.world import START_US, World

CLUSTER_ID = 9
FOUNDER = 1
REPLICATION = 3
PORT = 7000
SUSPECT_US = 250_000  # as the node's shell: how often the leader hears who cannot be reached
SOON_US = 50_000
LIMITS = Limits(grace_us=30_000_000)


class Surroundings(Protocol):
    """What all nodes of a cluster share."""

    world: World
    network: ClusterNetwork
    ledger: Ledger
    trouble: Trouble
    size: Size

    def replace(self, number: int) -> None:
        """A node is lost for ever."""


def host_name(number: int) -> str:
    """Where a node is found."""
    return f"host-{number}"


class NodeHost(Host):
    """One node; it founds the cluster or has been let in. `drift`: how much too fast its clock is,
    as a part of the time."""

    def __init__(self, around: Surroundings, number: int, drift: float = 0.0) -> None:
        disk = SimDisk(around.world, slow_reads=0.05)
        super().__init__(around.world, f"node {number}", disk, around.size, around.trouble)
        self.number = number
        self.incarnation = 0
        self.member: Member | None = None
        self.retired = False  # it was removed, and does not come back
        self._network = around.network
        self._replace = around.replace
        self._ledger = around.ledger
        self._drift = drift
        self._peers: dict[int, PeerLink] = {}
        self._calls: ClusterCalls | None = None
        self.sent_bytes = 0  # to other nodes
        self._version = 0  # of the map that was looked at last
        self._suspect_us = 0
        self._pauses = 0
        around.network.add(self)

    @property
    def now_us(self) -> int:
        """The node's clock, which is wrong and goes wrong."""
        return super().now_us + int((self.world.now_us - START_US) * self._drift)

    @property
    def paused(self) -> bool:
        """Whether it is stopped for a while."""
        return self._paused

    @property
    def nodes(self) -> set[int]:
        """The nodes that there is a link to."""
        return set(self._peers)

    # --- life and death --------------------------------------------------------------------

    def _open(self, directory: int = 1) -> Engine:
        self.incarnation += 1
        return super()._open(directory=self.number)

    def _damaged(self, error: DamagedError) -> None:
        """A node that cannot read its log has no place any more: others have what it had, and a new
        one takes its place."""
        if not self.damage_expected:
            self.fail(f"recovery failed: {error}")
            return
        self.damage_told = str(error)
        self.retired = True
        self.world.note(f"{self.name} does not start: {error.message}")
        self._replace(self.number)

    def _serve(self, engine: Engine) -> None:
        try:
            self._begin_serving(engine)
        except DamagedError as error:
            self.crash(power_loss=False, down_us=None)
            self._damaged(error)

    def _begin_serving(self, engine: Engine) -> None:
        super()._serve(engine)
        founds = self.number == FOUNDER
        first = Membership(voters=(FOUNDER,)) if founds else Membership()
        now_us, seed = self.now_us, self.world.random.getrandbits(32)
        self.member = member = Member(
            engine, self.number, self.incarnation, first, seed, now_us, LIMITS
        )
        self._ledger.watch(self.number, member)
        engine.fabric.cluster = CLUSTER_ID
        engine.fabric.control.clustered = True
        self._calls = ClusterCalls(member, self)
        self._version = 0
        host, port = host_name(self.number), PORT + self.number
        if founds:
            info = NodeInfo(self.number, self.name, host, port, "up", self.incarnation)
            member.ask(Found(CLUSTER_ID, self.size.shards, REPLICATION, info), now_us)
        member.ask(Rejoin(self.number, host, port, self.incarnation), now_us)
        self._network.redial(self.number)

    def crash(self, power_loss: bool, down_us: int | None, why: str = "") -> None:
        """As `Host.crash`; the other nodes notice in their own time."""
        super().crash(power_loss, down_us, why)
        self.member = self._calls = None
        self._peers.clear()
        self._network.gone(self.number, silently=power_loss)

    def pause(self, for_us: int) -> None:
        """As `Host.pause`; the others give its links up if it takes too long."""
        super().pause(for_us)
        self._pauses += 1
        pauses, life = self._pauses, self._life

        def give_up() -> None:
            if self._paused and (pauses, life) == (self._pauses, self._life):
                self._network.silent(self.number)

        self.world.after(SILENCE_US, give_up)

    def leave(self) -> None:
        """Says goodbye to the cluster, as a node does that is stopped in order."""
        if self.member is not None:
            self.member.plane.leaving = True

    def ask(self, command: Command, then: Callable[[Outcome], None] | None = None) -> bool:
        """Asks the cluster; whether the node is there to ask."""
        member = self.member
        if member is None:
            return False
        self._guarded(lambda: self._ask(member, command, then))
        return True

    def _ask(
        self, member: Member, command: Command, then: Callable[[Outcome], None] | None
    ) -> None:
        if self.member is member:
            member.ask(command, self.now_us, then)

    # --- links -----------------------------------------------------------------------------

    def stated(self) -> Stated | None:
        """What it says of itself on a new link."""
        if self.member is None:
            return None
        return Stated(self.number, self.incarnation, self.member.speaks)

    def linked(self, link: PeerLink) -> None:
        """There is a new link."""
        self._guarded(lambda: self._begin_link(link))

    def _begin_link(self, link: PeerLink) -> None:
        other = link.other(self.number)
        if self.member is not None and link.open:
            if other in self._peers:  # the end of the one before was not noticed yet
                self.member.unlinked(other, self.now_us)
            self._peers[other] = link
            self.member.linked(other, self.now_us, link.stated[other])

    def unlinked(self, link: PeerLink) -> None:
        """It is over."""
        self._guarded(lambda: self._end_link(link))

    def _end_link(self, link: PeerLink) -> None:
        other = link.other(self.number)
        if self.member is not None and self._peers.get(other) is link:
            del self._peers[other]
            self.member.unlinked(other, self.now_us)

    def hears(self, link: PeerLink, messages: Messages) -> None:
        """Messages of the other node."""
        self._guarded(lambda: self._take(link, messages))

    def _take(self, link: PeerLink, messages: Messages) -> None:
        other = link.other(self.number)
        if self._peers.get(other) is not link or self.member is None:
            return
        now_us = self.now_us
        for message in messages:
            self.member.receive(other, [memoryview(message)], now_us)

    # --- driving the member ----------------------------------------------------------------

    def pump(self) -> None:
        """Starts what there is to do, sends what there is to send."""
        self._carry()
        super().pump()

    def _carry(self) -> None:
        member = self.member
        if member is None or self.broken is not None:
            return
        member.pump(self.now_us)
        while member.peers:
            self._send(member)
        if member.plane.state.version != self._version:
            self._version = member.plane.state.version
            assert self._calls is not None
            self._calls.map_changed(self.now_us)
            if member.present:
                self._ledger.learn(self.number, member.plane.state.map())

    def _send(self, member: Member) -> None:
        messages, member.peers = member.peers, []
        together: dict[int, Messages] = {}
        for node, parts in messages:
            together.setdefault(node, []).append(b"".join(parts))
        for node, own in together.items():
            if (link := self._peers.get(node)) is not None:
                self.sent_bytes += sum(map(len, own))
                self._network.send(link, self.number, own)

    def _missing(self) -> list[int]:
        """Nodes that there should be a link to, and is none; who leaves wants none."""
        assert self.member is not None
        if self.member.plane.leaving:
            return []
        nodes = self.member.plane.state.nodes.values()
        there = [node.id for node in nodes if node.port and node.status != "left"]
        return [number for number in there if number not in self._peers and number != self.number]

    def _set_timer(self, engine: Engine) -> None:
        """What events bring forward is noticed with the next tick, if that is soon: as in the
        node's shell."""
        if self._timer is None or self._timer_us > self.now_us + SOON_US:
            super()._set_timer(engine)

    def _next_due(self, engine: Engine) -> int | None:
        member = self.member
        if member is None:
            return engine.next_due()
        due_us = member.next_due()
        return min(due_us, self._suspect_us) if self._missing() else due_us

    def _tick_engine(self) -> None:
        member, now_us = self.member, self.now_us
        if member is None:
            return
        if now_us >= self._suspect_us:
            self._suspect_us = now_us + SUSPECT_US
            for node in self._missing():
                member.plane.suspect(node, now_us)
        member.tick(now_us)
