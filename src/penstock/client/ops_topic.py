"""Operations of topics, written once for both shells (see `steps`)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import numpy as np

from penstock.client.inputs import check_name, milliseconds, moment_us
from penstock.client.requests import ANY, Pending, Request, Resend
from penstock.client.spread import ask_owners
from penstock.client.state import TopicState
from penstock.client.steps import Finish, Steps, ask, decoder
from penstock.client.steps import Start as Begin
from penstock.errors import InvalidError, ProtocolError
from penstock.wire.batch import Batch
from penstock.wire.frames import FETCH, FETCH_HEAD, FRAME_BYTES, FetchHead, Verb
from penstock.wire.limits import MAX_BATCH_BYTES, MAX_LEASE_MS
from penstock.wire.messages import (
    Claim,
    ClaimInfo,
    Commit,
    Committed,
    Delete,
    OffsetAt,
    Offsets,
    StreamStats,
    Unclaim,
)

_HEAD_END = FRAME_BYTES + FETCH_HEAD.size
_LENGTH_AT = slice(4, 8)  # of a batch

_read_none = decoder(None)
_read_bool = decoder(bool)
_read_ints = decoder(list[int])
_read_bounds = decoder(list[tuple[int, int]])
_read_committed = decoder(list[int | None])
_read_claim = decoder(ClaimInfo)
_read_figures = decoder(dict[str, Any])

_MOST_LOOKS = 64  # partitions whose bounds are asked for at once
FOLLOW_S = 5.0  # how long the node holds a fetch at the end of a partition

Start = int | str | datetime


def offsets(topic: TopicState) -> Steps[list[tuple[int, int]]]:
    """First offset kept and next offset to be written, for each partition."""
    if topic._routes is None:
        found: list[tuple[int, int]] = yield from ask(Offsets(topic.info.id), _read_bounds)
        return found
    return (yield from _bounds_in_cluster(topic))


def _bounds_in_cluster(topic: TopicState) -> Steps[list[tuple[int, int]]]:
    """A look at each partition, as the answer says where it starts and ends."""
    bounds: list[tuple[int, int]] = []
    for first in range(0, topic.partitions, _MOST_LOOKS):
        looks: dict[int, Pending] = {}
        for partition in range(first, min(first + _MOST_LOOKS, topic.partitions)):
            looks[partition] = yield Begin(PartitionReader(topic, partition, 0, 1).look())
        for pending in looks.values():
            answer: bytearray = yield Finish(pending)
            head = fetch_head(answer)
            bounds.append((head.start, head.end))
    return bounds


def offset_at(topic: TopicState, time: datetime | float) -> Steps[list[int]]:
    """For each partition, the first offset that arrived at or after a time."""
    return ask(OffsetAt(topic.info.id, moment_us(time)), _read_ints, _only_owner(topic))


def commit(
    topic: TopicState, group: str, offsets: Mapping[int, int], token: int = 0
) -> Steps[None]:
    """Commits, for each partition given, the next offset that the group will read.

    Durable when it returns. In a cluster it is all or nothing for the partitions of one node.
    `token`: of the claim under which it is done; FencedError if the claim
    is not held any more.
    """
    rows = [(topic._check_partition(each), offset, token) for each, offset in offsets.items()]
    if not rows:
        raise InvalidError("commit needs at least one partition and its offset")
    stream, name = topic.info.id, check_name(group)
    if topic._routes is None:
        yield from ask(Commit(stream, name, rows), _read_none)
        return
    placement = topic.info.placement

    def part(shards: list[int]) -> Commit:
        return Commit(stream, name, [row for row in rows if placement[row[0]] in shards])

    shards = [placement[partition] for partition, _, _ in rows]
    yield from ask_owners(topic._routes, shards, part, _read_none)


def committed(topic: TopicState, group: str) -> Steps[dict[int, int]]:
    """The committed offsets of a group, for the partitions that have one."""
    found: list[int | None] = yield from ask(
        Committed(topic.info.id, check_name(group)), _read_committed, _only_owner(topic)
    )
    return {partition: offset for partition, offset in enumerate(found) if offset is not None}


def claim(
    topic: TopicState, partition: int, group: str, owner: str, lease: float, token: int = 0
) -> Steps[ClaimInfo]:
    """Claims a partition for a member of a group, or renews the claim with this token.

    The answer names the owner; its `token` is 0 if that is somebody else.
    """
    lease_ms = milliseconds("lease", lease, MAX_LEASE_MS)
    chosen = topic._check_partition(partition)
    request = Claim(topic.info.id, chosen, check_name(group), check_name(owner), lease_ms, token)
    return ask(request, _read_claim, topic.info.placement[chosen])


def unclaim(topic: TopicState, partition: int, group: str, token: int) -> Steps[bool]:
    """Gives a claim up; whether it was still held."""
    chosen = topic._check_partition(partition)
    request = Unclaim(topic.info.id, chosen, check_name(group), token)
    return ask(request, _read_bool, topic.info.placement[chosen])


def stats(topic: TopicState) -> Steps[dict[str, Any]]:
    """Figures of the topic."""
    return ask(StreamStats(topic.info.id), _read_figures, _only_owner(topic))


def _only_owner(topic: TopicState) -> int:
    """A shard whose owner knows all partitions. InvalidError if no node does: these calls have no
    form that asks for some partitions only."""
    placement = topic.info.placement
    if topic._routes is not None and len(topic._routes.groups(placement)) > 1:
        raise InvalidError(
            f"the partitions of topic {topic.name!r} lie on several nodes",
            advice="Read partitions by offset; a topic of one partition is not concerned.",
        )
    return placement[0]


def delete(topic: TopicState) -> Steps[bool]:
    """Deletes the topic and all its messages; whether it was there."""
    return ask(Delete("topic", topic.name, topic.info.namespace), _read_bool)


def starting_offsets(topic: TopicState, start: Start) -> Steps[list[int]]:
    """An offset for each partition: a number, "start", "end" or a time."""
    if isinstance(start, bool) or not isinstance(start, int | str | datetime):
        raise InvalidError(f"offset {start!r}: use a number, 'start', 'end' or a datetime")
    if isinstance(start, int):
        if start < 0:
            raise InvalidError(f"offset {start}: use 0 or more, 'start' or 'end'")
        return [start] * topic.partitions
    if isinstance(start, datetime):
        return (yield from offset_at(topic, start))
    if start not in ("start", "end"):
        raise InvalidError(f"offset {start!r}: use a number, 'start', 'end' or a datetime")
    bounds = yield from offsets(topic)
    return [first if start == "start" else following for first, following in bounds]


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

    def locate(self) -> Steps[int]:
        """The offset to go on from; asks the node if it is not known yet."""
        if self.offset is None:
            self.offset = (yield from starting_offsets(self._topic, self._start))[self.partition]
        return self.offset

    def request(self, wait_s: float) -> FetchRequest:
        """Asks for what follows; only when located."""
        assert self.offset is not None
        return self._from(self.offset, wait_s)

    def look(self) -> FetchRequest:
        """Asks for what is first, for the sake of what the answer says of the partition."""
        return self._from(0, 0.0)

    def _from(self, offset: int, wait_s: float) -> FetchRequest:
        info, partition = self._topic.info, self.partition
        shard = info.placement[partition]
        return FetchRequest(info.id, partition, offset, self._max_bytes, wait_s, shard)

    def advance(self, request: FetchRequest, answer: bytearray) -> list[Batch]:
        """Takes an answer in; the batches that came."""
        head, batches = request.batches(answer)
        assert self.offset is not None
        if batches:
            self.offset = int(batches[-1].offsets[-1]) + 1
        elif self.offset < head.start:
            self.offset = head.start  # retention has overtaken us
        self.at_end = self.offset >= head.end
        return batches

    def read(self, wait_s: float) -> Steps[list[Batch]]:
        """The next batches; none if there are none within `wait_s`."""
        yield from self.locate()
        request = self.request(wait_s)
        answer: bytearray = yield request
        return self.advance(request, answer)
