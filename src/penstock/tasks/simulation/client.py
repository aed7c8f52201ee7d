"""A simulated client: submits its tasks in bundles, with a bounded number in flight."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.tasks.mapping import BUNDLE, IN_FLIGHT
from penstock.tasks.simulation.fabric import TaskFabric, task_key


class TaskClient:
    """Tasks that come after others are held where their ids belong; the rest go round the shards.

    `single`: one task at a time, each when the outcome of the one before is there."""

    def __init__(
        self, fabric: TaskFabric, number: int, tasks: range, single: bool = False
    ) -> None:
        self._fabric = fabric
        self._walk = fabric.producer().walk_shards(fabric.routes)
        self._tasks = tasks
        self._next = 0
        self._open = 0
        self._bundle = 1 if single else BUNDLE
        self._most = 1 if single else IN_FLIGHT
        self._busy_until_us = 0
        fabric.heard[number] = self._heard
        fabric.world.after(0, self._submit)

    def _heard(self, tasks: Sequence[int]) -> None:
        self._fabric.ledger.heard(tasks, self._fabric.world.now_us)
        self._open -= len(tasks)
        self._submit()

    def _submit(self) -> None:
        while self._next < len(self._tasks) and self._open + self._bundle <= self._most:
            bundle = self._tasks[self._next : self._next + self._bundle]
            self._next += len(bundle)
            self._open += len(bundle)
            self._send_later(bundle)

    def _send_later(self, bundle: range) -> None:
        """Making a bundle takes a while, and bundles are made one after the other."""
        world = self._fabric.world
        begins_us = max(world.now_us, self._busy_until_us)
        self._busy_until_us = begins_us + int(len(bundle) * self._fabric.costs.client_task_us)
        for task in bundle:
            self._fabric.ledger.submitted_us[task] = begins_us
        world.after(self._busy_until_us - world.now_us, lambda: self._send(bundle))

    def _send(self, bundle: range) -> None:
        parents = self._fabric.ledger.parents
        ready = [task for task in bundle if parents is None or not parents[task]]
        if ready:
            shard = self._walk.single() if self._most == 1 else self._walk.batch()
            self._fabric.push(shard, ready)
        held: dict[int, list[int]] = {}
        for task in bundle:
            if parents is not None and parents[task]:
                held.setdefault(self._fabric.place_of(task_key(task)), []).append(task)
        for shard, tasks in held.items():
            self._fabric.hold(shard, tasks)
