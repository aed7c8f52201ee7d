"""How a data directory becomes a node of a cluster, and stays that node."""

from __future__ import annotations

import os
import secrets
import socket
from typing import TYPE_CHECKING

from penstock.cluster.levels import HIGHEST, LOWEST
from penstock.cluster.map import MAX_RELEASE, Speaks
from penstock.errors import ConflictError, InvalidError, PenstockError, ProtocolError
from penstock.machine import release
from penstock.node.identity import Address, Identity, read_identity, write_identity
from penstock.node.remote import ask_any, ask_node
from penstock.store.disk import Disk
from penstock.store.locations import CHECKPOINT, JOURNAL, SHARD, numbers
from penstock.wire import messages as m

if TYPE_CHECKING:
    from penstock.node.node import Config

FOUNDER = 1  # the id of a cluster's first node
LEVEL_VARIABLE = "PENSTOCK_LEVEL"  # for tests: the highest level that a node admits to speak


async def admit(disk: Disk, config: Config) -> Identity | None:
    """The identity of this start of a node, counted durably; None if the node stands alone.

    InvalidError or ConflictError if the directory is not fit for what the config asks.
    """
    identity = read_identity(disk)
    if identity is None and not (config.cluster or config.join):
        return None
    if identity is None:
        identity = _new_identity(disk, config)
        write_identity(disk, identity)
    if not identity.node:
        await _join(identity, config.join)
    elif config.join:
        await _check_same(identity, config.join)
    identity.incarnation += 1
    write_identity(disk, identity)
    return identity


def _new_identity(disk: Disk, config: Config) -> Identity:
    name = f"{socket.gethostname()[:200]}-{secrets.token_hex(4)}"
    if config.cluster and config.join:
        raise InvalidError("a node founds a cluster or joins one, not both")
    if config.cluster:
        cluster = secrets.randbits(62) | 1
        return Identity(name, founder=True, cluster=cluster, node=FOUNDER)
    names = disk.names()
    if any(numbers(names, kind) for kind in (JOURNAL, SHARD, CHECKPOINT)):
        raise InvalidError(
            "this directory holds the data of a node that stood alone",
            advice="Join with an empty directory, or found a cluster from this one: --cluster.",
        )
    return Identity(name)


async def _join(identity: Identity, seeds: tuple[Address, ...]) -> None:
    if not seeds:
        raise InvalidError(
            "this directory was to join a cluster, and did not get there",
            advice="Start the node with --join HOST:PORT again.",
        )
    joined = await _ask_to_join(identity.name, seeds)
    identity.node, identity.cluster, identity.shards = joined.node, joined.cluster, joined.shards
    identity.peers = {node: (host, port) for node, host, port in joined.peers}


async def _ask_to_join(name: str, seeds: tuple[Address, ...]) -> m.ClusterJoined:
    speaks = own_speaks()
    call = m.ClusterJoin(name, speaks.lowest, speaks.highest, speaks.release)
    try:
        return await ask_any(seeds, call, m.ClusterJoined)
    except ProtocolError:  # a node of a release that knows nothing of levels
        return await ask_any(seeds, m.ClusterJoin(name), m.ClusterJoined)


def own_speaks() -> Speaks:
    """The levels that this node speaks with others."""
    wanted = os.environ.get(LEVEL_VARIABLE, "")
    highest = int(wanted) if wanted.isdigit() else HIGHEST
    return Speaks(LOWEST, min(max(highest, LOWEST), HIGHEST), release()[:MAX_RELEASE])


async def _check_same(identity: Identity, seeds: tuple[Address, ...]) -> None:
    """A node that was told to join again: its command line is the same at every start. Only what
    leads to another cluster is refused; nobody needs to be up."""
    for seed in seeds:
        try:
            welcome, _ = await ask_node(seed, m.Stats(), dict)
        except PenstockError:
            continue
        if welcome.cluster != identity.cluster:
            raise ConflictError(
                f"{seed[0]}:{seed[1]} is of another cluster than this directory",
                advice="Join with an empty directory, or name a node of its own cluster.",
            )
        return
