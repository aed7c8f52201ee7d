"""Messages that stealing moves from shard to shard, as the records of the owners tell."""

from __future__ import annotations

from typing import NamedTuple

from penstock.core.changes import read_grants
from penstock.core.kernel import Kernel
from penstock.core.records import Drop, Kind, read_forward, read_outgoing, read_push
from penstock.core.staged import STAGED
from penstock.sim.history import Move
from penstock.sim.world import World
from penstock.wire.entry import Entry


class _Leaving(NamedTuple):
    """What a shard's OUTGOING record takes out of its queues. It may be lost, and another record
    have its number."""

    epoch: int
    left_us: int
    drops: list[Drop]  # by the index of the part
    granted: list[int]  # for each: the last grant before it, in that queue and shard


class Moves:
    """Notes a move in `done` when its messages arrive: what has arrived has been committed where it
    came from."""

    def __init__(self, world: World) -> None:
        self.done: list[Move] = []
        self._world = world
        self._leaving: dict[tuple[int, int], _Leaving] = {}  # by shard and log number
        self._granted: dict[tuple[int, int], int] = {}  # by shard and stream: the highest so far

    def logged(self, entry: Entry, kernel: Kernel) -> None:
        """An owner logged a record; those of a shard and epoch come in their order."""
        if entry.kind == Kind.GRANT:
            stream, given = read_grants(entry.meta)
            known = self._granted.get((entry.shard, stream), 0)
            highest = max((each.number for each in given), default=0)
            self._granted[entry.shard, stream] = max(known, highest)
        elif entry.kind == Kind.OUTGOING:
            self._leaves(entry)
        elif entry.kind == Kind.PUSH | Kind.FORWARDED:
            self._arrives(entry, kernel)

    def _leaves(self, entry: Entry) -> None:
        # What was staged, and is late, is nobody's yet.
        drops = [each for each in read_outgoing(entry.meta).drops if each.position < STAGED]
        known = self._leaving.get((entry.shard, entry.number))
        if known is None or known.epoch < entry.epoch:
            granted = [self._granted.get((entry.shard, drop.stream), 0) for drop in drops]
            leaving = _Leaving(entry.epoch, self._world.now_us, drops, granted)
            self._leaving[entry.shard, entry.number] = leaving

    def _arrives(self, entry: Entry, kernel: Kernel) -> None:
        forward, meta = read_forward(entry.meta)
        leaving = self._leaving.get((forward.home, forward.number))
        if leaving is None or not leaving.drops:  # part of a transaction
            return
        drop, base = leaving.drops[forward.index], read_push(meta).base
        queue = kernel.streams[drop.stream].info.name
        move = Move(
            queue, (forward.home, drop.position), (entry.shard, base), drop.span, leaving.left_us,
            self._world.now_us, leaving.granted[forward.index], entry.epoch,
        )  # fmt: skip
        self.done.append(move)
        self._world.note(f"{move.span} messages move from {move.source} to {move.target}")
