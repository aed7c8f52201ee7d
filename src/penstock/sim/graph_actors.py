"""Actors that build graphs of held messages, and that work them off."""

from __future__ import annotations

from penstock.client import ops_hold, ops_table, transaction
from penstock.client.messages import LeasedMessage
from penstock.client.state import FabricState, QueueState, TableState
from penstock.client.transaction import TransactionState
from penstock.errors import PenstockError, UnavailableError
from penstock.sim.actors import RETRY_US, Actor, Stage
from penstock.sim.client import Client, Script, Sleep
from penstock.sim.consumers import Consumer
from penstock.sim.graphs import ENTRIES, Builder, finishing, settling, tasks_of, wrote
from penstock.sim.history import Delivery, FinalTable, GraphTask

TRIES = 100


class GraphBuilder(Actor):
    """Holds messages that wait for others, and sends again what it does not know the outcome of."""

    def run(self) -> Script[None]:
        """Until the work is over."""
        queue = yield from self.open_queue()
        table = yield from Actor(self.stage, self.client, ENTRIES).open_table()
        builder = Builder(self.history, self.world, self.stream.name, self.client.name)
        while self.busy:
            yield from self.rest(250_000)
            tasks = builder.tasks(self.world.random.choice([1, 1, 2, 8]))
            while self.busy and not tasks[0].stored:
                yield from self._hold(queue, table, builder, tasks)

    def _hold(
        self, queue: QueueState, table: TableState, builder: Builder, tasks: list[GraphTask]
    ) -> Script[None]:
        fabric = queue._fabric
        holds = [builder.hold(task, table, TransactionState(fabric)) for task in tasks]
        try:
            yield from ops_hold.hold_many(queue, holds)
        except UnavailableError:
            yield Sleep(RETRY_US)
            return
        for task in tasks:
            task.stored = True


class GraphWorker(Consumer):
    """Finishes tasks: acks one and writes its entry, in one transaction."""

    def run(self) -> Script[None]:
        """Until the work is over."""
        queue = yield from self.open_queue()
        table = yield from Actor(self.stage, self.client, ENTRIES).open_table()
        while self.busy:
            try:
                taken = yield from self.pop(queue, self.world.between(1, 6), 1.0)
            except PenstockError:
                yield Sleep(RETRY_US)
                continue
            for each, delivery in taken:
                if self.world.chance(0.1):
                    yield Sleep(self.world.between(0, self.stream.lease_us * 3 // 2))
                yield from self._finish(queue._fabric, table, each, delivery)

    def _finish(
        self, fabric: FabricState, table: TableState, each: LeasedMessage, delivery: Delivery
    ) -> Script[None]:
        task, mark = finishing(self.history, self.world, delivery)
        noted = settling(delivery, self.world)
        state = TransactionState(fabric)
        state.ack(each)
        state.put(table, task.name, b"done", mark=mark)
        try:
            yield from transaction.commit(state)
        except UnavailableError:
            return
        except PenstockError:
            noted.accepted = False
        else:
            noted.accepted = True
            task.done_us = task.done_us or self.world.now_us
        noted.done_us = self.world.now_us


def end_graph(stage: Stage, client: Client, queue: QueueState) -> Script[None]:
    """In the last act: notes what tasks wait for. Then all entries are written that one may wait
    for, parents first; what is ready after that is for whoever pops, and what fell back is in the
    final table."""
    table = yield from Actor(stage, client, ENTRIES).open_table()
    for task in tasks_of(stage.history, queue.name):
        task.left_us = stage.world.now_us
        info = yield from ops_hold.held(queue, task.name)
        task.left = [] if info is None else [key for _, key in info.edges]
    for task in tasks_of(stage.history, queue.name):
        wrote(task, stage.world, "ok")
        for _ in range(TRIES):
            try:
                yield from ops_table.put(table, task.name, b"written at the end")
                break
            except PenstockError:
                yield Sleep(RETRY_US)
    yield Sleep(5_000_000)
    sent_us = stage.world.now_us
    entries = yield from ops_table.scan_all(table, b"")
    found = {each.key: (each.value, each.version) for each in entries}
    stage.history.final_tables[table.name] = FinalTable(sent_us, stage.world.now_us, found)
