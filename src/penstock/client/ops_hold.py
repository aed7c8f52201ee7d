"""Holding messages until entries of tables exist, written once for both shells (see `steps`)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from penstock.client.holding import Edge, Hold, part_of
from penstock.client.inputs import id_bytes
from penstock.client.producer import shard_of
from penstock.client.requests import Pending
from penstock.client.rows import Headers
from penstock.client.sequenced import answer_of, sent_again
from penstock.client.state import QueueState
from penstock.client.steps import Finish, Start, Steps, ask, decoder
from penstock.client.transaction import TransactionState, TransactRequest
from penstock.errors import ForgottenError, InvalidError, PenstockError
from penstock.wire.messages import Held, HeldInfo, Transact, TxnHold

_GROUP = 500  # messages of one transaction
_GROUP_EDGES = 20_000  # and what they wait for
_GROUP_BYTES = 2 << 20
_KEPT = 10_000  # messages that wait for others of their shard to go with
_KEPT_BYTES = 16 << 20
_UNDER_WAY = 8  # transactions

_read_held = decoder(HeldInfo | None)


def hold(
    queue: QueueState,
    value: bytes,
    *,
    id: bytes | str,
    after: Sequence[Edge] = (),
    on_failure: str = "fail",
    fallback: TransactionState | None = None,
    key: bytes | str | None = None,
    headers: Headers | None = None,
    ttl: float | None = None,
    priority: int = 0,
) -> Steps[None]:
    """Stores a message that is held until all entries of `after`, pairs of a table and a key, have
    existed; durable when it returns. It does no harm to do so again: an id is stored once.

    `on_failure`: with `fail` or `skip`, an entry whose mark is not `ok` finishes the message, and
    `fallback` is carried out instead: all that a transaction, which is not committed, has put,
    pushed and published. With `run` the entry counts as any other. `ttl`: after so many seconds it
    falls back, too.
    """
    message = Hold(value, id, after, on_failure, fallback, key, headers, ttl, priority)
    part = part_of(queue, message)
    home = shard_of(part.id, queue._producer.shards)
    request = TransactRequest(queue._fabric, Transact(0, 0, home, holds=[part]))
    yield from answer_of(request)


def hold_many(
    queue: QueueState,
    holds: Iterable[Hold],
    *,
    progress: Callable[[int], None] | None = None,
) -> Steps[int]:
    """Stores many messages, each as `hold` does; how many. They are durable when it returns.

    `holds` is taken lazily, and what is kept of it is bounded: messages of one shard travel
    together, a few transactions at a time. `progress` is called with the number stored so far. If
    it fails, a note on the error says how many were stored before; others may be stored as well. To
    do it all again does no harm.
    """
    groups = _Groups(queue, progress)
    for each in holds:
        yield from groups.add(part_of(queue, each))
    return (yield from groups.drain())


def held(queue: QueueState, id: bytes | str) -> Steps[HeldInfo | None]:
    """What a held message still waits for: how many entries, and the first of them; None if no
    message of that id is held."""
    packed = id_bytes(id)
    shard = shard_of(packed, queue._producer.shards)
    return ask(Held(queue.info.id, packed), _read_held, shard)


class _Group:
    """Messages that are about to go to one shard."""

    __slots__ = ("bytes", "edges", "parts")

    def __init__(self) -> None:
        self.parts: list[TxnHold] = []
        self.edges = 0
        self.bytes = 0

    def add(self, part: TxnHold, size: int) -> bool:
        """One more; whether it is full."""
        self.parts.append(part)
        self.edges += len(part.after)
        self.bytes += size
        full = len(self.parts) >= _GROUP or self.edges >= _GROUP_EDGES
        return full or self.bytes >= _GROUP_BYTES


class _Groups:
    """Groups by shard, and transactions under way; both bounded."""

    def __init__(self, queue: QueueState, progress: Callable[[int], None] | None) -> None:
        self._queue = queue
        self._progress = progress
        self._groups: dict[int, _Group] = {}
        self._kept = 0
        self._kept_bytes = 0
        self._under_way: deque[tuple[Pending, TransactRequest, int]] = deque()
        self._stored = 0

    def add(self, part: TxnHold) -> Steps[None]:
        """Keeps a message until its group is full, or all of them have much; then sends."""
        shard = shard_of(part.id, self._queue._producer.shards)
        # A node that stands alone takes messages of all its shards in one transaction.
        chosen = shard if self._queue._routes is not None else 0
        size = _bytes_of(part)
        group = self._groups.setdefault(chosen, _Group())
        self._kept += 1
        self._kept_bytes += size
        if group.add(part, size):
            yield from self._send(chosen)
        elif self._kept >= _KEPT or self._kept_bytes >= _KEPT_BYTES:
            yield from self._send_all()

    def drain(self) -> Steps[int]:
        """Sends what is left and waits for all answers; how many messages are stored."""
        yield from self._send_all()
        while self._under_way:
            yield from self._finish_oldest()
        return self._stored

    def _send_all(self) -> Steps[None]:
        for chosen in list(self._groups):
            yield from self._send(chosen)

    def _send(self, chosen: int) -> Steps[None]:
        group = self._groups.pop(chosen)
        self._kept -= len(group.parts)
        self._kept_bytes -= group.bytes
        while len(self._under_way) >= _UNDER_WAY:
            yield from self._finish_oldest()
        home = shard_of(group.parts[0].id, self._queue._producer.shards)
        request = TransactRequest(self._queue._fabric, Transact(0, 0, home, holds=group.parts))
        pending: Pending = yield Start(request)
        self._under_way.append((pending, request, len(group.parts)))

    def _finish_oldest(self) -> Steps[None]:
        pending, request, count = self._under_way.popleft()
        try:
            try:
                yield Finish(pending)
            except (InvalidError, ForgottenError) as error:
                yield from sent_again(request, error)
        except PenstockError as error:
            error.add_note(f"{self._stored:,} messages were stored before this error")
            raise
        self._stored += count
        if self._progress is not None:
            self._progress(self._stored)


def _bytes_of(part: TxnHold) -> int:
    size = len(part.batch) + sum(len(key) for _, key in part.after)
    size += sum(len(write.value or b"") + len(write.key) for write in part.writes)
    return size + sum(len(push.batch) for push in part.pushes)
