"""Figures of all nodes and streams as records, each with what has changed since the one before."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from penstock.cli.top import StreamRow, take_sample
from penstock.errors import PenstockError, UnavailableError
from penstock.node.identity import Address
from penstock.node.node import parse_address
from penstock.node.remote import ask_any, ask_node
from penstock.wire.messages import ClusterStatus, Stats

if TYPE_CHECKING:
    from penstock import Fabric

Record = dict[str, Any]

GAUGES = (
    "connections", "messages", "bytes", "disk_bytes", "live_bytes", "unwritten_bytes",
    "outstanding", "damaged",
)  # fmt: skip
COUNTERS = {"records": "appended_records", "written_bytes": "appended_bytes", "syncs": "syncs"}
STREAM_FIELDS = ("messages", "bytes", "ready", "leased", "dead", "oldest_ms")


class Exporter:
    """Takes samples of a fabric. Changes are counted from the sample before; a node that was
    started anew counts from zero."""

    def __init__(self, fabric: Fabric, url: str, probes: int) -> None:
        self._fabric = fabric
        self._seeds = [
            parse_address(each) for each in url.removeprefix("penstock://").rstrip("/").split(",")
        ]
        self._probes = probes
        self._before: dict[str, tuple[float, dict[str, int]]] = {}

    def sample(self) -> list[Record]:
        """A record for each node, and one for each queue and topic that can be asked for."""
        now_us = time.time_ns() // 1000
        nodes = asyncio.run(self._nodes())
        found = [self._node(now_us, name, *answer) for name, answer in nodes.items()]
        try:
            streams = take_sample(self._fabric).streams
        except UnavailableError:
            return found  # that the nodes are away, or which of them, is what matters now
        return found + [self._stream(now_us, row) for row in streams]

    async def _nodes(self) -> dict[str, tuple[Record, list[int]]]:
        places = await self._places()
        answers = await asyncio.gather(*(self._probe(each) for each in places.values()))
        return dict(zip(places, answers, strict=True))

    async def _places(self) -> dict[str, Address]:
        """Where the nodes are, by the name that they have in the records."""
        try:
            status = await ask_any(self._seeds, ClusterStatus(False), dict[str, Any])
        except PenstockError:
            return {f"{host}:{port}": (host, port) for host, port in self._seeds}
        there = [each for each in status["nodes"] if each["address"]]
        return {str(each["id"]): parse_address(each["address"]) for each in there}

    async def _probe(self, place: Address) -> tuple[Record, list[int]]:
        """Figures, and how long each answer took; none if the node does not answer."""
        figures: Record = {}
        took: list[int] = []
        for _ in range(self._probes):
            started = time.perf_counter_ns()
            try:
                _, figures = await ask_node(place, Stats(), dict[str, Any])
            except PenstockError:
                return {}, []
            took.append((time.perf_counter_ns() - started) // 1000)
        return figures, took

    def _node(self, now_us: int, name: str, figures: Record, took: Sequence[int]) -> Record:
        told: Record = {"kind": "node", "time_us": now_us, "name": name, "up": bool(took)}
        if not took:
            return told
        counters = {ours: figures.get(theirs, 0) for ours, theirs in COUNTERS.items()}
        told |= self._changes(f"node {name}", counters)
        told |= {each: figures[each] for each in GAUGES}
        return told | {"refusing": figures["refusing"], "answer_us": list(took)}

    def _stream(self, now_us: int, row: StreamRow) -> Record:
        name = f"{row.kind}:{row.name}"
        told: Record = {"kind": row.kind, "time_us": now_us, "name": name, "up": True}
        told |= self._changes(name, {"came": row.total_in, "left": row.total_out})
        return told | {each: getattr(row, each) for each in STREAM_FIELDS}

    def _changes(self, name: str, counters: dict[str, int]) -> Record:
        now = time.monotonic()
        then, before = self._before.get(name, (now, counters))
        self._before[name] = now, counters
        changes = {
            each: count - before[each] if count >= before[each] else count
            for each, count in counters.items()
        }
        return {"seconds": round(now - then, 6), **changes}
