"""Outcomes as workers have committed them: all that were published, and all that are kept."""

from __future__ import annotations

import threading
import time
from collections import defaultdict

from penstock import Fabric, connect
from penstock.cli.graphing.check import Effect
from penstock.cli.graphing.functions import MARK
from penstock.errors import PenstockError
from penstock.tasks.codec import Codec
from penstock.tasks.envelope import Status, TaskOutcome, read_failure, read_outcome
from penstock.tasks.names import CLIENT_BYTES, client_of, reply_partition, streams_of

PAUSE_SECONDS = 0.5  # without news, until it is looked whether that was all

_codec = Codec(lambda _: False)


def effect_of(outcome: TaskOutcome) -> Effect:
    """What an outcome comes to."""
    if outcome.status == Status.DONE:
        value, run = _codec.unpack(outcome.result)
        return Effect(outcome.status, value, run)
    if outcome.status != Status.FAILED:
        return Effect(outcome.status)
    _, _, run_text = read_failure(outcome.result).text.rpartition(MARK)
    return Effect(outcome.status, run=int(run_text) if run_text.isdigit() else 0)


class Audit:
    """Reads the replies to one client while they are published, whatever the client itself makes of
    them: outcomes by the number of their task, and when the first of each came."""

    def __init__(self, url: str, task_set: str, first: bytes) -> None:
        """`first`: the id of the task with the number 0; those of the others follow."""
        self._url, self._names = url, streams_of(task_set)
        self._client, self._first = client_of(first), _number_of(first)
        self._over = threading.Event()
        self._reading = threading.Thread(target=self._read, daemon=True)
        self.published: defaultdict[int, list[Effect]] = defaultdict(list)
        self.came_ns: dict[int, int] = {}
        self.trouble: list[str] = []
        self._reading.start()

    @property
    def ended(self) -> int:
        """Tasks that have an outcome."""
        return len(self.published)

    def _read(self) -> None:
        offset = 0
        with connect(self._url) as fabric:
            topic = fabric.topic(self._names.replies, create=False)
            while True:
                last = self._over.is_set()
                try:
                    reading = topic.read(
                        reply_partition(self._client), offset, True, PAUSE_SECONDS
                    )
                    with reading:
                        for batch in reading:
                            offset = int(batch.offsets[-1]) + 1
                            self._take(batch.keys, batch.values)
                except PenstockError as error:
                    if not error.retriable:
                        self.trouble.append(f"replies cannot be read: {error}")
                        return
                    time.sleep(PAUSE_SECONDS)
                    continue
                if last:
                    return

    def _take(self, keys: list[bytes | None], values: list[bytes]) -> None:
        now_ns = time.monotonic_ns()
        for key, value in zip(keys, values, strict=True):
            if key is not None and client_of(key) == self._client:
                number = _number_of(key) - self._first
                self.published[number].append(effect_of(read_outcome(value)))
                self.came_ns.setdefault(number, now_ns)

    def finish(self) -> None:
        """Reads to the end: nothing more may be published meanwhile."""
        self._over.set()
        self._reading.join()

    def kept(self, fabric: Fabric) -> dict[int, Effect]:
        """What is in the table."""
        table = fabric.table(self._names.results, create=False)
        return {
            _number_of(key) - self._first: effect_of(read_outcome(value))
            for key, value in table.items(self._client)
        }


def _number_of(task: bytes) -> int:
    return int.from_bytes(task[CLIENT_BYTES:], "big")
