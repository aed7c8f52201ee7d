"""The life of a node in its cluster: how it founds it or comes back, and how it takes leave."""

from __future__ import annotations

import asyncio
import logging

from penstock.cluster.commands import Command, Define, Down, Found, Rejoin
from penstock.cluster.consensus.membership import Membership
from penstock.cluster.map import NodeInfo
from penstock.engine.member import definition_of
from penstock.errors import ConflictError, PenstockError, UnavailableError
from penstock.node.cluster import Cluster
from penstock.node.identity import Address

REPLICATION = 3
HAND_OVER_S = 5.0
HEARD_S = 0.15  # a heartbeat of the consensus, and a little: how far all is decided goes with it
TOGETHER = 256  # definitions that are asked for at once

log = logging.getLogger("penstock.node")


async def settle_in(cluster: Cluster, address: Address) -> None:
    """Founds the cluster if this node is to, and tells the others where this start of it is.

    Done when the cluster knows of it; waits for a majority, however long. If the cluster has no
    place for it, `cluster.end` is told, and that is raised.
    """
    identity, member = cluster.identity, cluster.member
    host, port = address
    try:
        if member.founding:
            await _found(cluster, address)
        outcome = await cluster.ask(Rejoin(identity.node, host, port, identity.incarnation))
        if not outcome.accepted:
            raise ConflictError(
                f"the cluster does not take this node back: {outcome.reason}",
                advice="Join with an empty directory if it was removed.",
            )
        if member.founding:
            await _bring_streams(cluster)
    except PenstockError as error:
        cluster.end(error)
        raise


async def _found(cluster: Cluster, address: Address) -> None:
    identity, fabric = cluster.identity, cluster.member.engine.fabric
    node = NodeInfo(identity.node, identity.name, *address, "up", identity.incarnation)
    shards = len(fabric.kernel.shards)
    command = Found(identity.cluster, shards, REPLICATION, node, fabric.control.last_id)
    outcome = await cluster.ask(command)
    if outcome.refused not in ("", "exists"):  # it may have been founded before a crash
        raise ConflictError(f"the cluster cannot be founded: {outcome.reason}")


async def _bring_streams(cluster: Cluster) -> None:
    """What was there before the cluster is the cluster's from now on."""
    identity, member = cluster.identity, cluster.member
    streams = [stream.info for stream in member.engine.fabric.kernel.streams.values()]
    for at in range(0, len(streams), TOGETHER):
        asked: list[Command] = [Define(*definition_of(s), 0) for s in streams[at : at + TOGETHER]]
        for outcome in await asyncio.gather(*map(cluster.ask, asked)):
            if outcome.refused not in ("", "exists"):
                raise ConflictError(f"a stream cannot be defined: {outcome.reason}")
    member.founding = False
    identity.settled = True
    cluster.save()


async def hand_over(cluster: Cluster) -> None:
    """Lets others own what this node owns, and lead if it leads: nobody has to notice first that it
    is gone. Ends when that is done, when it cannot be, or after a time."""
    member = cluster.member
    if not member.present:
        return
    loop = asyncio.get_running_loop()
    until_s = loop.time() + HAND_OVER_S
    member.plane.leaving = True
    try:
        async with asyncio.timeout(HAND_OVER_S):
            if _heirs(cluster) and _decides(cluster):
                await _while_decides(cluster, Down(member.node, cluster.identity.incarnation))
            while _heirs(cluster) and _decides(cluster):
                await cluster.change(0.1)
            await _tell_all(cluster)
            if _decides(cluster):
                await _pass_leadership(cluster)
    except TimeoutError:
        log.warning("%s shards were not handed over in time", _heirs(cluster))
    log.info("handed over in %.2f s", HAND_OVER_S - (until_s - loop.time()))


async def _while_decides(cluster: Cluster, command: Command) -> None:
    """Asks for something, as long as there can be an answer."""
    asked = asyncio.ensure_future(cluster.ask(command))
    try:
        while _decides(cluster) and not asked.done():
            await asyncio.wait([asked], timeout=0.1)
    finally:
        asked.cancel()


def _heirs(cluster: Cluster) -> int:
    """Shards of this node that another could own."""
    state, me = cluster.member.plane.state, cluster.identity.node
    alive = {n for n, node in state.nodes.items() if node.status in ("up", "draining")} - {me}
    return sum(place.owner == me and not alive.isdisjoint(place.in_sync) for place in state.shards)


def _decides(cluster: Cluster) -> bool:
    """Whether a majority of the voters is reached from here."""
    members: Membership = cluster.member.plane.raft.membership
    reached = cluster.links.nodes | {cluster.identity.node}
    return sum(voter in reached for voter in members.voters) >= members.majority


async def _tell_all(cluster: Cluster) -> None:
    """A leader knows first what is decided: the others must have heard, or nobody acts on it."""
    raft = cluster.member.plane.raft
    others = [node for node in raft.membership.nodes if node != raft.node]
    if raft.leader != raft.node or not others:
        return
    while any(raft.lag(node) for node in others if node in cluster.links.nodes):
        await cluster.change(0.02)
    await asyncio.sleep(HEARD_S)


async def _pass_leadership(cluster: Cluster) -> None:
    raft = cluster.member.plane.raft
    linked = [voter for voter in raft.membership.voters if voter in cluster.links.nodes]
    if raft.leader != raft.node or not linked:
        return
    try:
        raft.transfer(linked[0], cluster.now_us())
    except UnavailableError:  # one is under way, or it leads no more
        return
    cluster.pump()
    while raft.leader == raft.node and _decides(cluster):
        await cluster.change(0.02)
