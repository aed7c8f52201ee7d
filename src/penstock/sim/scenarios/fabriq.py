"""Fabriq's evaluation: 64,000 messages pushed one by one to 64 servers, and popped by one consumer.

Published: load within 5 % of even on 89 % of the servers and within 9.5 % on all; Kafka had 0 to
6,352 messages on a server. Hops of a pop: 0.984 by their model, 1.053 measured.
"""

from __future__ import annotations

from collections import Counter
from random import Random

from penstock.client.producer import Producer, shard_of
from penstock.client.routing import Routes
from penstock.cluster.map import ClusterMap, pack
from penstock.cluster.pops import Ask, Park, Pop, PopRoute, QueueOwner
from penstock.errors import PenstockError
from penstock.sim.scenarios.clusters import new_cluster
from penstock.sim.scenarios.outcome import Chart, Check, Outcome

SERVERS = 64
MESSAGES = 64_000
SHARDS = 256  # as many as a data directory has
CLIENTS = 64  # one for each server, as theirs
OTHERS = (1, 16, 33, 100, 128)
EVEN = MESSAGES / SERVERS
WITHIN = 0.05
QUEUE = b"fabriq"
MODEL_HOPS = 0.984  # 1 - 1 / servers + (servers - 1) / (2 * messages), as they print it
_CONSUMER = 1


def run(seed: int = 1) -> Outcome:
    """Pushes, then pops."""
    chance = Random(seed)
    cluster = new_cluster(SERVERS, SHARDS)
    loads = push(cluster, CLIENTS, chance)
    others = {count: push(cluster, count, chance) for count in OTHERS}
    hashed = _hashed(cluster, chance)
    hops = pop_hops(cluster, loads)
    worst = max(furthest(loads), *map(furthest, others.values()))
    figures = {
        "worst_percent": 100 * furthest(loads),
        "servers_within_5_percent": 100 * within(loads),
        "fewest": min(loads.values()),
        "most": max(loads.values()),
        "hops": hops,
        "hashed_worst_percent": 100 * furthest(hashed),
        "hashed_within_5_percent": 100 * within(hashed),
        **{f"worst_percent_{count}": 100 * furthest(load) for count, load in others.items()},
    }
    checks = [
        Check("worst server in all of these, off even", 100 * worst, 100 * WITHIN, "%"),
        Check("average hops of a pop", hops, MODEL_HOPS * (1 + WITHIN)),
    ]
    servers = sorted(loads)
    chart = Chart(
        f"{MESSAGES:,} single pushes to {SERVERS} servers",
        "server",
        "messages",
        servers,
        {
            "Penstock": [loads[server] for server in servers],
            "a hash of each message": [hashed[server] for server in servers],
        },
    )
    columns = ("", "Penstock", "a hash of each message, here", "Fabriq", "Kafka")
    rows = _rows(loads, hashed, hops)
    rows += [
        (f"worst server, producers: {count}", _percent(furthest(load)), "", "", "")
        for count, load in others.items()
    ]
    return Outcome("fabriq-64", columns, rows, figures, checks, chart)


def _rows(loads: Counter[int], hashed: Counter[int], hops: float) -> list[tuple[str, ...]]:
    def spread(load: Counter[int]) -> str:
        return f"{min(load.values()):,} to {max(load.values()):,}"

    ours, theirs = furthest(loads), furthest(hashed)
    return [
        ("messages on a server", spread(loads), spread(hashed), "", "0 to 6,352"),
        (f"worst server, producers: {CLIENTS}", _percent(ours), _percent(theirs), "9.5 %", ""),
        ("servers within 5 %", _percent(within(loads)), _percent(within(hashed)), "89.0 %", ""),
        ("hops of a pop", f"{hops:.3f}", "", f"1.053, model {MODEL_HOPS}", ""),
    ]


def _percent(part: float) -> str:
    return f"{100 * part:.1f} %"


def push(cluster: ClusterMap, producers: int, chance: Random) -> Counter[int]:
    """Messages on each server when so many producers push them one by one, in equal parts."""
    loads = Counter({node.id: 0 for node in cluster.nodes})
    routes = Routes(timeout_s=0.0)
    routes.learn(b"m" + pack(cluster))
    for number in range(producers):
        identity, seed = chance.getrandbits(63) | 1, chance.getrandbits(64)
        walk = Producer(identity, len(cluster.shards), seed).walk_shards(routes)
        count = MESSAGES // producers + (number < MESSAGES % producers)
        for shard, messages in Counter(walk.single() for _ in range(count)).items():
            loads[cluster.owner_of(shard)] += messages
    return loads


def _hashed(cluster: ClusterMap, chance: Random) -> Counter[int]:
    """The same by a hash of each message's id, as Fabriq does."""
    loads = Counter({node.id: 0 for node in cluster.nodes})
    shards = len(cluster.shards)
    for _ in range(MESSAGES):
        loads[cluster.owner_of(shard_of(chance.randbytes(16), shards))] += 1
    return loads


def furthest(loads: Counter[int]) -> float:
    """How far the worst server is from the even share, as part of it."""
    return max(abs(load - EVEN) for load in loads.values()) / EVEN


def within(loads: Counter[int]) -> float:
    """The part of the servers whose load is within 5 % of even."""
    return sum(abs(load - EVEN) <= WITHIN * EVEN for load in loads.values()) / len(loads)


def pop_hops(cluster: ClusterMap, loads: Counter[int]) -> float:
    """Network trips for each message, when one consumer on the first server pops all, one by one.

    A trip is whatever goes to another server: a pop that finds a message, one that finds none, a
    question to the queue's owner. All notices have arrived; no messages are moved to where the
    consumer is."""
    local = cluster.nodes[0].id
    owner_at = cluster.owner_of(shard_of(QUEUE, len(cluster.shards)))
    owner, route = QueueOwner(), PopRoute(local)
    left = Counter({node: load for node, load in loads.items() if load})
    for node in left:
        owner.filled(node, 1)
    total, trips = left.total(), 0
    while not isinstance(todo := route.next(), Park):
        if isinstance(todo, Ask):
            trips += owner_at != local
            route.listed(owner.ask(_CONSUMER, todo.emptied))
        else:
            trips += todo.node != local
            _pop(todo, left, route, owner)
    if left.total():
        raise PenstockError(f"{left.total():,} messages were not found")
    return trips / total


def _pop(todo: Pop, left: Counter[int], route: PopRoute, owner: QueueOwner) -> None:
    node = todo.node
    if not left[node]:
        route.empty(node, 1)
        return
    left[node] -= 1
    route.found(node, 1)
    if not left[node]:
        owner.emptied(node, 1)
