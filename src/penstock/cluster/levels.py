"""Levels: what nodes of different releases may say to each other, and write for each other.

A cluster is at a level that every node of it speaks. It rises when all have said that they speak a
higher one, and never falls: from then on logs and snapshots hold what an older release cannot read.
Whoever wants to send a new kind of message or record asks for the cluster's level first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.cluster.commands import Raise
from penstock.cluster.map import MAX_LEVEL, MAX_RELEASE, NodeInfo, Speaks, Stated
from penstock.cluster.tables import FIRST, RefusedError, Tables
from penstock.wire import messages as m

REPAIRS = 2  # levels are agreed on; damaged batches are asked for; what came with them
GROWTH_AND_STAGES = 3  # topics grow; batches are staged; queues have reservations
UNDELIVERED = 4  # owners hear of leases that nobody has
TASKS = 5  # messages are held until entries of tables exist; deliveries may not count

LOWEST, HIGHEST = FIRST, TASKS  # of this release
SILENT = Speaks(FIRST, FIRST)  # who says nothing


def speaks_of(peer: m.Peer | m.ClusterJoin) -> Speaks:
    """The levels that a node says that it speaks; the first one if that makes no sense."""
    if not 1 <= peer.lowest <= peer.highest <= MAX_LEVEL:
        return SILENT
    return Speaks(peer.lowest, peer.highest, peer.release[:MAX_RELEASE])


def problem(level: int, speaks: Speaks) -> str:
    """Why a node that speaks these cannot be one of a cluster at this level; empty if it can."""
    if speaks.lowest <= level <= speaks.highest:
        return ""
    spoken = f"levels {speaks.lowest} to {speaks.highest}"
    if speaks.highest == speaks.lowest:
        spoken = f"level {speaks.highest}"
    release = f" with Penstock {speaks.release}" if speaks.release else ""
    return f"the cluster is at level {level}; a node{release} that speaks {spoken} cannot be in it"


def advice(level: int, speaks: Speaks) -> str:
    """What to do about a problem."""
    if speaks.highest < level:
        return "Start it with the release of the other nodes; a level never falls."
    return "Upgrade the other nodes first, to a release that speaks both levels."


def next_raise(tables: Tables, stated: Mapping[int, Stated]) -> Raise | None:
    """The step to a higher level, if all nodes have said that they speak it."""
    members = list(_members(tables))
    known = {node.id: _known(tables, node, stated.get(node.id)) for node in members}
    level = min((each.highest if each else 0 for each in known.values()), default=0)
    if level <= tables.level or any(each and each.lowest > level for each in known.values()):
        return None
    said = [stated[node.id] for node in members if node.id in stated]
    return Raise(level, tuple(each for each in said if known[each.node] is each.speaks))


def raise_level(tables: Tables, command: Raise) -> int:
    """Value: the level. Only if every node, up or down, is known to speak it."""
    if command.level <= tables.level:
        raise RefusedError("stale", f"the cluster is at level {tables.level} already")
    stated = {each.node: each for each in command.stated}
    found: dict[int, Speaks] = {}
    for node in _members(tables):
        speaks = _known(tables, node, stated.get(node.id))
        if speaks is None or problem(command.level, speaks):
            raise RefusedError(
                "unsafe", f"node {node.id} is not known to speak level {command.level}"
            )
        found[node.id] = speaks
    tables.next_version()
    tables.level, tables.speaks = command.level, found
    return command.level


def enter(tables: Tables, node: int, speaks: Speaks | None) -> None:
    """A node has begun a new life. Before the second level nothing is noted: older nodes, who
    could not, must come to the same state."""
    tables.speaks.pop(node, None)
    if speaks is not None and tables.level > FIRST:
        tables.speaks[node] = speaks


def check_speaks(tables: Tables, speaks: Speaks) -> None:
    """Refuses a node that does not speak the cluster's level."""
    if reason := problem(tables.level, speaks):
        raise RefusedError("unsafe", f"{reason}; {advice(tables.level, speaks)}")


def _members(tables: Tables) -> Iterable[NodeInfo]:
    return (node for node in tables.nodes.values() if node.status != "left")


def _known(tables: Tables, node: NodeInfo, stated: Stated | None) -> Speaks | None:
    """What a node speaks in its present life."""
    if stated is not None and stated.incarnation == node.incarnation:
        return stated.speaks
    return tables.speaks.get(node.id)
