"""Which node of which cluster a data directory is: a small file beside the data."""

from __future__ import annotations

from contextlib import suppress

import msgspec

from penstock.errors import DamagedError
from penstock.store.disk import Disk, DiskError

NAME = "cluster.json"
_UNFINISHED = "cluster.json.new"

Address = tuple[str, int]


class Identity(msgspec.Struct):
    """What a node has to know before it can talk to the others."""

    name: str  # its own for ever: under it a repeated request to join gets the same id
    founder: bool = False
    settled: bool = False  # what it brought into the cluster that it founded is the cluster's
    cluster: int = 0
    node: int = 0  # 0: it was to join, and is not known to have got there
    shards: int = 0
    incarnation: int = 0  # how often it was started
    peers: dict[int, Address] = {}  # where the others were when it last knew


def read_identity(disk: Disk) -> Identity | None:
    """The identity of a directory; None if it is no node of a cluster."""
    if NAME not in disk.names():
        return None
    try:
        return msgspec.json.decode(disk.read(NAME, 0, disk.size(NAME)), type=Identity)
    except msgspec.MsgspecError as error:
        raise DamagedError(
            f"{NAME} cannot be read: {error}",
            advice="Restore it, or remove this node from the cluster and join with a new one.",
        ) from error


def write_identity(disk: Disk, identity: Identity) -> None:
    """Durable when it returns; whatever happens, the old or the new one is there whole."""
    with suppress(DiskError):  # remains of a write that was cut off, if any
        disk.delete(_UNFINISHED)
    disk.create(_UNFINISHED)
    disk.write(_UNFINISHED, 0, [msgspec.json.encode(identity)])
    disk.sync(_UNFINISHED)
    disk.rename(_UNFINISHED, NAME)
    disk.sync_names()
