"""All nodes of a simulated cluster, the network, and the list of those that have tasks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from penstock.client.producer import Producer, shard_of
from penstock.client.routing import Routes
from penstock.cluster.map import pack
from penstock.cluster.pops import MAX_WAITING, Hint, QueueOwner
from penstock.core.holds import Watcher
from penstock.sim.scenarios.clusters import new_cluster
from penstock.sim.world import World
from penstock.tasks.simulation.costs import Costs
from penstock.tasks.simulation.ledger import Ledger
from penstock.tasks.simulation.node import QUEUE, Lot, Reply, Request, TaskNode
from penstock.wire.frames import SettleItem

SHARDS_PER_NODE = 4
AGAIN_US = 5_000  # after so long, further consumers are told of tasks that nobody has taken
CLIENT_BYTES = 8

Heard = Callable[[Sequence[int]], None]
Edges = list[tuple[bytes, Watcher]]
"""Ids of tasks, and who waits for the result of each."""


def task_key(task: int) -> bytes:
    """The id of a task."""
    return bytes(CLIENT_BYTES) + task.to_bytes(CLIENT_BYTES, "big")


def task_of(key: bytes) -> int:
    """The task of an id."""
    return int.from_bytes(key[CLIENT_BYTES:], "big")


class TaskFabric:
    """What workers and clients reach through the network. Whoever is asked answers by a call."""

    def __init__(
        self, seed: int, nodes: int, ledger: Ledger, lease_us: int, costs: Costs | None = None
    ) -> None:
        self.world = World(seed)
        self.ledger = ledger
        self.costs = costs or Costs()
        self.lease_us = lease_us
        self.map = new_cluster(nodes, nodes * SHARDS_PER_NODE)
        self.routes = Routes(timeout_s=0.0)
        self.routes.learn(b"m" + pack(self.map))
        owned: dict[int, list[int]] = {node.id: [] for node in self.map.nodes}
        for shard in range(len(self.map.shards)):
            owned[self.map.owner_of(shard)].append(shard)
        self.nodes = {
            number: TaskNode(number, shards, self.world, self.costs, self._turned)
            for number, shards in owned.items()
        }
        self.heard: dict[int, Heard] = {}  # clients
        self.client_of: Callable[[int], int] = lambda task: 0  # a task's client
        self.keeps = ledger.parents is not None  # outcomes, so that others can wait for them
        self._owner = QueueOwner()
        self._askers: dict[int, Callable[[Iterable[Hint]], None]] = {}
        self._waking = False

    def producer(self) -> Producer:
        """An identity for a client."""
        random = self.world.random
        return Producer(random.getrandbits(63) | 1, len(self.map.shards), random.getrandbits(64))

    def send(self, arrive: Reply) -> None:
        """A message between two processes of different machines."""
        self.world.after(self.world.latency(self.costs.network_us), arrive)

    def place_of(self, key: bytes) -> int:
        """The shard of a key."""
        return shard_of(key, len(self.map.shards))

    def node_of(self, shard: int) -> TaskNode:
        """The node that owns a shard."""
        return self.nodes[self.map.owner_of(shard)]

    # --- where tasks are -------------------------------------------------------------------

    def where(
        self, consumer: int, emptied: Iterable[Hint], answer: Callable[[Iterable[Hint]], None]
    ) -> None:
        """A worker asks which nodes have tasks; it is told when some have."""

        def asked() -> None:
            hints = self._owner.ask(consumer, emptied)
            if hints:
                self._owner.leave(consumer)
                self.send(lambda: answer(hints))
            else:
                self._askers[consumer] = answer

        self.send(asked)

    def gone(self, consumer: int) -> None:
        """A worker's connections are lost."""
        self._owner.leave(consumer)
        self._askers.pop(consumer, None)

    def _turned(self, node: TaskNode) -> None:
        number, fill = node.number, node.view.fill
        ready = node.view.ready(MAX_WAITING) if node.view.full else 0
        self.send(lambda: self._hear(number, fill, ready))

    def _hear(self, node: int, fill: int, ready: int) -> None:
        if ready:
            self._wake(self._owner.filled(node, fill, ready))
        else:
            self._owner.emptied(node, fill)

    def _wake(self, consumers: Iterable[int]) -> None:
        for consumer in consumers:
            hints = self._owner.ask(consumer)
            answer = self._askers.get(consumer)
            if hints and answer is not None:
                self.gone(consumer)
                self.send(partial(answer, hints))
        if self._owner.owing and not self._waking:
            self._waking = True
            self.world.after(AGAIN_US, self._wake_more)

    def _wake_more(self) -> None:
        self._waking = False
        self._wake(self._owner.more())

    # --- tasks -----------------------------------------------------------------------------

    def push(self, shard: int, tasks: Sequence[int]) -> None:
        """A client's batch."""
        node = self.node_of(shard)
        self._ask(node, lambda: (len(tasks), lambda: node.push(shard, tasks)))

    def hold(self, shard: int, tasks: Sequence[int]) -> None:
        """A client's tasks of one shard that come after others."""
        node = self.node_of(shard)
        self._ask(node, lambda: self._held(node, shard, tasks))

    def pop(self, number: int, most: int, answer: Callable[[list[Lot], int], None]) -> None:
        """A worker asks a node for tasks; it is told which, and of the node's fill."""
        node = self.nodes[number]
        self._ask(node, lambda: self._popped(node, most, answer))

    def settle(
        self, number: int, items: Sequence[SettleItem], done: Sequence[int],
        answer: Callable[[bool], None],
    ) -> None:  # fmt: skip
        """A worker's transaction: messages are settled, and tasks are over, or neither."""
        node = self.nodes[number]
        self._ask(node, lambda: self._settled(node, items, done, answer))

    # --- what nodes do, and what follows from it -------------------------------------------

    def _ask(self, node: TaskNode, request: Request) -> None:
        self.send(lambda: node.ask(request))

    def _popped(
        self, node: TaskNode, most: int, answer: Callable[[list[Lot], int], None]
    ) -> tuple[int, Reply]:
        lots = node.take(most, self.lease_us)
        fill = node.view.fill
        tasks = sum(len(lot.tasks) for lot in lots)
        return tasks, lambda: self.send(lambda: answer(lots, fill))

    def _held(self, node: TaskNode, shard: int, tasks: Sequence[int]) -> tuple[int, Reply]:
        parents = self.ledger.parents
        assert parents is not None
        watches: defaultdict[TaskNode, Edges] = defaultdict(list)
        for task in tasks:
            key = task_key(task)
            after = [(self.place_of(each), each) for each in map(task_key, parents[task])]
            node.hold(shard, task, key, after)
            for place, parent in after:
                watches[self.node_of(place)].append((parent, Watcher(shard, QUEUE, key)))
        return len(tasks), lambda: self._watch(watches)

    def _watch(self, watches: Mapping[TaskNode, Edges]) -> None:
        """Outboxes carry the edges of held tasks to where the results will be."""
        for node, edges in watches.items():
            self._ask(node, partial(self._watched, node, edges))

    def _watched(self, node: TaskNode, edges: Edges) -> tuple[int, Reply]:
        met = [(key, watcher) for key, watcher in edges if node.watch(key, watcher)]
        return len(edges), lambda: self._meet(met)

    def _meet(self, met: Edges) -> None:
        by_node: defaultdict[TaskNode, Edges] = defaultdict(list)
        for key, watcher in met:
            by_node[self.node_of(watcher.shard)].append((key, watcher))
        for node, told in by_node.items():
            self._ask(node, partial(self._met, node, told))

    def _met(self, node: TaskNode, told: Edges) -> tuple[int, Reply]:
        for key, watcher in told:
            node.meet(watcher, key)
        return len(told), _nothing

    def _settled(
        self, node: TaskNode, items: Sequence[SettleItem], done: Sequence[int],
        answer: Callable[[bool], None],
    ) -> tuple[int, Reply]:  # fmt: skip
        accepted = node.settle(items)
        if accepted:
            self.ledger.committed(done)
        elif done:
            self.ledger.refused += 1

        def reply() -> None:
            if accepted and done:
                self._publish(done)
                if self.keeps:
                    self._write(done)
            self.send(lambda: answer(accepted))

        return sum(item.messages for item in items), reply

    def _publish(self, done: Sequence[int]) -> None:
        """Outboxes carry outcomes to the partitions of clients, who follow them."""
        by_client: defaultdict[int, list[int]] = defaultdict(list)
        for task in done:
            by_client[self.client_of(task)].append(task)
        for client, tasks in by_client.items():
            node = self.node_of(client % len(self.map.shards))
            tell = partial(self.send, partial(self.heard[client], tasks))
            self._ask(node, partial(_published, len(tasks), tell))

    def _write(self, done: Sequence[int]) -> None:
        """And to the table, for whoever waits for them there."""
        by_node: defaultdict[TaskNode, list[bytes]] = defaultdict(list)
        for key in map(task_key, done):
            by_node[self.node_of(self.place_of(key))].append(key)
        for node, keys in by_node.items():
            self._ask(node, partial(self._written, node, keys))

    def _written(self, node: TaskNode, keys: Sequence[bytes]) -> tuple[int, Reply]:
        met = [(key, watcher) for key in keys for watcher in node.write(key)]
        return len(keys), lambda: self._meet(met)


def _published(tasks: int, tell: Reply) -> tuple[int, Reply]:
    return tasks, tell


def _nothing() -> None:
    """Nobody waits for an answer."""
