"""Staging and publishing what is staged, written once for both shells (see `steps`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime

from penstock.client import ops_push
from penstock.client.inputs import check_name
from penstock.client.messages import Receipt, Receipts
from penstock.client.producer import shard_of
from penstock.client.rows import Headers
from penstock.client.spread import ask_all
from penstock.client.stages import StageState, StageToken, tokens_of
from penstock.client.state import FabricState, OnePlace, TopicState
from penstock.client.steps import Steps, ask, decoder
from penstock.errors import InvalidError, MovedError
from penstock.wire.messages import (
    DiscardStages,
    ForgetPublication,
    Publication,
    Publications,
    PublishStaged,
    StagedPart,
    StagesOf,
    publication_name,
)

_read_publication = decoder(Publication)
_read_publications = decoder(list[Publication])
_read_int = decoder(int)
_read_bool = decoder(bool)
_TRIES = 5  # of a publication, while shards have no owner that can be reached


class StagedPartition(OnePlace):
    """One partition of a topic, under a stage."""

    def __init__(self, stage: StageState, partition: int) -> None:
        topic = stage._stream
        assert isinstance(topic, TopicState)
        super().__init__(topic, topic._explicit(topic._check_partition(partition)))
        self._stage = stage
        stage._touched.add(self._fixed.shard)

    def _extra(self, message_id: bytes | None, hold: bool) -> bytes:
        return self._stage._extra(message_id, hold)


def publish(
    stage: StageState,
    value: bytes,
    *,
    key: bytes | str | None = None,
    partition: int | None = None,
    headers: Headers | None = None,
    timestamp: datetime | float | None = None,
    durability: str | None = None,
    compression: str = "none",
) -> Steps[Receipt]:
    """Stages one message for the partition of its key, or for `partition`, or for the next in turn.

    When it returns, the message is as durable as the receipt says; it has no offset yet.
    """
    target = stage if partition is None else StagedPartition(stage, partition)
    return ops_push.push(
        target, value, key=key, headers=headers, timestamp=timestamp, durability=durability,
        compression=compression,
    )  # fmt: skip


def publish_many(
    stage: StageState,
    values: Iterable[bytes],
    *,
    keys: Iterable[bytes | str | None] | None = None,
    partition: int | None = None,
    headers: Iterable[Headers | None] | None = None,
    timestamps: Iterable[datetime | float] | None = None,
    durability: str | None = None,
    compression: str = "none",
    batch: int = 1000,
    progress: Callable[[int], None] | None = None,
) -> Steps[Receipts]:
    """Stages many messages, in batches that are under way at the same time; as
    `Topic.publish_many`."""
    target = stage if partition is None else StagedPartition(stage, partition)
    return ops_push.push_many(
        target, values, keys=keys, headers=headers, timestamps=timestamps, durability=durability,
        compression=compression, batch=batch, progress=progress,
    )  # fmt: skip


def discard(stage: StageState) -> Steps[int]:
    """Drops what is staged; nothing of it can be published any more. How many shards had some."""
    # After a failed push nobody knows what of it was stored, but where it may be.
    parts = dict.fromkeys(stage._touched, 0) | stage._stored
    return discard_staged(stage._fabric, [StageToken(stage.id, tuple(parts.items()))])


def discard_staged(
    fabric: FabricState, stages: Iterable[StageToken | StageState]
) -> Steps[int]:
    """Drops stages, unless they are being published: in how many shards."""
    by_shard: dict[int, list[bytes]] = {}
    for token in tokens_of(stages):
        for shard, _ in token.parts:
            by_shard.setdefault(shard, []).append(token.stage)
    dropped = 0
    for shard, names in by_shard.items():
        dropped += yield from ask(DiscardStages(shard, names), _read_int, shard)
    return dropped


def publish_staged(
    fabric: FabricState, key: str, number: int, stages: Iterable[StageToken | StageState]
) -> Steps[Publication]:
    """Makes stages visible, all of them or none, once for a key and number.

    When it returns, that is decided and durable; in a cluster the messages are there a moment
    later. Numbers of a key grow: with one that is not higher than the last, `outcome` is
    "already", and the stages are dropped, unless they are the very ones that were published (then
    it is the answer to a call that was repeated). NotFoundError if one is not there as a whole, and
    ConflictError if one is still being written: nothing is published.
    """
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise InvalidError(f"number must be 0 or more, not {number!r}")
    shards: dict[int, list[StagedPart]] = {}
    for token in tokens_of(stages):
        for shard, messages in token.parts:
            shards.setdefault(shard, []).append(StagedPart(token.stage, messages))
    parts = [StagesOf(shard, each) for shard, each in sorted(shards.items())]
    call = PublishStaged(check_name(key), number, parts, fabric.namespace)
    return _publish(fabric, call, _TRIES)


def _publish(fabric: FabricState, call: PublishStaged, tries: int) -> Steps[Publication]:
    home = _home(fabric, call.key)
    while True:
        try:
            told: Publication = yield from ask(call, _read_publication, home)
        except MovedError:  # a shard of a stage, not the home: that is looked for elsewhere
            tries -= 1
            if not tries:
                raise
        else:
            return told


def publications(fabric: FabricState) -> Steps[list[Publication]]:
    """The last publication of every key, by key."""
    call = Publications(fabric.namespace)
    if fabric._routes is None:
        found: list[Publication] = yield from ask(call, _read_publications)
        return found
    told = yield from ask_all(fabric._routes, call, _read_publications)
    return sorted((each for part in told.values() for each in part), key=lambda each: each.key)


def forget_publication(fabric: FabricState, key: str) -> Steps[bool]:
    """Forgets a key, whose numbers may be used again; whether it was known."""
    call = ForgetPublication(check_name(key), fabric.namespace)
    return ask(call, _read_bool, _home(fabric, key))


def _home(fabric: FabricState, key: str) -> int:
    return shard_of(publication_name(fabric.namespace, key).encode(), fabric.shards)
