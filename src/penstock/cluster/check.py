"""What must hold of the agreed state, whatever happens. Cheap enough to run in production."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from penstock.cluster.map import ClusterMap, ShardPlace, place_problem
from penstock.cluster.tables import Tables, holders


def check(state: Tables, before: ClusterMap | None = None) -> list[str]:
    """What is wrong, empty if nothing is. With the map of one command before, also whether that
    step was allowed, and then only shards that changed are looked at."""
    problems = [*_nodes(state), *_shards(state, before)]
    if before is not None and state.version < before.version:
        problems.append(f"version {state.version} after {before.version}")
    return problems


def _nodes(state: Tables) -> Iterator[str]:
    for number, node in state.nodes.items():
        if node.id != number or not 0 < number < state.next_node:
            yield f"node {number} has the id {node.id}; the next is {state.next_node}"
        if node.status == "left" and state.held[number]:
            yield f"node {number} has left with {state.held[number]} shards"
        if node.status == "draining" and number not in state.draining:
            yield f"node {number} is draining by mistake"
    if not state.speaks.keys() <= state.nodes.keys():
        yield "a node that is not there speaks"
    for number, speaks in state.speaks.items():
        if not speaks.lowest <= state.level <= speaks.highest:
            yield f"node {number} does not speak level {state.level}"
    if not state.draining <= state.nodes.keys():
        yield "a node that is not there is draining"


def _shards(state: Tables, before: ClusterMap | None) -> Iterator[str]:
    earlier = before.shards if before is not None else ()
    if earlier and len(earlier) != len(state.shards):
        yield f"{len(state.shards)} shards after {len(earlier)}"
        return
    if not earlier:
        counted = Counter(node for place in state.shards for node in holders(place))
        if +state.held != counted:
            yield "the count of shards held is wrong"
    for shard, place in enumerate(state.shards):
        if earlier and earlier[shard] is place:
            continue
        if problem := place_problem(place, state.nodes):
            yield f"shard {shard}: {problem}"
        if place.version > state.version:
            yield f"shard {shard}: changed in a version to come"
        if earlier and (problem := _step_problem(earlier[shard], place)):
            yield f"shard {shard}: {problem}"


def _step_problem(old: ShardPlace, new: ShardPlace) -> str:
    if new.epoch < old.epoch:
        return f"epoch {new.epoch} after {old.epoch}"
    if new.owner != old.owner and new.epoch == old.epoch:
        return f"two owners in epoch {old.epoch}"
    if new.owner not in old.in_sync:
        return f"node {new.owner} was promoted and was not in sync"
    if new != old and new.version <= old.version:
        return f"changed without a new version: {new.version}"
    return ""
