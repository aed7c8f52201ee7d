"""The state that the cluster agrees on: a fold of commands, the same on every node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from penstock.cluster import commands as c
from penstock.cluster import definitions, levels, members, places
from penstock.cluster.check import check
from penstock.cluster.map import UNREADABLE, ClusterMap, Level, Speaks, validated
from penstock.cluster.tables import FIRST, Definition, RefusedError, Tables, holders
from penstock.errors import ProtocolError
from penstock.wire.buffers import Buffer

_FORMATS = (1, 2)  # the second one has levels

_CARRY_OUT: dict[type[c.Command], Callable[[Tables, Any], int]] = {
    c.Found: members.found,
    c.Join: members.join,
    c.Rejoin: members.rejoin,
    c.Leave: members.leave,
    c.Remove: members.remove,
    c.Drain: members.drain,
    c.Undrain: members.undrain,
    c.Down: members.down,
    c.Up: members.up,
    c.ShrinkInSync: places.shrink,
    c.GrowInSync: places.grow,
    c.Withdraw: places.withdraw,
    c.Promote: places.promote,
    c.Transfer: places.transfer,
    c.AddReplica: places.add,
    c.DropReplica: places.drop,
    c.SetReplication: places.set_replication,
    c.Define: definitions.define,
    c.Undefine: definitions.undefine,
    c.Raise: levels.raise_level,
}


class _Snapshot(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The state as bytes. Written without the levels while the cluster is at the first: an older
    node may have to read it."""

    format: int
    map: ClusterMap
    next_node: int
    draining: list[int]
    definitions: dict[str, Definition]
    level: Level = FIRST
    speaks: dict[int, Speaks] = {}


_pack = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Snapshot).decode


class ClusterState(Tables):
    """Read its tables, change them by commands only."""

    def __init__(self) -> None:
        super().__init__()
        self._map: ClusterMap | None = None

    def apply(self, command: c.Command) -> c.Outcome:
        """Carries a command out, whole, or refuses it and says why; the same on every node. It
        raises nothing for a command that `read_command` would return."""
        try:
            if not self.shards and type(command) is not c.Found:
                raise RefusedError("unsafe", "the cluster is not founded")
            if self.full():
                raise RefusedError("limit", "no version is left")
            value = _CARRY_OUT[type(command)](self, command)
        except RefusedError as refusal:
            return c.Outcome(self.version, refusal.kind, refusal.reason)
        return c.Outcome(self.version, value=value)

    def map(self) -> ClusterMap:
        """The map of this version."""
        if self._map is None or self._map.version != self.version:
            nodes = tuple(self.nodes[number] for number in sorted(self.nodes))
            self._map = ClusterMap(
                self.cluster, self.version, nodes, tuple(self.shards), self.replication
            )
        return self._map

    def snapshot(self) -> bytes:
        """The state as bytes: equal states have equal bytes."""
        ordered = dict(sorted(self.definitions.items()))
        draining = sorted(self.draining)
        if self.level == FIRST:
            return _pack((1, self.map(), self.next_node, draining, ordered))
        speaks = dict(sorted(self.speaks.items()))
        return _pack(
            _Snapshot(2, self.map(), self.next_node, draining, ordered, self.level, speaks)
        )

    @classmethod
    def restore(cls, body: Buffer) -> ClusterState:
        """The state of a snapshot; ProtocolError if it is none."""
        try:
            found: _Snapshot = _decode(body)
        except UNREADABLE as error:
            raise ProtocolError(f"a cluster snapshot that cannot be read: {error}") from error
        if found.format not in _FORMATS:
            raise ProtocolError(f"a cluster snapshot of format {found.format} is not known")
        agreed = validated(found.map)
        state = cls()
        state.cluster, state.version = agreed.cluster, agreed.version
        state.replication, state.next_node = agreed.replication, found.next_node
        state.nodes = {node.id: node for node in agreed.nodes}
        state.draining = set(found.draining)
        state.level, state.speaks = found.level, found.speaks
        state.shards = list(agreed.shards)
        state.definitions = found.definitions
        state.definition_bytes = definitions.total_bytes(found.definitions)
        for place in state.shards:
            state.held.update(holders(place))
        if problems := check(state):
            raise ProtocolError(f"a cluster snapshot that contradicts itself: {problems[0]}")
        return state
