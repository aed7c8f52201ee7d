"""Message stealing on one node: as the one that wants messages, as the one that has them, and as
the owner of a list that brings both together. Who, when and how many is decided in
`cluster.stealing`; how a batch changes its shard, in `core.steals`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import islice

from penstock.cluster.stealing import (
    LYING_US,
    MOST_BATCHES,
    MOST_WANTED,
    Hunger,
    Hungry,
    Lying,
    chosen,
    most_given,
)
from penstock.core.steals import Loot, Steals
from penstock.engine.engine import CopyJob, Engine
from penstock.engine.queue_lists import QueueLists
from penstock.engine.steal_messages import Given, Offer, Steal, StealMessage, Wanted
from penstock.errors import PenstockError, ProtocolError
from penstock.store.locations import split

MAX_HUNGRY = 10_000  # queues that a node wants messages of, or brings others together for
MAX_READS = 8  # thefts at once whose batches are being read

Send = Callable[[int, StealMessage], None]


class Stealing:
    """See the module. The shell calls `advance` after every event."""

    def __init__(self, node: int, engine: Engine, lists: QueueLists, send: Send) -> None:
        self.moved = 0  # messages that left this node
        self._node = node
        self._engine = engine
        self._fabric = engine.fabric
        self._kernel = engine.fabric.kernel
        self._lists = lists
        self._send = send
        self._steals = Steals(engine.fabric.queues, engine.fabric.transactions)
        self._hunger: dict[int, Hunger] = {}  # queues whose consumers wait here
        self._hungry: dict[int, Hungry] = {}  # nodes that want messages of a queue
        self._checking: set[int] = set()  # queues that a look at is due for
        self._reading: set[int] = set()  # queues of which something is about to leave
        self._turn = 0
        lists.on_filled = self._filled

    # --- wanting ---------------------------------------------------------------------------

    def advance(self, now_us: int) -> None:
        """Takes note of queues that somebody got nothing from."""
        queues = self._fabric.queues
        if not queues.hungry:
            return
        hungry, queues.hungry = queues.hungry, {}
        if not self._lists.enabled:
            return
        for stream in hungry:
            if stream not in self._hunger and len(self._hunger) < MAX_HUNGRY:
                hunger = self._hunger[stream] = Hunger(now_us)
                self._wait(stream, hunger)

    def _wait(self, stream: int, hunger: Hunger) -> None:
        due_us = hunger.due_us
        self._kernel.timers.at(due_us, lambda: self._due(stream, hunger, due_us))

    def _due(self, stream: int, hunger: Hunger, due_us: int) -> None:
        if self._hunger.get(stream) is not hunger or hunger.due_us != due_us:
            return
        owner = self._lists.owner_of(stream)
        if not self._is_hungry(stream) or owner is None:
            del self._hunger[stream]
            return
        hunger.next(self._kernel.now_us)
        self._wait(stream, hunger)
        self._say(owner, Wanted(stream))

    def _is_hungry(self, stream: int) -> bool:
        view = self._fabric.queues.views.get(stream)
        if view is None or view.full or not self._steals.may_leave(stream):
            return False
        return view.wanted() > 0

    def _offered(self, stream: int, node: int) -> None:
        hunger = self._hunger.get(stream)
        mine = [shard.id for shard in self._kernel.shards if shard.owned]
        if hunger is None:
            return
        if not mine or not self._is_hungry(stream):
            del self._hunger[stream]  # should it be so again, it begins anew
            return
        if hunger.offered(node, self._kernel.now_us):
            self._wait(stream, hunger)
            self._turn += 1
            shard = mine[self._turn % len(mine)]
            wanted = min(self._fabric.queues.view(stream).wanted(), MOST_WANTED)
            self._say(node, Steal(stream, shard, wanted))

    def _given(self, stream: int, node: int, messages: int) -> None:
        hunger = self._hunger.get(stream)
        if hunger is not None:
            hunger.given(node, messages, self._kernel.now_us)
            self._wait(stream, hunger)

    # --- bringing together -----------------------------------------------------------------

    def _wanted(self, stream: int, node: int) -> None:
        if self._lists.full_nodes(stream) is None:
            return
        if stream not in self._hungry and len(self._hungry) >= MAX_HUNGRY:
            del self._hungry[next(iter(self._hungry))]  # who is there says so again
        self._hungry.setdefault(stream, Hungry()).add(node)
        self._match(stream)

    def _filled(self, stream: int) -> None:
        """A node has messages; if nobody takes them for a while, others may."""
        if self._hungry.get(stream) and stream not in self._checking:
            self._checking.add(stream)
            due_us = self._kernel.now_us + LYING_US
            self._kernel.timers.at(due_us, lambda: self._check(stream))

    def _check(self, stream: int) -> None:
        self._checking.discard(stream)
        self._match(stream)

    def _match(self, stream: int) -> None:
        full, hungry = self._lists.full_nodes(stream), self._hungry.get(stream)
        if hungry is None:
            return
        if full is None:
            del self._hungry[stream]
            return
        hungry.keep(self._lists.nodes)
        for thief, victim in list(hungry.match(full)):
            self._say(thief, Offer(stream, victim))

    # --- giving ----------------------------------------------------------------------------

    def _asked(self, node: int, message: Steal) -> None:
        """Reads what may leave, and has it leave then: unless somebody was faster."""
        stream = message.stream
        found = self._find(stream, message.messages)
        if (view := self._fabric.queues.views.get(stream)) is not None and not found:
            self._fabric.queues.left(view)  # the list may be wrong about this node
        if not found or stream in self._reading or len(self._reading) >= MAX_READS:
            self._say(node, Given(stream, 0))
            return
        places = [(s.location, s.length, s.stamped) for s in (loot.stored for loot in found)]
        files = Counter({split(location)[0] for location, _, _ in places})
        job = CopyJob(self._engine.reader, places)

        def read() -> None:
            self._reading.discard(stream)
            self._engine.reading -= files
            pairs = zip(found, job.found, strict=True)
            sound = [(loot, data) for loot, data in pairs if not isinstance(data, PenstockError)]
            messages = self._steals.move(stream, message.shard, sound)
            self.moved += messages
            self._say(node, Given(stream, messages))

        job.then = read
        self._reading.add(stream)
        self._engine.reading.update(files)
        self._engine.jobs.append(job)

    def _find(self, stream: int, wanted: int) -> list[Loot]:
        view = self._fabric.queues.views.get(stream)
        if view is None or not self._steals.may_leave(stream):
            return []
        most = most_given(view.ready(2 * MOST_WANTED), wanted, view.consumers())
        found = list(islice(self._steals.lying(stream), MOST_BATCHES))
        lying = (
            Lying(loot.span, loot.stored.length, loot.stored.arrived_us) for loot in found
        )
        return found[: chosen(lying, most, self._kernel.now_us)]

    # --- other nodes -----------------------------------------------------------------------

    def receive(self, node: int, message: StealMessage, now_us: int) -> None:
        """A message of another node, or of this one to itself."""
        self._kernel.now_us = now_us
        if isinstance(message, Wanted):
            self._wanted(message.stream, node)
        elif isinstance(message, Offer):
            self._offered(message.stream, message.node)
        elif isinstance(message, Given):
            self._given(message.stream, node, message.messages)
        elif 0 <= message.shard < len(self._kernel.shards):
            self._asked(node, message)
        else:
            raise ProtocolError(f"there are {len(self._kernel.shards)} shards")

    def _say(self, node: int, message: StealMessage) -> None:
        if node == self._node:
            self.receive(node, message, self._kernel.now_us)
        else:
            self._send(node, message)
