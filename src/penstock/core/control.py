"""Definitions of streams, and what operators and upper layers do with queues by hand."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec
import xxhash

from penstock.core import queue_rules as rules
from penstock.core.changes import Op
from penstock.core.kernel import Kernel
from penstock.core.queues import Queues
from penstock.core.records import Defined, Deleted, Registered
from penstock.core.shard import Shard, Stream
from penstock.core.topics import Topics
from penstock.errors import ConflictError, ExistsError, InvalidError, LimitError, NotFoundError
from penstock.wire import messages as m
from penstock.wire.durability import Durability
from penstock.wire.entry import Entry
from penstock.wire.growth import parents_for
from penstock.wire.limits import MAX_LEASE_MS, MAX_NAME_BYTES, MAX_PARTITIONS

MAX_STREAMS = 100_000
MAX_SETTING = 1 << 50  # in ms far beyond any use, and in us still a 64-bit number
_NAME = re.compile(r"[\w.:/@+-]+")
_FIXED = {"queue": {"ordered", "gangs"}, "topic": {"partitions", "keep"}, "table": set[str]()}


class Control:
    """Creates, finds, changes and deletes streams."""

    def __init__(self, kernel: Kernel, queues: Queues, topics: Topics) -> None:
        self.kernel = kernel
        self.queues = queues
        self.topics = topics
        self.last_id = 0
        self.clustered = False  # definitions are the cluster's, and may ask for its durability
        self.on_defined: Callable[[int], None] = _nothing  # those who have topics grow
        self.on_deleted: Callable[[int], None] = _nothing  # the tables', which come later

    # --- definitions -----------------------------------------------------------------------

    def open(self, call: m.Open) -> tuple[m.StreamInfo, Entry | None]:
        """Finds or creates a stream; the entry to wait for if it is new."""
        found = self.find(call)
        if found is not None:
            return found, None
        info = self.draft(call, self.last_id + 1)
        return info, self._define(info)

    def find(self, call: m.Open) -> m.StreamInfo | None:
        """The stream if it is there; ExistsError if it has other settings than are asked for."""
        if call.kind not in m.OPTION_TYPES:
            raise InvalidError(f"{call.kind!r}: use queue, topic or table")
        number = self.kernel.names.get((call.namespace, call.kind, call.name))
        if number is not None:
            stream = self.kernel.streams[number]
            self._check_same(stream, call.options or {})
            return stream.info
        if not call.create:
            raise NotFoundError(f"there is no {call.kind} {call.name!r}")
        return None

    def draft(self, call: m.Open, number: int) -> m.StreamInfo:
        """A stream as it would be created under an id; nothing is logged."""
        if len(self.kernel.streams) >= MAX_STREAMS:
            raise LimitError(f"{MAX_STREAMS:,} streams exist already")
        _check_name(call.name)
        _check_name(call.namespace)
        wanted = {"durability": "replicated"} if self.clustered else {}
        options = check_options(call.kind, {**wanted, **(call.options or {})}, self.clustered)
        placement = self._placement(options.partitions) if call.kind == "topic" else []
        return m.StreamInfo(
            number, call.kind, call.name, call.namespace, self._settings(options), placement
        )

    def _settings(self, options: Any) -> dict[str, Any]:
        """Settings as a definition has them: without what older nodes do not know, as long as it is
        what they take for granted."""
        settings: dict[str, Any] = msgspec.structs.asdict(options)
        if settings.get("stealing"):
            del settings["stealing"]
        elif "stealing" in settings and self.clustered and not self.kernel.forwarding:
            raise InvalidError("stealing=False: not all nodes of the cluster know this setting yet")
        if not settings.get("gangs"):
            settings.pop("gangs", None)
        elif self.clustered and not self.kernel.edges:
            raise InvalidError("gangs=True: not all nodes of the cluster know this setting yet")
        return settings

    def _placement(self, partitions: int) -> list[int]:
        """Partitions lie on neighbouring shards from a place of the topic's own."""
        first = xxhash.xxh3_64_intdigest((self.last_id + 1).to_bytes(8, "little"))
        return list(map(self._neighbour(first), range(partitions)))

    def _neighbour(self, first: int) -> Callable[[int], int]:
        """The shard of a partition, by its number."""
        return lambda number: (first + number) % len(self.kernel.shards)

    def _define(self, info: m.StreamInfo) -> Entry:
        entry = self.kernel.note(self.kernel.control, Defined(info), Durability.SYNCED)
        self.defined(info)
        self.on_defined(info.id)
        return entry

    def defined(self, info: m.StreamInfo) -> None:
        """Fold: a stream exists, or has other settings."""
        self.last_id = max(self.last_id, info.id)
        self.kernel.define(info)

    def adopt(self, info: m.StreamInfo) -> None:
        """The cluster has defined a stream, or changed its settings."""
        known = self.kernel.streams.get(info.id)
        if known is None:  # one that had this name may have been deleted unseen
            self.delete(m.Delete(info.kind, info.name, info.namespace))
        if known is None or known.info != info:
            self._define(info)

    def configure(self, call: m.Configure) -> tuple[m.StreamInfo, Entry]:
        """Changes settings that may change while a stream lives."""
        info = self.revise(call)
        return info, self._define(info)

    def revise(self, call: m.Configure) -> m.StreamInfo:
        """A stream as it would be with other settings; nothing is logged."""
        stream = self.kernel.streams.get(call.stream)
        if stream is None:
            raise NotFoundError(f"there is no stream with id {call.stream}")
        info = stream.info
        if fixed := sorted(_FIXED[info.kind] & set(call.options)):
            raise InvalidError(f"{', '.join(fixed)} cannot be changed once a {info.kind} exists")
        options = check_options(info.kind, {**info.options, **call.options}, self.clustered)
        return msgspec.structs.replace(info, options=self._settings(options))

    def grow(self, call: m.Grow) -> m.StreamInfo:
        """Adds partitions to a topic, which are open when it returns; nothing is safe yet."""
        info = self.grown(call)
        if info != self.kernel.streams[info.id].info:
            self._define(info)
        return info

    def grown(self, call: m.Grow) -> m.StreamInfo:
        """A topic as it would be with so many partitions; nothing is logged."""
        info = self.kernel.stream(call.stream, "topic").info
        count, wanted = len(info.placement), call.partitions
        if wanted == count:
            return info
        if not count < wanted <= MAX_PARTITIONS:
            raise InvalidError(
                f"{wanted} partitions: topic {info.name!r} has {count}, and can only grow, to "
                f"{MAX_PARTITIONS} at most"
            )
        more = range(count, wanted)
        return msgspec.structs.replace(
            info,
            options={**info.options, "partitions": wanted},
            placement=[*info.placement, *map(self._neighbour(info.placement[0]), more)],
            growths=[*info.growths, parents_for(info.layout(), len(more))],
        )

    def _check_same(self, stream: Stream, wanted: dict[str, Any]) -> None:
        have = msgspec.structs.asdict(stream.options)
        check_options(stream.info.kind, {**have, **wanted}, self.clustered)
        if stream.layout is not None and wanted.get("partitions") in stream.layout.counts:
            have["partitions"] = wanted["partitions"]  # it had so many once, and has grown since
        if other := [name for name, value in wanted.items() if have.get(name) != value]:
            shown = ", ".join(f"{name}={have.get(name)!r}" for name in other)
            grows = other == ["partitions"]
            change = "grow() adds partitions" if grows else "configure() changes it"
            raise ExistsError(
                f"{stream.info.kind} {stream.info.name!r} exists with {shown}",
                advice=f"Open it without saying so; {change}.",
            )

    def delete(self, call: m.Delete) -> Entry | None:
        """Deletes a stream and its data; None if there is none."""
        number = self.kernel.names.get((call.namespace, call.kind, call.name))
        if number is None:
            return None
        entry = self.kernel.note(self.kernel.control, Deleted(number), Durability.SYNCED)
        self.deleted(number)
        return entry

    def deleted(self, number: int) -> None:
        """Fold: a stream is gone."""
        self.kernel.undefine(number)
        self.queues.closed(number)
        self.topics.closed(number)
        self.on_deleted(number)

    def streams(self, call: m.Streams) -> list[m.StreamInfo]:
        """All streams of a kind and namespace, by name."""
        found = [
            stream.info
            for stream in self.kernel.streams.values()
            if stream.info.namespace == call.namespace and call.kind in (None, stream.info.kind)
        ]
        return sorted(found, key=lambda info: (info.kind, info.name))

    # --- queues by hand --------------------------------------------------------------------

    def purge(self, call: m.Purge) -> int:
        """Drops what waits, or the dead letters; how many messages."""
        stream = self.kernel.stream(call.stream, "queue")
        before = stream.totals.messages
        for queue in list(self.queues.view(call.stream).shards.values()):
            limit = stream.totals.messages
            changes = rules.redrive(queue, limit, Op.BURY) if call.dead else rules.purge(queue)
            self.queues.change(stream, queue, changes)
        return before - stream.totals.messages

    def redrive(self, call: m.Redrive) -> int:
        """Brings dead letters back; how many messages."""
        stream = self.kernel.stream(call.stream, "queue")
        moved = 0
        for queue in list(self.queues.view(call.stream).shards.values()):
            changes = rules.redrive(queue, call.limit - moved, Op.REDRIVE)
            moved += sum(queue.dead[change.position].messages for change in changes)
            self.queues.change(stream, queue, changes)
            self.queues.arrived(queue)
        return moved

    def release(self, call: m.Release) -> list[str]:
        """Makes messages available, by id, that are held or were pushed with a delay."""
        stream = self.kernel.stream(call.stream, "queue")
        return [self._release(stream, key) for key in call.ids]

    def _release(self, stream: Stream, key: bytes) -> str:
        queue = self.kernel.shard_of(key).queues.get(stream.info.id)
        if queue is None:
            return "unknown"
        position = queue.ids.find(key)
        if key not in queue.held and position is None:
            return "unknown"
        change = rules.release(queue, key, position or 0)
        if change is None:
            return "done"
        if key not in queue.held and self.kernel.is_old:
            raise ConflictError(
                "not all nodes of the cluster know how to release what is delayed yet",
                advice="Upgrade the other nodes first.",
            )
        self.queues.change(stream, queue, [change])
        self.queues.arrived(queue)
        return "released"

    def producer(self, call: m.Producer) -> tuple[m.ProducerInfo, Entry]:
        """A new instance of a named producer; older ones are fenced."""
        stream = self.kernel.streams.get(call.stream)
        if stream is None or stream.info.kind == "table":
            raise NotFoundError(f"there is no queue or topic with id {call.stream}")
        _check_name(call.name)
        shard = self._producer_shard(stream, call)
        label = f"{call.stream}/{call.partition}/{call.name}"
        identity = xxhash.xxh3_64_intdigest(label.encode()) or 1
        window = shard.producers.windows.get(identity)
        if window is None:
            shard.producers.has_room(self.kernel.now_us)
        instance = 1 if window is None else window.instance + 1
        entry = self.kernel.note(shard, Registered(identity, instance), Durability.SYNCED)
        stored = shard.producers.windows[identity].next_sequence
        return m.ProducerInfo(identity, instance, shard.id, stored), entry

    def _producer_shard(self, stream: Stream, call: m.Producer) -> Shard:
        if stream.info.kind == "topic":
            return self.topics.shard(stream, call.partition)
        if stream.options.ordered == "key":
            raise InvalidError('a queue with ordered="key" takes no named producers')
        own = stream.options.on_one_shard
        return self.kernel.shard_of((stream.info.name if own else call.name).encode())

    # --- snapshot --------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """Plain data for `load`."""
        infos = [stream.info for stream in self.kernel.streams.values()]
        return {"streams": msgspec.to_builtins(infos, builtin_types=[bytes]), "last": self.last_id}

    def load(self, data: dict[str, Any]) -> None:
        """Defines what this snapshot defines."""
        for info in msgspec.convert(data["streams"], list[m.StreamInfo]):
            self.defined(info)
        self.last_id = data["last"]


def _nothing(_: int) -> None:
    """Until there are those that want to know."""


def _check_name(name: str) -> None:
    if not 0 < len(name.encode()) <= MAX_NAME_BYTES or not _NAME.fullmatch(name):
        raise InvalidError(
            f"{name!r} is not a name: 1 to {MAX_NAME_BYTES} letters, digits and . _ - : / @ +"
        )


def check_options(kind: str, options: dict[str, Any], clustered: bool = False) -> Any:
    """Settings as their type; InvalidError names the one that is wrong."""
    try:
        checked = msgspec.convert(options, m.OPTION_TYPES[kind])
        level = Durability.named(checked.durability)
    except (msgspec.ValidationError, ValueError) as error:
        raise InvalidError(f"settings of a {kind}: {error}") from None
    if level == Durability.REPLICATED and not clustered:
        raise InvalidError("durability 'replicated' needs a cluster; this node stands alone")
    for name, value in msgspec.structs.asdict(checked).items():
        if isinstance(value, int) and not 0 <= value <= MAX_SETTING:
            raise InvalidError(f"settings of a {kind}: {name} is 0 to {MAX_SETTING:,}")
    if isinstance(checked, m.QueueOptions) and not 0 < checked.lease_ms <= MAX_LEASE_MS:
        raise InvalidError(
            f"the lease of a queue is more than 0 and at most {MAX_LEASE_MS // 1000:,} seconds"
        )
    if isinstance(checked, m.QueueOptions) and checked.ordered not in ("no", "queue", "key"):
        raise InvalidError(f'ordered {checked.ordered!r}: use "no", "queue" or "key"')
    if isinstance(checked, m.QueueOptions) and checked.gangs and checked.ordered != "no":
        raise InvalidError("a queue of gangs is not ordered: the oldest that fits goes first")
    if isinstance(checked, m.TopicOptions):
        _check_topic(checked)
    return checked


def _check_topic(options: m.TopicOptions) -> None:
    if not 0 < options.partitions <= MAX_PARTITIONS:
        raise InvalidError(f"a topic has 1 to {MAX_PARTITIONS} partitions")
    if options.keep not in ("all", "latest"):
        raise InvalidError(f'keep {options.keep!r}: use "all" or "latest"')
