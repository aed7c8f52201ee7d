"""Operations of topics, written once for both shells (see `steps`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from penstock.client.inputs import milliseconds, moment_us
from penstock.client.requests import ANY, Request, Resend
from penstock.client.spread import ask_owners, for_each, join_figures
from penstock.client.state import TopicState
from penstock.client.steps import Steps, ask, decoder
from penstock.errors import InvalidError, ProtocolError
from penstock.wire.batch import Batch
from penstock.wire.buffers import Buffer
from penstock.wire.frames import FETCH, FETCH_HEAD, FRAME_BYTES, FetchHead, Verb
from penstock.wire.growth import Layout, PartitionFamily, Split
from penstock.wire.limits import MAX_BATCH_BYTES
from penstock.wire.messages import (
    Delete,
    Family,
    Grow,
    Kinship,
    OffsetAt,
    Offsets,
    StreamInfo,
    StreamStats,
)
from penstock.wire.messages import Request as Call
from penstock.wire.numeric import np

_HEAD_END = FRAME_BYTES + FETCH_HEAD.size
_LENGTH_AT = slice(4, 8)  # of a batch

_read_bool = decoder(bool)
_read_ints = decoder(list[int])
_read_info = decoder(StreamInfo)
_read_kin = decoder(list[Kinship])
_read_bounds = decoder(list[tuple[int, int]])
_read_figures = decoder(dict[str, Any])

FOLLOW_S = 5.0  # how long the node holds a fetch at the end of a partition

Start = int | str | datetime | Mapping[int, int]
T = TypeVar("T")


def offsets(topic: TopicState) -> Steps[list[tuple[int, int]]]:
    """First offset kept and next offset to be written, for each partition."""
    return list((yield from _bounds(topic, range(topic.partitions))).values())


def _bounds(topic: TopicState, partitions: Sequence[int]) -> Steps[dict[int, tuple[int, int]]]:
    stream = topic.info.id
    return of_each(topic, partitions, lambda chosen: Offsets(stream, chosen), _read_bounds)


def offset_at(topic: TopicState, time: datetime | float) -> Steps[list[int]]:
    """For each partition, the first offset that arrived at or after a time."""
    return list((yield from _arrivals(topic, range(topic.partitions), time)).values())


def _arrivals(
    topic: TopicState, partitions: Sequence[int], time: datetime | float
) -> Steps[dict[int, int]]:
    stream, time_us = topic.info.id, moment_us(time)
    return of_each(topic, partitions, lambda chosen: OffsetAt(stream, time_us, chosen), _read_ints)


def of_each(
    topic: TopicState,
    partitions: Sequence[int],
    call: Callable[[list[int] | None], Call],
    read: Callable[[Buffer], list[T]],
    within_s: float | None = None,
    named: bool = False,
) -> Steps[dict[int, T]]:
    """An answer for each of these partitions, in their order. `call` is about all that the topic
    has (with `named`, about these) or, in a cluster, about those of one node: others need not be
    up. `within_s`: as in `for_each`."""
    if topic._routes is None:
        every = yield from ask(call(list(partitions) if named else None), read)
        if named:
            return dict(zip(partitions, every, strict=True))
        return {partition: every[partition] for partition in partitions}
    places = [(topic.info.placement[partition], partition) for partition in partitions]
    found = yield from for_each(topic._routes, places, call, read, within_s)
    return dict(zip(partitions, found, strict=True))


def stats(topic: TopicState) -> Steps[dict[str, Any]]:
    """Figures of the topic; in a cluster, of all nodes joined."""
    stream, placement = topic.info.id, topic.info.placement
    if topic._routes is None:
        figures: dict[str, Any] = yield from ask(StreamStats(stream), _read_figures)
        return figures
    hosted: dict[int, list[int]] = {}
    for partition, shard in enumerate(placement):
        hosted.setdefault(shard, []).append(partition)

    def part(shards: list[int]) -> StreamStats:
        return StreamStats(stream, [each for shard in shards for each in hosted[shard]])

    told = yield from ask_owners(topic._routes, hosted, part, _read_figures)
    joined = join_figures(each.value for each in told)
    by_partition: dict[int, Any] = {}
    for each in told:
        asked = part(each.shards).partitions or ()
        by_partition.update(zip(asked, each.value["partitions"], strict=True))
    joined["partitions"] = [by_partition[number] for number in range(len(placement))]
    joined["groups"] = sorted({group for each in told for group in each.value["groups"]})
    return joined


def grow(topic: TopicState, partitions: int) -> Steps[None]:
    """Gives the topic more partitions, in all as many as given. Durable when it returns.

    The new ones get part of the keys of those that are there; these keep what they have stored.
    Messages of a key keep their order: see `family`. Producers and consumers that are at work need
    not be told. InvalidError if it has more already.
    """
    if isinstance(partitions, bool) or not isinstance(partitions, int):
        raise InvalidError(f"partitions must be a number, not {partitions!r}")
    topic._grown_to((yield from ask(Grow(topic.info.id, partitions), _read_info)))


def refresh(topic: TopicState) -> Steps[bool]:
    """Asks how the topic is now; whether it has grown since this client last heard of it."""
    return topic._look()


def family(topic: TopicState) -> Steps[list[PartitionFamily]]:
    """Each partition with its parent, the hashes of its keys, and where children took over.

    The messages of a key are in the order of their offsets over all partitions that had it: those
    of a child begin at the offset at which its parent was split.
    """
    yield from topic._look()
    layout, numbers = topic._layout, range(topic.partitions)
    if not layout.generation:
        kin = dict.fromkeys(numbers, Kinship(0, []))
    else:
        stream = topic.info.id
        kin = yield from of_each(topic, numbers, lambda some: Family(stream, some), _read_kin)
    return [_family_of(layout, number, kin[number]) for number in numbers]


def splits_of(topic: TopicState, partition: int) -> Steps[list[tuple[int, int]]]:
    """Where children took over from a partition, as its log says: generations and offsets. Who asks
    after it was answered to a read hears of all splits before what it read."""
    stream = topic.info.id
    kin = yield from of_each(
        topic, [partition], lambda some: Family(stream, some), _read_kin, named=True
    )
    return list(kin[partition].splits)


def split_offsets(topic: TopicState, children: Sequence[int]) -> Steps[dict[int, int]]:
    """For each of these partitions whose parent is sealed for it: the offset at which that was."""
    layout, stream = topic._layout, topic.info.id
    parents = sorted({parent for each in children if (parent := layout.parents[each]) is not None})
    kin: dict[int, Kinship] = yield from of_each(
        topic, parents, lambda some: Family(stream, some), _read_kin, named=True
    )
    found: dict[int, int] = {}
    for child in children:
        parent = layout.parents[child]
        splits = dict(kin[parent].splits) if parent is not None else {}
        if layout.born[child] in splits:
            found[child] = splits[layout.born[child]]
    return found


def _family_of(layout: Layout, number: int, kin: Kinship) -> PartitionFamily:
    births = {birth.generation: birth for birth in layout.births[number]}
    splits = [
        Split(generation, offset, births[generation].children, births[generation].bounds)
        for generation, offset in kin.splits
        if generation in births
    ]
    low, high = layout.ranges[number]
    born, parent = layout.born[number], layout.parents[number]
    return PartitionFamily(number, born, parent, low, high, kin.origin, splits)


def delete(topic: TopicState) -> Steps[bool]:
    """Deletes the topic and all its messages; whether it was there."""
    return ask(Delete("topic", topic.name, topic.info.namespace), _read_bool)


def starting_offsets(
    topic: TopicState, start: Start, partitions: Sequence[int]
) -> Steps[dict[int, int]]:
    """An offset for each of these partitions: a number, "start", "end", a time, or a number for
    each by itself."""
    if isinstance(start, Mapping):
        found: dict[int, int] = {}
        for each in partitions:
            if each not in start:
                raise InvalidError(f"no offset to start from is given for partition {each}")
            found |= yield from starting_offsets(topic, start[each], [each])
        return found
    if isinstance(start, bool) or not isinstance(start, int | str | datetime):
        raise InvalidError(f"offset {start!r}: use a number, 'start', 'end' or a datetime")
    if isinstance(start, int):
        if start < 0:
            raise InvalidError(f"offset {start}: use 0 or more, 'start' or 'end'")
        return dict.fromkeys(partitions, start)
    if isinstance(start, datetime):
        return (yield from _arrivals(topic, partitions, start))
    if start not in ("start", "end"):
        raise InvalidError(f"offset {start!r}: use a number, 'start', 'end' or a datetime")
    bounds = yield from _bounds(topic, partitions)
    return {each: bound[0] if start == "start" else bound[1] for each, bound in bounds.items()}


class FetchRequest(Request):
    """Reads a partition from an offset."""

    __slots__ = ("_offset",)

    def __init__(
        self,
        stream: int,
        partition: int,
        offset: int,
        max_bytes: int,
        wait_s: float,
        shard: int = ANY,
    ) -> None:
        if not 0 < max_bytes <= MAX_BATCH_BYTES:
            raise InvalidError(f"max_bytes must be 1 to {MAX_BATCH_BYTES:,}, not {max_bytes!r}")
        body = FETCH.pack(stream, partition, offset, max_bytes, milliseconds("wait", wait_s))
        super().__init__(Verb.FETCH, [body], Resend.ANEW, wait_s, shard)
        self._offset = offset

    def batches(self, answer: bytearray) -> tuple[FetchHead, list[Batch]]:
        """Bounds of the partition and the batches, without rows before the offset asked for.

        They are views on the frame. ProtocolError if the frame is not what it says.
        """
        head = fetch_head(answer)
        rest = memoryview(answer)[_HEAD_END:]
        found: list[Batch] = []
        for _ in range(head.batches):
            length = int.from_bytes(rest[_LENGTH_AT], "little")
            batch = Batch.parse(rest[:length])
            rest = rest[length:]
            if (kept := from_offset(batch, self._offset)) is not None:
                found.append(kept)
        if rest:
            raise ProtocolError("the answer to a fetch is longer than its batches")
        return head, found


def fetch_head(answer: bytearray) -> FetchHead:
    """Bounds of the partition that was read, and how many batches follow."""
    if len(answer) < _HEAD_END:
        raise ProtocolError("the answer to a fetch is too short")
    return FetchHead._make(FETCH_HEAD.unpack_from(answer, FRAME_BYTES))


def from_offset(batch: Batch, offset: int) -> Batch | None:
    """The batch without rows before an offset; None if none is left."""
    if batch.header.base >= offset:
        return batch
    rows = np.flatnonzero(batch.offsets >= offset)
    if len(rows) == batch.count:
        return batch
    return Batch.parse(batch.take(rows), verify=False) if len(rows) else None


class PartitionReader:
    """Where a reader of one partition stands."""

    def __init__(
        self, topic: TopicState, partition: int, start: Start, max_bytes: int = 1 << 20
    ) -> None:
        self._topic = topic
        self._start = start
        self._max_bytes = max_bytes
        self.partition = topic._check_partition(partition)
        self.offset: int | None = None  # the next to read, once known
        self.at_end = False
        self.end: int | None = None  # of the partition, when it was last read

    def locate(self) -> Steps[int]:
        """The offset to go on from; asks the node if it is not known yet."""
        if self.offset is None:
            chosen = [self.partition]
            found = yield from starting_offsets(self._topic, self._start, chosen)
            self.offset = found[self.partition]
        return self.offset

    def request(self, wait_s: float) -> FetchRequest:
        """Asks for what follows; only when located."""
        assert self.offset is not None
        info, partition = self._topic.info, self.partition
        shard = info.placement[partition]
        return FetchRequest(info.id, partition, self.offset, self._max_bytes, wait_s, shard)

    def advance(self, request: FetchRequest, answer: bytearray) -> list[Batch]:
        """Takes an answer in; the batches that came."""
        head, batches = request.batches(answer)
        assert self.offset is not None
        if batches:
            self.offset = batches[-1].end
        elif self.offset < head.start:
            self.offset = head.start  # retention has overtaken us
        self.end = head.end
        self.at_end = self.offset >= head.end
        return batches

    def read(self, wait_s: float) -> Steps[list[Batch]]:
        """The next batches; none if there are none within `wait_s`."""
        yield from self.locate()
        request = self.request(wait_s)
        answer: bytearray = yield request
        return self.advance(request, answer)
