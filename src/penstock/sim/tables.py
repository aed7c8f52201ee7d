"""Actors that work on a table, and those that do everything in transactions."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.client import ops_table, transaction
from penstock.client.messages import LeasedMessage
from penstock.client.state import QueueState, TableState
from penstock.client.transaction import TransactionState
from penstock.errors import ConflictError, ForgottenError, PenstockError, UnavailableError
from penstock.sim.actors import RETRY_US, Actor, Stream
from penstock.sim.client import Script, Sleep
from penstock.sim.consumers import Consumer
from penstock.sim.history import (
    Delivery,
    Push,
    Settlement,
    TableOp,
    Transaction,
    message,
)

KEYS = 4
MAX_PUSHES = 5


class TableClient(Actor):
    """Reads and writes a few entries that others write too."""

    def run(self) -> Script[None]:
        """Until the work is over."""
        table = yield from self.open_table()
        seen: dict[bytes, int] = {}
        while self.busy:
            yield from self.rest(120_000)
            key = b"key-%d" % self.world.between(0, KEYS - 1)
            kind = self.world.random.choice(["get", "get", "put", "cas", "delete", "append"])
            value = f"{self.client.name}/{len(self.history.table)};".encode()
            op = TableOp(
                key, kind, self.client.name, self.world.now_us, value, table=self.stream.name
            )
            if kind == "cas":
                op.if_version = seen.get(key, 0)
            self.history.table.append(op)
            try:
                outcome = yield from self._perform(table, op)
                if kind == "get":
                    seen[key] = outcome[1] if isinstance(outcome, tuple) else 0
                op.outcome, op.done_us = outcome, self.world.now_us
            except ForgottenError:  # a conflict of its own kind, which nothing here explains
                raise
            except ConflictError:
                op.outcome, op.done_us = "conflict", self.world.now_us
            except UnavailableError:
                yield Sleep(RETRY_US)

    def _perform(self, table: TableState, op: TableOp) -> Script[object]:
        if op.kind == "get":
            found = yield from ops_table.entry(table, op.key)
            return None if found is None else (found.value, found.version)
        if op.kind == "delete":
            return (yield from ops_table.delete(table, op.key))
        if op.kind == "append":
            return (yield from ops_table.append(table, op.key, op.value))
        return (yield from ops_table.put(table, op.key, op.value, if_version=op.if_version))


@dataclass
class Transactor(Consumer):
    """Pops, and acks, pushes and writes in one transaction."""

    target: Stream
    ledger: Stream

    def run(self) -> Script[None]:
        """Until the work is over."""
        queue = yield from self.open_queue()
        target = yield from Actor(self.stage, self.client, self.target).open_queue()
        ledger = yield from Actor(self.stage, self.client, self.ledger).open_table()
        while self.busy:
            try:
                taken = yield from self.pop(queue, 1, 1.0)
            except PenstockError:
                yield Sleep(RETRY_US)
                continue
            for each, delivery in taken:
                if self.world.chance(0.1):
                    yield Sleep(self.world.between(0, self.stream.lease_us * 3 // 2))
                name = f"txn:{self.client.name}:{len(self.history.transactions)}"
                yield from self._transact(name, each, delivery, target, ledger)

    def _transact(
        self, name: str, each: LeasedMessage, delivery: Delivery, target: QueueState,
        ledger: TableState,
    ) -> Script[None]:  # fmt: skip
        now_us = self.world.now_us
        pushes = [self._push(name, index) for index in range(self.world.between(1, MAX_PUSHES))]
        values = [push.value for push in pushes]
        noted = Transaction(name, values, name.encode(), delivery, now_us)
        settlement = Settlement("ack", now_us, transaction=name)
        delivery.settlements.append(settlement)
        self.history.transactions.append(noted)
        assert self.client.fabric is not None
        state = TransactionState(self.client.fabric)
        state.ack(each)
        for value in values:
            state.push(target, message(value.decode(), 40))
        state.put(ledger, noted.written, delivery.value)
        try:
            yield from transaction.commit(state)
        except UnavailableError:
            return
        except PenstockError:
            noted.committed = settlement.accepted = False
        else:
            noted.committed = settlement.accepted = True
        settlement.done_us = self.world.now_us
        for push in pushes:
            push.stored, push.done_us = noted.committed, self.world.now_us

    def _push(self, name: str, index: int) -> Push:
        value = f"{name}:{index}".encode()
        push = Push(self.target.name, value, None, name, index, self.world.now_us, transaction=name)
        return self.history.push(push)
