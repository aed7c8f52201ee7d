"""Commands: what the nodes agree on, one after the other. Each is carried out or refused whole."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from penstock.cluster.map import (
    MAX_COPIES,
    MAX_NODES,
    MAX_SHARDS,
    UNREADABLE,
    Level,
    Name,
    NodeId,
    NodeInfo,
    Number,
    Port,
    Replication,
    ShardId,
    Speaks,
    Stated,
)
from penstock.errors import ProtocolError
from penstock.wire.buffers import Buffer

MAX_DEFINITION_NAME = 1024  # characters: kind, namespace and name
MAX_DEFINITION_BYTES = 256 << 10

# Why a command was refused. stale: the state moved on, look again; unsafe: it would break a
# promise; unknown: no such node, shard or definition; exists: taken; limit: a bound was reached.
Refused = Literal["", "stale", "unsafe", "unknown", "exists", "limit"]

DefinitionName = Annotated[str, Meta(min_length=1, max_length=MAX_DEFINITION_NAME)]
DefinitionData = Annotated[bytes, Meta(max_length=MAX_DEFINITION_BYTES)]


class Outcome(msgspec.Struct, frozen=True, array_like=True):
    """What became of a command. `version` is the state's afterwards: it grew if that changed."""

    version: int
    refused: Refused = ""
    reason: str = ""
    value: int = 0  # the id of a node that joined, the version of a definition

    @property
    def accepted(self) -> bool:
        """Whether it was carried out, now or (a repeated command) before."""
        return not self.refused


class _Command(msgspec.Struct, frozen=True, tag=True, array_like=True, forbid_unknown_fields=True):
    """Base of all commands."""


class Found(_Command, frozen=True):
    """Found the cluster: all shards on its first node. The first command, and only that."""

    cluster: Number
    shards: Annotated[int, Meta(ge=1, le=MAX_SHARDS)]
    replication: Replication
    node: NodeInfo
    after: Number = 0  # versions begin above it: they name streams, and these may exist already


class Join(_Command, frozen=True):
    """A new node. Its id is given (`Outcome.value`) unless it brings one that was never used.
    Sent again, it gets the same answer."""

    node: NodeInfo
    speaks: Speaks | None = None  # not said before the second level; see `pack_command`


class Rejoin(_Command, frozen=True):
    """A node has started again, perhaps elsewhere. What it owns it owns in a new epoch: it may
    have lost what its replicas did not, so its old numbers must not be used twice."""

    id: NodeId
    host: Name
    port: Port
    incarnation: Number
    speaks: Speaks | None = None  # not said before the second level; see `pack_command`


class Leave(_Command, frozen=True):
    """A node without replicas goes; its entry stays, and its id is never used again."""

    id: NodeId


class Remove(_Command, frozen=True):
    """A node without replicas is forgotten; its id is never used again."""

    id: NodeId


class Drain(_Command, frozen=True):
    """Move everything off a node. It stays so marked when it goes down and comes back."""

    id: NodeId


class Undrain(_Command, frozen=True):
    """Use a node again."""

    id: NodeId


class Down(_Command, frozen=True):
    """A node is not heard of, in this incarnation."""

    id: NodeId
    incarnation: Number


class Up(_Command, frozen=True):
    """A node is heard of again, in the incarnation that was taken for down."""

    id: NodeId
    incarnation: Number


class ShrinkInSync(_Command, frozen=True):
    """From the owner: these replicas do not keep up. Writes may be acknowledged without them
    once it is accepted. `expected_version` is that of the place it was decided on."""

    shard: ShardId
    epoch: Number
    owner: NodeId
    removed: Annotated[tuple[NodeId, ...], Meta(min_length=1, max_length=MAX_COPIES)]
    expected_version: Number


class GrowInSync(_Command, frozen=True):
    """From the owner: a replica, or the node that joins, has all that was acknowledged. From the
    moment it is proposed the owner acknowledges nothing without it."""

    shard: ShardId
    epoch: Number
    owner: NodeId
    node: NodeId
    expected_version: Number


class Withdraw(_Command, frozen=True):
    """From a node whose disk has lost part of these shards: it is not in sync any more, and what
    it owned others own. A shard that nobody else is in sync with stays as it is."""

    id: NodeId
    incarnation: Number
    shards: Annotated[tuple[ShardId, ...], Meta(min_length=1, max_length=MAX_SHARDS)]


class Promote(_Command, frozen=True):
    """Another owner, in a new epoch, because the old one is down."""

    shard: ShardId
    expected_epoch: Number
    node: NodeId


class Transfer(_Command, frozen=True):
    """Another owner, in a new epoch, as planned: the old one is up and hands over."""

    shard: ShardId
    expected_epoch: Number
    to: NodeId


class AddReplica(_Command, frozen=True):
    """A node starts to catch up; GrowInSync makes it a replica."""

    shard: ShardId
    expected_epoch: Number
    node: NodeId


class DropReplica(_Command, frozen=True):
    """A node no longer has the shard, or no longer joins it. Never the owner."""

    shard: ShardId
    expected_epoch: Number
    node: NodeId


class Define(_Command, frozen=True):
    """Write a definition if it still has this version (0: if there is none)."""

    name: DefinitionName
    data: DefinitionData
    expected_version: Number


class Undefine(_Command, frozen=True):
    """Delete a definition if it still has this version."""

    name: DefinitionName
    expected_version: Number


class SetReplication(_Command, frozen=True):
    """How many replicas a shard should have. The planner adds and drops them."""

    replication: Replication


class Raise(_Command, frozen=True):
    """A higher level: all nodes speak it. With what they said of themselves, in their present
    lives, as far as the state does not know it."""

    level: Level
    stated: Annotated[tuple[Stated, ...], Meta(max_length=MAX_NODES)]


Command = (
    Found | Join | Rejoin | Leave | Remove | Drain | Undrain | Down | Up | ShrinkInSync | GrowInSync
    | Promote | Transfer | AddReplica | DropReplica | Define | Undefine | SetReplication
    | Raise | Withdraw
)  # fmt: skip

_decode = msgspec.msgpack.Decoder(Command).decode
_encode = msgspec.msgpack.Encoder().encode


def pack_command(command: Command) -> bytes:
    """A command as bytes. A field that the first level did not know is left out while it says
    nothing, so that older nodes can read the rest."""
    if isinstance(command, Join | Rejoin) and command.speaks is None:
        return _encode((type(command).__name__, *msgspec.structs.astuple(command)[:-1]))
    return _encode(command)


def read_command(body: Buffer) -> Command:
    """The command that `pack_command` wrote; ProtocolError if it is none."""
    try:
        command: Command = _decode(body)
    except UNREADABLE as error:
        raise ProtocolError(f"a cluster command that cannot be read: {error}") from error
    return command
