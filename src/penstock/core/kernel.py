"""What all services of a node share: shards, definitions, the log, timers, answers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any, Protocol, TypeVar

import xxhash

from penstock.core.effects import Effect, Free, Send
from penstock.core.queue import Totals
from penstock.core.records import Kind, Note, pack_note
from penstock.core.shard import CONTROL, Shard, Stream
from penstock.errors import MovedError, NotFoundError, PenstockError
from penstock.wire.buffers import Buffer
from penstock.wire.durability import Durability
from penstock.wire.entry import Entry
from penstock.wire.frames import Flag, error_frame, frame
from penstock.wire.messages import OPTION_TYPES, StreamInfo, pack

Done = Callable[[Entry], None]
EARLY_BYTES = 8 << 10  # of an answer or a delivery that may leave early; see `Entry.reply`


class Parked(Protocol):
    """Somebody who waits for an answer."""

    over: bool  # answered, cancelled, or its connection is gone


_P = TypeVar("_P", bound=Parked)


class Timer:
    """Something to do at a time, unless it is cancelled before."""

    __slots__ = ("action",)

    def __init__(self, action: Callable[[], None]) -> None:
        self.action: Callable[[], None] | None = action


class Timers:
    """Things to do at a time, in order."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Timer]] = []
        self._order = count()
        self._cancelled = 0

    def at(self, time_us: int, action: Callable[[], None]) -> Timer:
        """Call `action` at or after a time."""
        timer = Timer(action)
        heappush(self._heap, (time_us, next(self._order), timer))
        return timer

    def cancel(self, timer: Timer) -> None:
        """It is not wanted any more. What is cancelled leaves when it is half of all."""
        if timer.action is not None:
            timer.action = None
            self._cancelled += 1
        if self._cancelled > 1000 and self._cancelled * 2 > len(self._heap):
            self._heap = [item for item in self._heap if item[2].action is not None]
            heapify(self._heap)
            self._cancelled = 0

    def run(self, now_us: int) -> None:
        """Calls all whose time has come."""
        while self._heap and self._heap[0][0] <= now_us:
            timer = heappop(self._heap)[2]
            action, timer.action = timer.action, None
            if action is None:
                self._cancelled -= 1
            else:
                action()

    def next_due(self) -> int | None:
        """When the next action is due."""
        return self._heap[0][0] if self._heap else None


class Kernel:
    """Shared state. `now_us` is the time of the event that is being handled."""

    def __init__(self, shards: int, now_us: int) -> None:
        self.streams: dict[int, Stream] = {}
        self.names: dict[tuple[str, str, str], int] = {}
        self.shards = [Shard(number, self.streams) for number in range(shards)]
        self.control = Shard(CONTROL, self.streams)
        self.keep_latest: set[int] = set()  # topics that keep the latest of every key
        # Partitions of those that have grown since somebody looked; a dict, for its order.
        self.grown: dict[tuple[int, int], None] = {}
        self.split: set[int] = set()  # topics that have more partitions than at the beginning
        self.effects: list[Effect] = []
        self.timers = Timers()
        self.now_us = now_us
        self.refusing: PenstockError | None = None  # why nothing can be written now
        self.shared = False  # in a cluster: another node may own a shard, and this one not know it
        # Of those: whether all nodes know what an outbox is, and so shards of several may be one
        # transaction's.
        self.forwarding = False
        self.staging = False  # the same for stages and reservations
        self.edges = False  # the same for messages that wait for entries, and all that tasks need

    @property
    def is_old(self) -> bool:
        """Whether a node of the cluster may not know what tasks need of records."""
        return self.shared and not self.edges

    # --- definitions -----------------------------------------------------------------------

    def define(self, info: StreamInfo) -> Stream:
        """A stream exists, or has other settings; its figures go on."""
        known = self.streams.get(info.id)
        totals = Totals(self.free) if known is None else known.totals
        options = read_options(info.kind, info.options)
        layout = info.layout() if info.growths else None
        plain = info.kind == "queue" and options.ordered == "no" and not options.gangs
        stream = Stream(info, options, totals, level_of(options), layout, plain)
        self.streams[info.id] = stream
        self.names[info.namespace, info.kind, info.name] = info.id
        if layout is not None:
            self.split.add(info.id)
        if info.kind == "topic" and options.keep == "latest":
            self.keep_latest.add(info.id)
            for partition in range(len(info.placement)):
                self.grown[info.id, partition] = None
        for shard in self.shards if known is not None else ():
            if (queue := shard.queues.get(info.id)) is not None:
                queue.options = options
            for key in [key for key in shard.partitions if key[0] == info.id]:
                shard.partitions[key].options = options
        return stream

    def undefine(self, stream: int) -> None:
        """A stream is gone, with all its data."""
        definition = self.streams.pop(stream, None)
        if definition is None:
            return
        info = definition.info
        self.keep_latest.discard(stream)
        self.split.discard(stream)
        del self.names[info.namespace, info.kind, info.name]
        for shard in self.shards:
            self.free(shard.drop_stream(stream))

    def stream(self, number: int, kind: str) -> Stream:
        """A stream by its id; NotFoundError if it is gone or something else."""
        stream = self.streams.get(number)
        if stream is None or stream.info.kind != kind:
            raise NotFoundError(f"there is no {kind} with id {number}; it may have been deleted")
        return stream

    def shard_of(self, key: bytes) -> Shard:
        """The shard that a key hashes to; MovedError if another node serves it."""
        return self.served(self.place_of(key))

    def place_of(self, key: bytes) -> int:
        """The number of the shard that a key hashes to, whoever serves it."""
        return xxhash.xxh3_64_intdigest(key) % len(self.shards)

    def served(self, number: int) -> Shard:
        """A shard that this node serves; MovedError if it does not."""
        shard = self.shards[number]
        if not shard.owned:
            raise MovedError(f"this node does not own shard {number}")
        return shard

    # --- log -------------------------------------------------------------------------------

    def log(
        self, shard: Shard, kind: int, meta: bytes, level: Durability, done: Done | None = None,
        payload: Buffer | None = None,
    ) -> Entry:  # fmt: skip
        """Appends a record to a shard's log; `done` is called when it is as safe as `level`."""
        shard.last += 1
        if shard.epochs.latest != shard.epoch:
            shard.epochs.began(shard.epoch, shard.last)
        entry = Entry(shard.id, kind, shard.epoch, shard.last, meta, payload, level, done)
        self.effects.append(entry)
        return entry

    def note(self, shard: Shard, note: Note, level: Durability, done: Done | None = None) -> Entry:
        """Logs a small fact and folds it at once."""
        entry = self.log(shard, Kind.NOTE, pack_note(note), level, done)
        shard.noted(note, entry.number, self.now_us)
        return entry

    def barrier(
        self, level: Durability, done: Done | None = None, local: bool = False
    ) -> Entry:
        """No record of any shard: `done` is called when all that was logged before is that safe;
        with `local`, on this node."""
        entry = Entry(CONTROL, Kind.BARRIER, 0, 0, b"", None, level, done, local=local)
        self.effects.append(entry)
        return entry

    def unsafe(self, level: Durability, shard: Shard | None = None) -> Entry:
        """What a look waits for that must not see what is not safe: a barrier, of one shard or of
        all. While the disk refuses there is none: it would only wait in the line of the journal,
        as many as there are looks."""
        if self.refusing is not None:
            raise self.refusing
        return self.barrier(level) if shard is None else self.shard_barrier(shard, level)

    def shard_barrier(self, shard: Shard, level: Durability) -> Entry:
        """As `barrier`, of one shard: it waits for no other."""
        entry = Entry(shard.id, Kind.BARRIER, 0, 0, b"", None, level)
        self.effects.append(entry)
        return entry

    def confirmation(self, shards: list[Shard]) -> Entry | None:
        """What to wait for before a look at shards may be answered: a node that was replaced must
        not tell what was. None if there is nobody who could replace it."""
        if not self.shared:
            return None
        number = shards[0].id if len(shards) == 1 else CONTROL
        entry = Entry(number, Kind.BARRIER, 0, 0, b"", None, Durability.MEMORY)
        self.effects.append(entry)
        return entry

    def free(self, places: list[tuple[int, int]]) -> None:
        """Stored bytes are not needed any more; see `Free`. The list is the kernel's from now."""
        effects = self.effects
        if effects and type(last := effects[-1]) is Free:
            last.places += places
        else:
            effects.append(Free(places))

    def told_level(self, level: Durability) -> Durability:
        """The level of a record that other shards hear of, if it would have this one otherwise: no
        other record may ever have its number. On a node that stands alone what they make of it
        comes after it in the same journal, and is lost if it is."""
        return Durability.REPLICATED if self.shared else max(level, Durability.WRITTEN)

    def answer_when_safe(
        self, entry: Entry, connection: int, verb: int, request: int, answer: Callable[[], None],
        in_turn: bool = False,
    ) -> None:  # fmt: skip
        """Calls `answer` when the entry is safe, or sends an error when the disk refuses it.
        `in_turn`: after what follows from it, so that others who wait for that are told first."""
        entry.answer, entry.failed = answer, partial(self.fail, connection, verb, request)
        entry.in_turn = in_turn

    def reply_when_safe(
        self, entry: Entry, connection: int, verb: int, request: int, body: bytes,
        in_turn: bool = False,
    ) -> None:  # fmt: skip
        """As `answer_when_safe`, for an answer that is known now."""
        reply = frame(verb, request, Flag.RESPONSE, body)
        entry.answer = partial(self._send_framed, connection, reply)
        entry.failed = partial(self.fail, connection, verb, request)
        entry.in_turn = in_turn
        # In a cluster others decide when it is safe.
        if not self.shared and len(reply) <= EARLY_BYTES:
            entry.reply = connection, reply

    def reply_if_served(
        self, entry: Entry, connection: int, verb: int, request: int, body: bytes,
        shards: Iterable[int], in_turn: bool = False, behind: bool = False,
    ) -> None:  # fmt: skip
        """The same; in a cluster, MovedError instead if one of the shards has another owner then.
        `behind`: after all messages that leave earlier for that connection."""
        in_turn = in_turn or behind
        if not (self.shared or behind):
            self.reply_when_safe(entry, connection, verb, request, body, in_turn)
            return
        epochs = {number: self.shards[number].epoch for number in shards}

        def answer() -> None:
            if self.still_served(epochs):
                self.send(connection, verb, request, body, behind)
            else:
                moved = MovedError("a shard has another owner since: it is not known what it has")
                self.fail(connection, verb, request, moved)

        self.answer_when_safe(entry, connection, verb, request, answer, in_turn)

    def _send_framed(self, connection: int, framed: bytes) -> None:
        self.effects.append(Send(connection, [framed]))

    def still_served(self, epochs: dict[int, int]) -> bool:
        """Whether this node has owned these shards ever since they had these epochs."""
        if not self.shared:  # there is nobody else
            return True
        shards = self.shards
        return all(
            shards[number].owned and shards[number].epoch == epoch
            for number, epoch in epochs.items()
        )

    # --- answers ---------------------------------------------------------------------------

    def send(
        self, connection: int, verb: int, request: int, body: Buffer = b"", behind: bool = False
    ) -> None:
        """Answers a request; see `Send` for `behind`."""
        self.effects.append(Send(connection, [frame(verb, request, Flag.RESPONSE, body)], behind))

    def answer(self, connection: int, verb: int, request: int, value: Any) -> None:
        """Answers a request with a value, as msgpack."""
        self.send(connection, verb, request, pack(value))

    def fail(self, connection: int, verb: int, request: int, error: PenstockError) -> None:
        """Answers a request with an error."""
        self.effects.append(Send(connection, [error_frame(verb, request, error)]))


def still_waiting(parked: deque[_P]) -> deque[_P]:
    """Without those that are over: they leave when their turn comes, or when the line is full."""
    return deque(item for item in parked if not item.over)


def read_options(kind: str, options: dict[str, Any]) -> Any:
    """Settings as their type; the dict is known to be good."""
    return OPTION_TYPES[kind](**options)


def level_of(options: Any) -> Durability:
    """What an acknowledgement of this stream means."""
    return Durability.named(options.durability)
