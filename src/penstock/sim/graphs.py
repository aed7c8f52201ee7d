"""What builders of graphs and their workers note, in both simulators.

A task is a held message; its value, its id and the entry that it writes when it is done have one
name. If it falls back, it writes that entry as well, and another one (`fallen`) that nobody else
writes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.client.holding import Hold
from penstock.client.state import TableState
from penstock.client.transaction import TransactionState
from penstock.sim.actors import Stream
from penstock.sim.history import Delivery, GraphTask, History, Push, Settlement
from penstock.sim.world import World
from penstock.wire.holds import Mark

ENTRIES = Stream("table", "graph-entries", {})
POLICIES = ["fail", "fail", "skip", "run"]
PARENTS = 3  # of one task, at most
RECENT = 30  # tasks that others wait for
TTL_S = 4.0


def fallen(name: bytes) -> bytes:
    """The entry that says that a task fell back."""
    return b"fallen:" + name


@dataclass
class Builder:
    """One builder's side of the history."""

    history: History
    world: World
    queue: str
    who: str
    made: list[GraphTask] = field(default_factory=list)

    def tasks(self, count: int) -> list[GraphTask]:
        """New ones, each of which waits for others, of whoever."""
        return [self._task() for _ in range(count)]

    def _task(self) -> GraphTask:
        chance = self.world.random
        name = f"{self.queue}:{self.who}:{len(self.made)}".encode()
        known = [each.name for each in tasks_of(self.history, self.queue)][-RECENT:]
        after = chance.sample(known, min(len(known), chance.randint(0, PARENTS)))
        ttl_us = int(TTL_S * 1e6) if self.world.chance(0.05) else 0
        now_us = self.world.now_us
        task = GraphTask(self.queue, name, after, chance.choice(POLICIES), now_us, ttl_us)
        self.history.graph[name] = task
        self.made.append(task)
        # That it is stored is not said: it may fall back, and then it never comes.
        self.history.push(Push(self.queue, name, None, name.decode(), 0, now_us, ttl_us=ttl_us))
        return task

    def hold(self, task: GraphTask, table: TableState, instead: TransactionState) -> Hold:
        """The task as the client takes it; `instead` is a new transaction."""
        mark = "skipped" if task.policy == "skip" else "failed"
        instead.put(table, task.name, b"fell back", mark=mark)
        instead.put(table, fallen(task.name), b"")
        after = [(table, name) for name in task.after]
        ttl = task.ttl_us / 1e6 if task.ttl_us else None
        return Hold(task.name, task.name, after, task.policy, instead, ttl=ttl)


def tasks_of(history: History, queue: str) -> list[GraphTask]:
    """All tasks of a queue, parents first."""
    return [each for each in history.graph.values() if each.queue == queue]


def finishing(history: History, world: World, delivery: Delivery) -> tuple[GraphTask, str]:
    """A worker is about to write the entry of a task: notes that, and which mark it has."""
    task = history.graph[delivery.value]
    mark = world.random.choice(["ok"] * 6 + ["failed", "skipped"])
    wrote(task, world, mark)
    return task, mark


def wrote(task: GraphTask, world: World, mark: str) -> None:
    """Somebody is about to write the entry of a task."""
    task.writes.append((world.now_us, Mark[mark.upper()]))


def settling(delivery: Delivery, world: World) -> Settlement:
    """The ack of a delivery, in the transaction that writes the entry."""
    noted = Settlement("ack", world.now_us, transaction="graph")
    delivery.settlements.append(noted)
    return noted
