"""The smallest worker that keeps the rules: pop, run, one transaction. For tests of clients."""

from __future__ import annotations

import asyncio
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import penstock
from penstock.tasks.codec import Codec
from penstock.tasks.declare import Trust, registry
from penstock.tasks.envelope import (
    Failure,
    Status,
    TaskCall,
    TaskOutcome,
    encode,
    mark_of,
    read_call,
    read_outcome,
)
from penstock.tasks.errors import UnknownFunctionError
from penstock.tasks.importing import loaded
from penstock.tasks.names import NOBODY, cancel_key, client_of, streams_of
from penstock.tasks.waiting import error_of

POP_S = 0.05


class TinyWorker:
    """Works in a thread until it is left. `before` is called with every call, before it is run."""

    def __init__(
        self,
        fabric: penstock.Fabric,
        task_set: str = "default",
        pickle_key: bytes | None = None,
        before: Callable[[TaskCall], None] = lambda call: None,
        most: int = 1000,
        cancels: bool = True,
    ) -> None:
        names = streams_of(task_set)
        self._fabric = fabric
        self.queue = fabric.queue(names.queue, create=False)
        self._replies = fabric.topic(names.replies, create=False)
        self._results = fabric.table(names.results, create=False)
        self._control = fabric.table(names.control, create=False)
        self._codec = Codec(Trust(), pickle_key)
        self._before = before
        self._most = most
        self._cancels = cancels
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self.ran: list[str] = []

    def __enter__(self) -> TinyWorker:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._stop.is_set():
            delivery = self.queue.pop_batch(self._most, timeout=POP_S)
            if delivery is not None:
                self.complete(delivery)

    def complete(self, delivery: penstock.Delivery) -> None:
        """Runs what was delivered, and settles it with its outcomes in one transaction."""
        rows: dict[tuple[int, bytes], list[tuple[bytes, bytes]]] = defaultdict(list)
        with self._fabric.transaction() as transaction:
            transaction.ack(delivery)
            for value in delivery.values:
                call = read_call(value)
                ended = self.outcome_of(call)
                outcome = encode(ended)
                if call.reply != NOBODY:
                    rows[call.reply, client_of(call.task)].append((call.task, outcome))
                if call.keep_ms:
                    ttl, mark = call.keep_ms / 1000, mark_of(ended.status)
                    transaction.put(self._results, call.task, outcome, ttl=ttl, mark=mark)
            for (partition, _), outcomes in rows.items():
                keys, values = zip(*outcomes, strict=True)
                transaction.publish_many(
                    self._replies, values, keys=keys, partition=partition
                )

    def outcome_of(self, call: TaskCall) -> TaskOutcome:
        """Runs one call."""
        began = time.time_ns() // 1000
        self.ran.append(call.function)
        self._before(call)
        status, result = self._run(call)
        ended = time.time_ns() // 1000
        return TaskOutcome(status, result, 1, "tiny", began, began, ended, call.function)

    def _run(self, call: TaskCall) -> tuple[int, bytes]:
        if self._cancels and self._control.get(cancel_key(call.task)) is not None:
            return Status.CANCELLED, b""
        try:
            parents = [self._result_of(task) for task in call.after]
            args, kwargs = self._codec.unpack_call(call.arguments, parents)
            return Status.DONE, self._codec.pack(_called(call.function, args, kwargs))
        except Exception as error:
            return Status.FAILED, encode(Failure.of(error, traceback.format_exc()))

    def _result_of(self, task: bytes) -> Any:
        stored = self._results.get(task)
        assert stored is not None, "it ran before its parent had an outcome"
        outcome = read_outcome(stored)
        failed = error_of(task, outcome)
        return str(failed) if failed else self._codec.unpack(outcome.result)


def _called(name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    function = registry.find(name) or loaded(name)
    if not callable(function):
        raise UnknownFunctionError(f"no task {name!r} here")
    result = function(*args, **kwargs)
    return asyncio.run(result) if asyncio.iscoroutine(result) else result
