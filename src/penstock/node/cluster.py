"""A node's part in a cluster, on the asyncio loop: links, time, and what the others are told."""

from __future__ import annotations

import asyncio
import copy
import logging
import secrets
from collections.abc import Callable

from penstock.cluster import levels
from penstock.cluster.commands import Command, Outcome
from penstock.cluster.consensus.membership import Membership
from penstock.cluster.map import Stated
from penstock.engine.member import Member
from penstock.errors import ConflictError, PenstockError, ProtocolError, VersionError
from penstock.node.admission import FOUNDER, own_speaks
from penstock.node.cluster_calls import ClusterCalls
from penstock.node.identity import Address, Identity, write_identity
from penstock.node.links import Links
from penstock.node.runtime import Runtime
from penstock.node.server import Server
from penstock.node.worker import Worker
from penstock.store.disk import Disk
from penstock.wire import messages as m
from penstock.wire.buffers import Buffer

SHORTEST_TICK_S = 0.01  # a tick looks at all shards: not more often, whatever is due
LONGEST_TICK_S = 0.05  # events may bring forward what is due; so late it is noticed at most
SUSPECT_US = 250_000  # how often the leader, perhaps a new one, hears who cannot be reached

log = logging.getLogger("penstock.node")


class Cluster:
    """Drives a Member. Made before the node listens; `start` begins to talk to the others."""

    def __init__(self, runtime: Runtime, disk: Disk, identity: Identity) -> None:
        engine = runtime.engine
        self.identity = identity
        self.ended: PenstockError | None = None  # why this node has no place in the cluster
        self.on_end: list[Callable[[], None]] = []
        self._runtime = runtime
        self._disk = disk
        self._loop = asyncio.get_running_loop()
        first = Membership(voters=(FOUNDER,)) if identity.founder else Membership()
        self.member = Member(
            engine, identity.node, identity.incarnation, first, secrets.randbits(32),
            runtime.clock.now_us(), speaks=own_speaks(),
        )  # fmt: skip
        self._check_level()
        self.member.founding = identity.founder and not identity.settled
        engine.fabric.cluster = identity.cluster
        engine.fabric.control.clustered = True
        shards = len(engine.fabric.kernel.shards)
        speaks = self.member.speaks
        me = m.Peer(
            identity.node, identity.incarnation, identity.cluster, speaks.lowest, speaks.highest,
            speaks.release,
        )  # fmt: skip
        self.links = Links(me, shards, self, self._incarnation_of, lambda: self.member.level)
        self.calls = ClusterCalls(self.member, self.links)
        self._writer = Worker(self._loop, "penstock-identity")
        self._version = 0  # of the map that was looked at last
        self._changed = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._suspect_us = 0
        self._was_present = False
        self._pumping = False  # soon

    def _check_level(self) -> None:
        """VersionError if the cluster, as this directory knows it, is at a level that this release
        does not speak: it could not even read what the others say."""
        level, speaks = self.member.level, self.member.speaks
        if reason := levels.problem(level, speaks):
            raise VersionError(reason, advice=levels.advice(level, speaks))

    def start(self, server: Server) -> None:
        """Lets other nodes in, calls them, and lets time pass. The engine's events come through
        `carry` from now on."""
        self._runtime.carrier = self
        server.accept_peer = self.links.accept
        self.links.expect(self._addresses())
        self._tick()

    async def stop(self) -> None:
        """Ends all links; what the engine still has to write, it writes without the others."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        await self.links.stop()
        self._writer.stop()

    # --- asking ----------------------------------------------------------------------------

    async def ask(self, command: Command) -> Outcome:
        """What the cluster decides; waits as long as that takes."""
        decided: asyncio.Future[Outcome] = self._loop.create_future()

        def then(outcome: Outcome) -> None:
            if not decided.done():
                decided.set_result(outcome)

        token = self.member.ask(command, self.now_us(), then)
        self.pump()
        try:
            return await decided
        finally:
            self.member.forget(token)

    def now_us(self) -> int:
        """The node's time."""
        return self._runtime.clock.now_us()

    def pump(self) -> None:
        """Does what follows from something that was done to the member."""
        self._pumping = False
        self._runtime.pump()

    async def change(self, seconds: float) -> None:
        """Waits until the map has changed, or so long."""
        self._changed.clear()
        try:
            await asyncio.wait_for(self._changed.wait(), seconds)
        except TimeoutError:
            return

    def save(self) -> None:
        """Has the identity written; soon, and not on the loop."""
        now = copy.copy(self.identity)
        self._writer.submit(lambda: write_identity(self._disk, now), self._saved)

    def _saved(self, error: BaseException | None) -> None:
        if error is not None:  # it only says where to look for the others after a restart
            log.warning("%s", error)

    def end(self, reason: PenstockError) -> None:
        """This node has no place in the cluster: it stops."""
        if self.ended is None:
            self.ended = reason
            for tell in self.on_end:
                tell()

    # --- the engine ------------------------------------------------------------------------

    def carry(self, now_us: int) -> None:
        """Something has happened in the engine or the member: the others hear what follows."""
        member = self.member
        member.pump(now_us)
        while member.peers:
            messages, member.peers = member.peers, []
            together: dict[int, list[list[Buffer]]] = {}
            for node, parts in messages:
                together.setdefault(node, []).append(parts)
            for node, own in together.items():
                self.links.send(node, own)
        if member.plane.state.version != self._version:
            self._map_changed(now_us)

    def _map_changed(self, now_us: int) -> None:
        state = self.member.plane.state
        self._version = state.version
        self._changed.set()
        self.calls.map_changed(now_us)
        if not self.member.present:  # the map is of long ago, or this node is not wanted any more
            if self._was_present:
                advice = "Join with an empty directory to come back."
                self.end(ConflictError("this node was removed from the cluster", advice=advice))
            return
        self._was_present = True
        addresses = self._addresses()
        if addresses != self.identity.peers:
            self.identity.peers = addresses
            self.save()
        self.links.expect(addresses)

    def _addresses(self) -> dict[int, Address]:
        """Where the other nodes are; those that have never been there have no port."""
        if not self.member.present:
            return self.identity.peers
        nodes = self.member.plane.state.nodes.values()
        others = [node for node in nodes if node.id != self.identity.node and node.port]
        return {node.id: (node.host, node.port) for node in others if node.status != "left"}

    def _incarnation_of(self, number: int) -> int | None:
        node = self.member.plane.state.nodes.get(number)
        if node is not None and node.status != "left":
            return node.incarnation
        return 0 if not self.member.present and number in self.identity.peers else None

    # --- links -----------------------------------------------------------------------------

    def linked(self, peer: m.Peer) -> None:
        """There is a new link."""
        stated = Stated(peer.node, peer.incarnation, levels.speaks_of(peer))
        self.member.linked(peer.node, self.now_us(), stated)
        self._pump_soon()

    def outdated(self, reason: VersionError) -> None:
        """The cluster is at a level that this node does not speak."""
        self.end(reason)

    def unlinked(self, node: int) -> None:
        """There is none any more."""
        self.member.unlinked(node, self.now_us())
        self._pump_soon()

    def received(self, node: int, messages: list[memoryview]) -> None:
        """Messages of a node. ProtocolError if one makes no sense."""
        now_us = self.now_us()
        try:
            self.member.receive(node, messages, now_us)
        except PenstockError:
            raise
        except Exception as defect:  # whatever the other node sends must not end this one
            log.exception("a message of node %s failed", node)
            raise ProtocolError(f"a message that cannot be handled: {defect!r}") from defect
        finally:
            self.pump()

    def _pump_soon(self) -> None:
        """Not at once: this may be in the middle of a pump."""
        if not self._pumping:
            self._pumping = True
            self._loop.call_soon(self.pump)

    # --- time ------------------------------------------------------------------------------

    def _tick(self) -> None:
        if self._runtime.failed is not None:
            return
        try:
            self._let_pass(self.now_us())
        except Exception as defect:
            self._runtime.fail(defect)
            return
        self.pump()
        wait_s = (self.member.next_due() - self.now_us()) / 1e6
        wait_s = min(max(wait_s, SHORTEST_TICK_S), LONGEST_TICK_S)
        self._timer = self._loop.call_later(wait_s, self._tick)

    def _let_pass(self, now_us: int) -> None:
        if now_us >= self._suspect_us and not self.member.plane.leaving:
            self._suspect_us = now_us + SUSPECT_US
            for node in self.links.missing:
                self.member.plane.suspect(node, now_us)
        self.member.tick(now_us)
