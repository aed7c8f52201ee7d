"""What both shells' classes have in common: the state that operations work on."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable

from penstock.client.inputs import read_options
from penstock.client.messages import Refusal
from penstock.client.pops import SharedRoute
from penstock.client.producer import Lane, Producer, shard_of, unsequenced
from penstock.client.push import Place, extra_bytes
from penstock.client.requests import ANY
from penstock.client.routing import Routes
from penstock.client.rows import RowsT
from penstock.client.settle import Settler
from penstock.client.shells import Runs
from penstock.client.steps import Steps, ask, decoder
from penstock.errors import (
    ForgottenError,
    InvalidError,
    NotFoundError,
    ProtocolError,
)
from penstock.wire.frames import PushExtra
from penstock.wire.growth import ANY_GENERATION
from penstock.wire.messages import (
    Open,
    ProducerInfo,
    QueueOptions,
    StreamInfo,
    TableOptions,
    TopicOptions,
)
from penstock.wire.tuples import new_tuple

_read_info = decoder(StreamInfo)


class FabricState(Runs):
    """A connected fabric: namespace, number of shards, and the producer of its pushes."""

    def __init__(self, namespace: str, producer: Producer) -> None:
        self.namespace = namespace
        self._producer = producer
        self._routes: Routes | None = None  # of a cluster

    @property
    def shards(self) -> int:
        """Number of shards of the cluster."""
        return self._producer.shards


class StreamState(Runs):
    """An opened queue, topic or table."""

    def __init__(self, fabric: FabricState, info: StreamInfo) -> None:
        self._fabric = fabric
        self._producer = fabric._producer
        self._routes = fabric._routes
        self._run = fabric._run
        self.info = info

    def _told(self, info: StreamInfo) -> None:
        """It has other settings."""
        self.info = info

    def _producer_shard(self, name: str, partition: int) -> int:
        """Where a named producer of this stream pushes."""
        return ANY

    @property
    def name(self) -> str:
        """Its name in the fabric's namespace."""
        return self.info.name

    def __repr__(self) -> str:
        return f"<{self.info.kind} {self.info.name!r}>"


class PushTarget(Runs, ABC):
    """Something that batches are pushed to."""

    @abstractmethod
    def _place_for(self, key: bytes | None, message_id: bytes | None) -> Place:
        """Where a single message goes."""

    def _extra(self, message_id: bytes | None, hold: bool) -> bytes:
        """What a push says beside its batch."""
        if message_id is None and not hold:
            return b""
        return extra_bytes(PushExtra(message_id, hold))

    @abstractmethod
    def _spread(self, rows: RowsT) -> Iterable[tuple[Place, RowsT]]:
        """Where the rows of a batch go; one batch for each place, rows in their order."""


class QueueState(StreamState, PushTarget):
    """A queue: where pushes go, and acks that wait to be sent."""

    def __init__(self, fabric: FabricState, info: StreamInfo) -> None:
        super().__init__(fabric, info)
        self._settler = Settler(info.id)
        self._walk = self._producer.walk_shards(self._routes)
        self._ordered = self.options.ordered
        self._on_one_shard = self.options.on_one_shard
        local = None if self._routes is None else self._routes.local
        self._pop_route = SharedRoute(local)
        if self._ordered != "no":
            self._producer = self._producer.own()

    @property
    def options(self) -> QueueOptions:
        """Its settings."""
        return read_options(QueueOptions, self.info.options)

    @property
    def refused(self) -> int:
        """Messages whose buffered settlement was refused, since the queue was opened here."""
        return self._settler.refused

    @property
    def on_refused(self) -> Callable[[Refusal], None] | None:
        """Called with every refusal of a buffered settlement, from a thread that uses the queue."""
        return self._settler.on_refused

    @on_refused.setter
    def on_refused(self, callback: Callable[[Refusal], None] | None) -> None:
        self._settler.on_refused = callback

    @property
    def _only_shard(self) -> int | None:
        """Where all its messages are, if that is one shard."""
        if not self._on_one_shard:
            return None
        return shard_of(self.info.name.encode(), self._producer.shards)

    def _place(self, shard: int) -> Place:
        lane, keeps_order = self._producer.lane, self._ordered != "no"
        return new_tuple(Place, (self.info.id, 0, shard, lane, keeps_order, 0, None))

    def _place_for(self, key: bytes | None, message_id: bytes | None) -> Place:
        only = self._only_shard if self._on_one_shard else None
        if message_id is not None:
            if self._ordered != "no":  # an id has a shard of its own, and so has an order
                raise InvalidError(f"queue {self.name!r} is ordered: its messages take no ids")
            own = shard_of(message_id, self._producer.shards) if only is None else only
            return self._place(own)._replace(lane=unsequenced)
        if only is not None:
            return self._place(only)
        if self._ordered == "no":
            return self._place(self._walk.single())
        return self._place(self._shard_of_key(key))

    def _producer_shard(self, name: str, partition: int) -> int:
        only = self._only_shard
        return shard_of(name.encode(), self._producer.shards) if only is None else only

    def _spread(self, rows: RowsT) -> Iterable[tuple[Place, RowsT]]:
        if self._on_one_shard:
            return [(self._place_for(None, None), rows)]
        if self._ordered == "no":
            return [(self._place(self._walk.batch()), rows)]
        keys = [None] if rows.keys is None else rows.keys
        shards = [self._shard_of_key(key) for key in keys]
        return ((self._place(shard), part) for shard, part in rows.grouped(shards))

    def _shard_of_key(self, key: bytes | None) -> int:
        if key is None:
            raise InvalidError(f"queue {self.name!r} is ordered by key: every message needs a key")
        return shard_of(key, self._producer.shards)


class TopicState(StreamState, PushTarget):
    """A topic: where publications go."""

    def __init__(self, fabric: FabricState, info: StreamInfo) -> None:
        super().__init__(fabric, info)
        if not info.placement:
            raise ProtocolError(f"the node did not say where the partitions of {info.name!r} are")
        self._growing = threading.Lock()
        self._layout = info.layout()
        self._walk = self._producer.walk_over(self.partitions)
        self._producer = self._producer.own()

    def _grown_to(self, info: StreamInfo) -> bool:
        """The topic as a node tells of it; whether it has grown since this client knew it."""
        if info.id != self.info.id:
            raise NotFoundError(f"topic {info.name!r} was deleted, and created anew")
        with self._growing:
            if info.generation <= self.info.generation:
                return False
            # In this order: another thread may choose a place with what is there of it.
            self.info = info
            self._walk = self._producer.walk_over(len(info.placement))
            self._layout = info.layout()
            return True

    def _told(self, info: StreamInfo) -> None:
        if not self._grown_to(info) and info.generation == self.info.generation:
            self.info = info

    def _look(self, shard: int = ANY) -> Steps[bool]:
        """Asks how the topic is now; whether it has grown. With `shard`, its owner is asked."""
        info = self.info
        call = Open("topic", info.name, info.namespace, None, False)
        return self._grown_to((yield from ask(call, _read_info, shard)))

    @property
    def options(self) -> TopicOptions:
        """Its settings."""
        return read_options(TopicOptions, self.info.options)

    @property
    def partitions(self) -> int:
        """Number of partitions."""
        return len(self.info.placement)

    def _check_partition(self, partition: int) -> int:
        if isinstance(partition, bool) or not isinstance(partition, int):
            raise InvalidError(f"a partition is a number, not {partition!r}")
        if not 0 <= partition < self.partitions:
            raise InvalidError(f"topic {self.name!r} has partitions 0 to {self.partitions - 1}")
        return partition

    def _place(self, partition: int, generation: int) -> Place:
        """A partition that was chosen by the layout of a generation."""
        info, lane = self.info, self._producer.lane
        return Place(info.id, partition, info.placement[partition], lane, True, generation, self)

    def _explicit(self, partition: int) -> Place:
        """A partition that is meant as such: what it gets stays there when it is split."""
        return self._place(partition, ANY_GENERATION)._replace(topic=None)

    def _place_for(self, key: bytes | None, message_id: bytes | None) -> Place:
        layout = self._layout
        number = self._walk.single() if key is None else layout.partition_of(key)
        return self._place(number, layout.generation)

    def _spread(self, rows: RowsT) -> Iterable[tuple[Place, RowsT]]:
        layout = self._layout  # another thread may hear of a growth meanwhile
        if rows.keys is None:
            return [(self._place(self._walk.batch(), layout.generation), rows)]
        chosen = rows.partitions(layout, self._walk.batch)
        return (
            (self._place(partition, layout.generation), part)
            for partition, part in rows.grouped(chosen)
        )

    def _producer_shard(self, name: str, partition: int) -> int:
        return self.info.placement[partition]

    def _only(self, partition: int) -> PushTarget:
        return OnePlace(self, self._explicit(partition))


class OnePlace(PushTarget):
    """Everything goes to one place."""

    def __init__(self, stream: StreamState, place: Place) -> None:
        self._run = stream._run
        self._fixed = place

    def _place_for(self, key: bytes | None, message_id: bytes | None) -> Place:
        if message_id is not None:
            raise InvalidError("ids are for pushes to a queue without a named producer")
        return self._fixed

    def _spread(self, rows: RowsT) -> Iterable[tuple[Place, RowsT]]:
        return [(self._fixed, rows)]


class NamedProducerState(OnePlace):
    """A producer that survives its process: it pushes to one shard, under its own sequence."""

    def __init__(self, stream: StreamState, name: str, partition: int, info: ProducerInfo) -> None:
        self.name = name
        self._lane = Lane(info.producer, info.instance, info.stored)
        generation = ANY_GENERATION if stream.info.kind == "topic" else 0
        place = Place(stream.info.id, partition, info.shard, self._own_lane, True, generation)
        super().__init__(stream, place)

    @property
    def stored(self) -> int:
        """How many messages the node has stored from all its instances: where to go on."""
        return self._lane.stored

    def _own_lane(self, shard: int) -> Lane:
        if not self._lane.mend():
            raise ForgottenError(
                f"an earlier push of producer {self.name!r} failed with an unknown outcome",
                advice="Open the producer again and go on after `stored`.",
            )
        return self._lane

    def __repr__(self) -> str:
        return f"<producer {self.name!r}: {self.stored:,} messages stored>"


class TableState(StreamState):
    """A table."""

    @property
    def options(self) -> TableOptions:
        """Its settings."""
        return read_options(TableOptions, self.info.options)
