"""Leases that nobody has, between nodes: whoever lost a shard tells its new owner.

Nothing here is promised. What is not told, or is told to a node that does not take it, comes back
when its lease runs out.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from penstock.cluster.map import ClusterMap, ShardPlace
from penstock.core.fabric import Fabric
from penstock.errors import ProtocolError
from penstock.wire.buffers import Buffer

MOST_GRANTS = 10_000  # that a node keeps in mind, of all shards, until it can tell or end them


class Unheard(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """To the owner of a shard: nobody has these leases of a queue there, given in this epoch."""

    shard: int
    epoch: int
    stream: int
    grants: list[int]


pack_unheard = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Unheard).decode


def unpack_unheard(data: Buffer) -> Unheard:
    """A message; ProtocolError if it is none."""
    try:
        return _decode(data)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"not about leases that nobody has: {error}") from error


class UndeliveredLeases:
    """See the module. The shell calls `advance` after every event."""

    def __init__(
        self, node: int, fabric: Fabric, send: Callable[[int, Unheard], None],
        is_linked: Callable[[int], bool],
    ) -> None:  # fmt: skip
        self._node = node
        self._fabric = fabric
        self._send = send
        self._is_linked = is_linked
        self.enabled = False  # whether all nodes understand each other in this
        self._lost: list[Unheard] = []  # to be told
        self._heard: list[Unheard] = []  # to be ended, once the shard is served here
        fabric.queues.undelivered.on_lost = self._lose

    def _lose(self, shard: int, epoch: int, stream: int, grants: list[int]) -> None:
        _keep(self._lost, Unheard(shard, epoch, stream, grants))

    def receive(self, message: Unheard) -> None:
        """Another node has lost a shard; perhaps it knows earlier than this one who has it now."""
        if not 0 <= message.shard < len(self._fabric.kernel.shards):
            raise ProtocolError(f"there are {len(self._fabric.kernel.shards)} shards")
        _keep(self._heard, message)

    def advance(self, cluster: ClusterMap, now_us: int) -> None:
        """Tells, and ends, what can be; nothing before the node, which may have just started, has
        a map."""
        if not cluster.shards:
            return
        if self._lost:
            lost, self._lost = self._lost, []
            for message in lost if self.enabled else ():
                self._tell(cluster.shards[message.shard], message)
        if self._heard:
            heard, self._heard = self._heard, []
            for message in heard:
                self._end(cluster.shards[message.shard], message, now_us)

    def _tell(self, place: ShardPlace, message: Unheard) -> None:
        if place.epoch <= message.epoch:  # the loss was heard of before the map
            _keep(self._lost, message)
        elif place.owner == self._node:  # it was away for a moment
            _keep(self._heard, message)
        elif self._is_linked(place.owner):
            self._send(place.owner, message)

    def _end(self, place: ShardPlace, message: Unheard, now_us: int) -> None:
        kernel = self._fabric.kernel
        shard = kernel.shards[message.shard]
        if shard.owned and shard.epoch > message.epoch:
            kernel.now_us = now_us
            self._fabric.queues.undelivered.end(message.shard, message.stream, message.grants)
        elif place.owner == self._node or place.epoch <= message.epoch:
            _keep(self._heard, message)


def _keep(messages: list[Unheard], message: Unheard) -> None:
    if sum(len(each.grants) for each in messages) + len(message.grants) <= MOST_GRANTS:
        messages.append(message)
