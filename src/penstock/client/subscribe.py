"""Reading many partitions of a topic at once, for both shells."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from operator import length_hint

from penstock.client.messages import TopicMessage
from penstock.client.ops_group import commit, committed
from penstock.client.ops_topic import FetchRequest, PartitionReader, starting_offsets
from penstock.client.ops_topic import Start as StartAt
from penstock.client.requests import Pending
from penstock.client.state import TopicState
from penstock.client.steps import Finish, FinishAny, Start, Steps
from penstock.errors import InvalidError
from penstock.wire.batch import Batch

_MOST_FETCHES = 64  # under way at once; further partitions take turns
_PARK_S = 5.0  # how long the node holds a fetch that finds nothing
_TURN_S = 0.25  # the same, when partitions take turns
_FETCH_BYTES = 1 << 20
_ALL_BYTES = 16 << 20  # of all fetches under way


class TopicSubscription:
    """Where the reader of several partitions stands, and what it has handed out."""

    def __init__(
        self, topic: TopicState, group: str | None, start: StartAt, partitions: Sequence[int] | None
    ) -> None:
        chosen = range(topic.partitions) if partitions is None else partitions
        if not chosen or len(set(chosen)) != len(chosen):
            raise InvalidError("partitions must name at least one partition, and each once")
        self._topic = topic
        self._group = group
        self._start = start
        fetch_bytes = min(_FETCH_BYTES, _ALL_BYTES // min(len(chosen), _MOST_FETCHES))
        self._readers = {each: PartitionReader(topic, each, 0, fetch_bytes) for each in chosen}
        self._park_s = _PARK_S if len(chosen) <= _MOST_FETCHES else _TURN_S
        self._resting = deque(self._readers)
        self._under_way: dict[int, tuple[Pending, FetchRequest]] = {}
        self._arrived: deque[tuple[int, Batch]] = deque()
        self._handed: dict[int, int] = {}  # the offset after what was handed out
        self._committed: dict[int, int] = {}
        self._current: tuple[int, Batch, Iterator[TopicMessage]] | None = None

    def locate(self) -> Steps[None]:
        """Finds the offsets to start from: committed ones first, `start` for the others."""
        topic, group, chosen = self._topic, self._group, list(self._readers)
        done = {} if group is None else (yield from committed(topic, group, chosen))
        fresh = [partition for partition in chosen if partition not in done]
        starts = yield from starting_offsets(topic, self._start, fresh)
        for partition, reader in self._readers.items():
            reader.offset = done[partition] if partition in done else starts[partition]

    def fetch(self, wait_s: float) -> Steps[None]:
        """Keeps fetches under way and takes in what arrives within `wait_s`."""
        while self._resting and len(self._under_way) < _MOST_FETCHES:
            partition = self._resting.popleft()
            request = self._readers[partition].request(self._park_s)
            self._under_way[partition] = ((yield Start(request)), request)
        yield FinishAny([pending for pending, _ in self._under_way.values()], wait_s)
        for partition, (pending, request) in list(self._under_way.items()):
            if pending.done:
                del self._under_way[partition]
                answer: bytearray = yield Finish(pending)
                batches = self._readers[partition].advance(request, answer)
                self._arrived.extend((partition, batch) for batch in batches)
                self._resting.append(partition)

    def abandoned(self) -> list[Pending]:
        """Fetches under way that nobody will wait for any more."""
        left = [pending for pending, _ in self._under_way.values()]
        self._under_way.clear()
        return left

    @property
    def arrived(self) -> bool:
        """Whether there is something to hand out."""
        return bool(self._arrived)

    def take(self) -> tuple[int, Batch]:
        """The next batch and its partition, now counted as handed out."""
        self._settle_current()
        partition, batch = self._arrived.popleft()
        self._handed[partition] = int(batch.offsets[-1]) + 1
        return partition, batch

    def messages(self) -> Iterator[TopicMessage]:
        """The messages of the next batch; each counts as handed out when it is taken."""
        self._settle_current()
        partition, batch = self._arrived.popleft()
        values = batch.values
        rows = range(len(values))
        made = [TopicMessage(values[row], row, batch, partition) for row in rows]
        iterator = iter(made)
        self._current = (partition, batch, iterator)
        return iterator

    def _settle_current(self) -> None:
        if self._current is None:
            return
        partition, batch, iterator = self._current
        taken = batch.count - length_hint(iterator)
        if taken:
            self._handed[partition] = int(batch.offsets[taken - 1]) + 1
        if taken == batch.count:
            self._current = None

    def positions(self) -> dict[int, int]:
        """Of each partition with something to commit: the offset after what was handed out."""
        self._settle_current()
        done = self._committed
        return {each: offset for each, offset in self._handed.items() if done.get(each) != offset}

    def commit(self) -> Steps[None]:
        """Commits what was handed out since the last commit, the current message included."""
        if self._group is None:
            raise InvalidError("only a subscription of a group can commit")
        positions = self.positions()
        if positions:
            yield from commit(self._topic, self._group, positions)
            self._committed.update(positions)
