"""Reading many partitions of a topic at once, for both shells."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import length_hint

from penstock.client.descent import Descent
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
    """Where the reader of several partitions stands, and what it has handed out.

    One of all partitions takes those in that the topic gets when it grows. A child is read once all
    of its parent up to the split has been handed out, or was committed by the group.
    """

    def __init__(
        self,
        topic: TopicState,
        group: str | None,
        start: StartAt,
        partitions: Sequence[int] | None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        chosen = range(topic.partitions) if partitions is None else partitions
        if not chosen or len(set(chosen)) != len(chosen):
            raise InvalidError("partitions must name at least one partition, and each once")
        self._topic = topic
        self._group = group
        self._start = start
        self._readers: dict[int, PartitionReader] = {}
        self._resting: deque[int] = deque()
        self._park_s = _PARK_S
        self._under_way: dict[int, tuple[Pending, FetchRequest]] = {}
        self._arrived: deque[tuple[int, Batch]] = deque()
        self._begun: dict[int, int] = {}  # the offset of the first message that is read
        self._handed: dict[int, int] = {}  # the offset after what was handed out
        self._committed: dict[int, int] = {}
        self._current: tuple[int, Batch, Iterator[TopicMessage]] | None = None
        self._descent = Descent(topic, group, partitions is not None, clock)
        self._read_also(chosen)

    def _read_also(self, partitions: Sequence[int]) -> None:
        count = len(self._readers) + len(partitions)
        fetch_bytes = min(_FETCH_BYTES, _ALL_BYTES // min(count, _MOST_FETCHES))
        for each in partitions:
            self._readers[each] = PartitionReader(self._topic, each, 0, fetch_bytes)
        self._park_s = _PARK_S if count <= _MOST_FETCHES else _TURN_S

    def locate(self) -> Steps[None]:
        """Finds the offsets to start from: committed ones first, `start` for the others."""
        yield from self._descent.look()
        self._read_also(self._descent.unread(self._readers))
        topic, group, chosen = self._topic, self._group, list(self._readers)
        done = {} if group is None else (yield from committed(topic, group, chosen))
        fresh = [partition for partition in chosen if partition not in done]
        starts = yield from starting_offsets(topic, self._start, fresh)
        yield from self._begin({each: done.get(each, starts.get(each, 0)) for each in chosen})

    def _begin(self, offsets: Mapping[int, int]) -> Steps[None]:
        """Reads partitions from these offsets on, as soon as they may be read."""
        for partition, offset in offsets.items():
            self._readers[partition].offset = self._begun[partition] = offset
        self._descent.hold(offsets)
        yield from self._release()

    def _release(self) -> Steps[None]:
        """Begins to fetch from those that waited for their parents, and need not any more."""
        self._settle_current()
        self._resting += yield from self._descent.released({**self._begun, **self._handed})

    def _grow(self) -> Steps[None]:
        """Takes in partitions that are new since the last look, from their very beginning, and
        those whose parents have been read meanwhile."""
        if self._descent.due():
            yield from self._descent.look()
        if added := self._descent.unread(self._readers):
            self._read_also(added)
            done: dict[int, int] = {}
            if self._group is not None:
                done = yield from committed(self._topic, self._group, added)
            yield from self._begin({each: done.get(each, 0) for each in added})
        elif self._descent.holds:
            yield from self._release()

    def fetch(self, wait_s: float) -> Steps[None]:
        """Keeps fetches under way and takes in what arrives within `wait_s`."""
        yield from self._grow()
        while self._resting and len(self._under_way) < _MOST_FETCHES:
            partition = self._resting.popleft()
            request = self._readers[partition].request(self._park_s)
            self._under_way[partition] = ((yield Start(request)), request)
        pendings = [pending for pending, _ in self._under_way.values()]
        yield FinishAny(pendings, min(wait_s, self._descent.patience_s))
        for partition, (pending, request) in list(self._under_way.items()):
            if pending.done:
                del self._under_way[partition]
                answer: bytearray = yield Finish(pending)
                batches = self._readers[partition].advance(request, answer)
                self._arrived.extend((partition, batch) for batch in batches)
                if not batches:
                    self._descent.hint()
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
        """Commits what was handed out since the last commit, the current message included. Parents
        before their children: whoever goes on from there needs them in this order."""
        if self._group is None:
            raise InvalidError("only a subscription of a group can commit")
        for positions in self._descent.by_generation(self.positions()):
            yield from commit(self._topic, self._group, positions)
            self._committed.update(positions)
