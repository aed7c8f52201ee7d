"""What a person should know of the cluster, in rows: `penstock cluster status`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from penstock.cluster.map import STRONG, ShardPlace
from penstock.cluster.state import ClusterState
from penstock.cluster.view import Figures, Limits, View

MAX_ROWS = 100  # of one kind; the rest is counted

What = Literal["unavailable", "owner down", "moving", "under-replicated", "down", "draining"]


class Row(NamedTuple):
    """One thing that is not as it should be, or not yet."""

    what: What
    who: str  # `shard 3`, `node 2`, `7 shards`
    why: str

    def __str__(self) -> str:
        return f"{self.what}: {self.who}: {self.why}"


def explain(
    state: ClusterState, figures: Figures, now_us: int, limits: Limits | None = None
) -> list[Row]:
    """Rows, the worst first; none if all is well."""
    view = View(state, figures, now_us, limits or Limits())
    rows: list[Row] = []
    for kind in (_unavailable(view), _headless(view), _thin(view)):
        rows += _bounded(kind)
    rows += _bounded(_moving(view, figures, now_us))
    rows += _bounded(_nodes(view, figures, now_us))
    return rows


def _bounded(rows: Iterator[Row]) -> list[Row]:
    listed = list(rows)
    if len(listed) > MAX_ROWS:
        rest = len(listed) - MAX_ROWS
        listed[MAX_ROWS:] = [Row(listed[0].what, f"{rest} more", "not listed")]
    return listed


def _unavailable(view: View) -> Iterator[Row]:
    for shard, place in enumerate(view.state.shards):
        if not view.available(place):
            away = _numbers([node for node in place.in_sync if node not in view.alive])
            behind = [node for node in place.replicas if node not in place.in_sync]
            note = f"; {_numbers(behind)} may lack acknowledged messages" if behind else ""
            yield Row(
                "unavailable", f"shard {shard}", f"all in-sync replicas are down: {away}{note}"
            )


def _headless(view: View) -> Iterator[Row]:
    for shard, place in enumerate(view.state.shards):
        if place.owner not in view.alive and view.available(place):
            yield Row("owner down", f"shard {shard}", f"another takes over from node {place.owner}")


def _thin(view: View) -> Iterator[Row]:
    wanted = min(view.state.replication, STRONG)
    thin = sum(_sound(view, place) < wanted for place in view.state.shards)
    if thin:
        yield Row("under-replicated", f"{thin} shards", f"{wanted} in-sync replicas are wanted")


def _sound(view: View, place: ShardPlace) -> int:
    return view.sound(place, without=0)


def _moving(view: View, figures: Figures, now_us: int) -> Iterator[Row]:
    for shard, place in enumerate(view.state.shards):
        if place.joining:
            since_us = figures.joining_since_us.get((shard, place.joining), now_us)
            why = f"to node {place.joining}, for {_seconds(now_us - since_us)}"
            yield Row("moving", f"shard {shard}", why)


def _nodes(view: View, figures: Figures, now_us: int) -> Iterator[Row]:
    state = view.state
    for number, node in sorted(state.nodes.items()):
        left = f"{state.held[number]} shards left"
        if node.status == "down":
            away_us = now_us - figures.down_since_us.get(number, now_us)
            replaced = "" if number in view.members else "; being replaced"
            yield Row("down", f"node {number}", f"for {_seconds(away_us)}, {left}{replaced}")
        elif node.status == "draining":
            yield Row("draining", f"node {number}", left)


def _numbers(nodes: list[int]) -> str:
    return ", ".join(f"node {node}" for node in nodes)


def _seconds(span_us: int) -> str:
    return f"{max(0, span_us) // 1_000_000} s"
