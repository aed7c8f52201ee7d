"""Topics that grow: partitions that were split are sealed, their children opened.

The definition of a topic says how it has grown; it comes from the control log. Whoever owns a
partition that is to be split writes one record into its shard, as soon as it knows: sealed, at the
partition's end. That record puts a part for each child into the shard's outbox, which opens the
child at this offset. So no message of a key is in a child before all that came before it are in the
parent, and none can get in there any more; and a key's offsets grow.
"""

from __future__ import annotations

from penstock.core.forwards import Forwards
from penstock.core.kernel import Kernel
from penstock.core.records import Sealed
from penstock.core.shard import Shard, Stream
from penstock.core.topics import Topics
from penstock.wire.growth import Birth


class Growing:
    """Seals what this node owns."""

    def __init__(self, kernel: Kernel, topics: Topics, forwards: Forwards) -> None:
        self.kernel = kernel
        self.topics = topics
        self.forwards = forwards
        forwards.on_opened = self.opened

    def defined(self, number: int) -> None:
        """The definition of a stream is new here."""
        stream = self.kernel.streams[number]
        if stream.layout is not None:
            for partition, births in enumerate(stream.layout.births):
                if births:
                    self._seal(stream, partition)

    def restart(self) -> None:
        """A node that stands alone has recovered, and carried out what was in its outboxes: a
        growth that was cut off is finished."""
        for shard in self.kernel.shards:
            self.begin(shard)

    def begin(self, shard: Shard) -> None:
        """This node owns a shard from now on: what its log lacks of definitions is made up for."""
        for number in sorted(self.kernel.split):
            stream = self.kernel.streams[number]
            for partition, place in enumerate(stream.info.placement):
                if place == shard.id:
                    self._seal(stream, partition)

    def opened(self, stream: Stream, number: int) -> None:
        """A partition has begun: it may have been split already, and readers may wait for it."""
        self._seal(stream, number)
        self.topics.arrived(stream.info.id, number)

    def _seal(self, stream: Stream, number: int) -> None:
        shard = self.kernel.shards[stream.info.placement[number]]
        if stream.layout is None or not shard.owned or not self.topics.is_open(stream, number):
            return
        splits = shard.partition(stream.info.id, number).splits
        last = splits[-1][0] if splits else 0
        missing = [birth for birth in stream.layout.births[number] if birth.generation > last]
        for birth in missing:
            self._seal_for(stream, number, shard, birth)
        if missing:  # readers learn of it when they are answered
            self.topics.arrived(stream.info.id, number)

    def _seal_for(self, stream: Stream, number: int, shard: Shard, birth: Birth) -> None:
        info = stream.info
        partition = shard.partition(info.id, number)
        children = [(child, info.placement[child]) for child in birth.children]
        note = Sealed(info.id, number, birth.generation, partition.tail, children)
        entry = self.kernel.note(shard, note, self.forwards.level)
        self.forwards.bring(shard, entry)
