"""Pushing and publishing, written once for both shells (see `steps`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime

from penstock.client.inputs import (
    check_headers,
    check_name,
    due_us,
    durability_level,
    id_bytes,
    key_bytes,
    milliseconds,
    moment_us,
)
from penstock.client.messages import Receipt, Receipts
from penstock.client.push import (
    PLAIN,
    WINDOW_BATCHES,
    Pipeline,
    PushRequest,
    Terms,
    now_us,
    push_one,
)
from penstock.client.rows import Headers, Rows, RowSource, check_as_long
from penstock.client.state import PushTarget, StreamState, TopicState
from penstock.client.steps import Steps, ask, decoder
from penstock.errors import InvalidError
from penstock.wire.messages import Producer, ProducerInfo

BATCH_MESSAGES = 8000  # a request costs as much whatever it carries; see `rows` for the bytes
_IDS_IN_FLIGHT = 256  # pushes with ids are batches of one: more of them are under way

_read_producer = decoder(ProducerInfo)


def terms_of(
    delay: float = 0.0,
    at: datetime | float | None = None,
    ttl: float | None = None,
    priority: int = 0,
    durability: str | None = None,
    compression: str = "none",
) -> Terms:
    """Checks what holds for every message of a push."""
    if not isinstance(priority, int):
        raise InvalidError(f"priority must be a number, not {priority!r}")
    return Terms(
        durability_level(durability),
        due_us(delay, at),
        0 if ttl is None else max(milliseconds("ttl", ttl), 1),
        priority,
        compression,
    )


def push(
    target: PushTarget,
    value: bytes,
    *,
    key: bytes | str | None = None,
    headers: Headers | None = None,
    timestamp: datetime | float | None = None,
    id: bytes | str | None = None,
    hold: bool = False,
    delay: float = 0.0,
    at: datetime | float | None = None,
    ttl: float | None = None,
    priority: int = 0,
    durability: str | None = None,
    compression: str = "none",
) -> Steps[Receipt]:
    """Stores one message. When it returns, the message is as durable as the receipt says.

    `id`: a message with the same id is stored once within the queue's window. `hold`: invisible
    until `release`, by its id. `delay` or `at`: invisible until then. `ttl`: dropped after so many
    seconds.
    """
    message_id = None if id is None else id_bytes(id)
    packed_key = None if key is None else key_bytes(key)
    if headers is not None:
        check_headers(headers)
    if hold and message_id is None:
        raise InvalidError("a held message needs an id, to be released by")
    terms = PLAIN
    if delay or at or ttl is not None or priority or durability or compression != "none":
        terms = terms_of(delay, at, ttl, priority, durability, compression)
    return push_one(
        target._place_for(packed_key, message_id),
        value,
        packed_key,
        headers,
        None if timestamp is None else moment_us(timestamp),
        terms,
        target._extra(message_id, hold),
    )


def plain_push(target: PushTarget, value: bytes) -> PushRequest:
    """What stores one message about which nothing is said: for whoever waits for it later."""
    place, extra = target._place_for(None, None), target._extra(None, False)
    return PushRequest(place, Rows((value,), None, None), PLAIN, now_us(), extra)


def push_many(
    target: PushTarget,
    values: Iterable[bytes],
    *,
    keys: Iterable[bytes | str | None] | None = None,
    headers: Iterable[Headers | None] | None = None,
    timestamps: Iterable[datetime | float] | None = None,
    ids: Iterable[bytes | str] | None = None,
    delay: float = 0.0,
    at: datetime | float | None = None,
    ttl: float | None = None,
    priority: int = 0,
    durability: str | None = None,
    compression: str = "none",
    batch: int = BATCH_MESSAGES,
    progress: Callable[[int], None] | None = None,
) -> Steps[Receipts]:
    """Stores many messages, in batches that are under way at the same time.

    `values` is taken lazily; keys, headers, timestamps and ids are lists or iterables that go along
    with it. A batch has at most `batch` messages, and is closed when its values reach 4 MiB.
    `progress` is called with the number stored so far. If it fails, a note on the error says how
    many messages were stored before. If it was the node that refused one, batches sent after those
    may be stored as well; if it was a value, or `values` itself that raised, no others are.
    """
    terms = terms_of(delay, at, ttl, priority, durability, compression)
    source = RowSource(values, keys, headers, timestamps)
    if ids is not None:
        check_as_long("ids", ids, values)
        return _push_with_ids(target, source, iter(ids), terms, progress)
    return _push_batches(target, source, terms, _checked_batch(batch), progress)


def _push_batches(
    target: PushTarget,
    source: RowSource,
    terms: Terms,
    batch: int,
    progress: Callable[[int], None] | None,
) -> Steps[Receipts]:
    pipeline, extra = Pipeline(progress, WINDOW_BATCHES), target._extra(None, False)
    try:
        for rows in source.batches(batch):
            for place, part in target._spread(rows):
                yield from pipeline.add(PushRequest(place, part, terms, now_us(), extra))
    except Exception as error:
        yield from pipeline.end(error)
        raise
    return (yield from pipeline.drain())


def _push_with_ids(
    target: PushTarget,
    source: RowSource,
    ids: Iterator[bytes | str],
    terms: Terms,
    progress: Callable[[int], None] | None,
) -> Steps[Receipts]:
    pipeline = Pipeline(progress, _IDS_IN_FLIGHT)
    try:
        for rows in source.batches(1):
            given = next(ids, None)
            if given is None:
                raise InvalidError("there are fewer ids than values")
            message_id = id_bytes(given)
            place = target._place_for(None if rows.keys is None else rows.keys[0], message_id)
            extra = target._extra(message_id, False)
            yield from pipeline.add(PushRequest(place, rows, terms, now_us(), extra))
    except Exception as error:
        yield from pipeline.end(error)
        raise
    return (yield from pipeline.drain())


def publish(
    topic: TopicState,
    value: bytes,
    *,
    key: bytes | str | None = None,
    partition: int | None = None,
    headers: Headers | None = None,
    timestamp: datetime | float | None = None,
    durability: str | None = None,
    compression: str = "none",
) -> Steps[Receipt]:
    """Appends one message to the partition of its key, or to `partition`, or to the next in turn.

    When it returns, the message is as durable as the receipt says.
    """
    packed_key = None if key is None else key_bytes(key)
    check_headers(headers)
    if partition is None:
        place = topic._place_for(packed_key, None)
    else:
        place = topic._explicit(topic._check_partition(partition))
    terms = PLAIN
    if durability or compression != "none":
        terms = terms_of(durability=durability, compression=compression)
    time_us = None if timestamp is None else moment_us(timestamp)
    return push_one(place, value, packed_key, headers, time_us, terms)


def publish_many(
    topic: TopicState,
    values: Iterable[bytes],
    *,
    keys: Iterable[bytes | str | None] | None = None,
    partition: int | None = None,
    headers: Iterable[Headers | None] | None = None,
    timestamps: Iterable[datetime | float] | None = None,
    durability: str | None = None,
    compression: str = "none",
    batch: int = BATCH_MESSAGES,
    progress: Callable[[int], None] | None = None,
) -> Steps[Receipts]:
    """Appends many messages, in batches that are under way at the same time; see `Queue.push_many`.

    Messages of one key keep their order.
    """
    terms = terms_of(durability=durability, compression=compression)
    source = RowSource(values, keys, headers, timestamps)
    target = topic if partition is None else topic._only(topic._check_partition(partition))
    return _push_batches(target, source, terms, _checked_batch(batch), progress)


def open_producer(stream: StreamState, name: str, partition: int = 0) -> Steps[ProducerInfo]:
    """Registers a new instance of a named producer; older instances are fenced."""
    call = Producer(stream.info.id, check_name(name), partition)
    return ask(call, _read_producer, stream._producer_shard(name, partition))


def _checked_batch(batch: int) -> int:
    if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
        raise InvalidError(f"batch must be 1 or more, not {batch!r}")
    return batch
