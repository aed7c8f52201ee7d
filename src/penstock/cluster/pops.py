"""Pops: to which node a consumer goes next, and what the owner of a queue tells it."""

from __future__ import annotations

from collections.abc import Container, Iterable
from itertools import islice
from typing import NamedTuple

import xxhash

from penstock.errors import InvalidError, LimitError

MAX_LISTED = 64  # nodes in one answer of an owner
MAX_WAITING = 100_000  # consumers that an owner remembers
_NEVER = -1


def list_shard(stream: int, shards: int) -> int:
    """The shard whose owner keeps the list of a queue."""
    return xxhash.xxh3_64_intdigest(stream.to_bytes(8, "little")) % shards


class Hint(NamedTuple):
    """A node and its fill: how often its part of the queue went from empty to not empty.

    A node numbers its fills for ever, also across restarts (its incarnation in the high bits). So
    what is said about a fill stays true, and whoever hears of two knows which is later."""

    node: int
    fill: int


class Pop(NamedTuple):
    """Pop from this node next; this fill of it was heard of."""

    node: int
    fill: int


class Ask(NamedTuple):
    """Ask the owner of the queue, and tell it what was found empty."""

    emptied: tuple[Hint, ...]


class Park(NamedTuple):
    """All is empty as far as is known: wait until the owner lists a node."""


class PopRoute:
    """Where one consumer looks for the messages of one queue: on its local node first, then on the
    last node that had some, then on those that the queue's owner lists.

    `next` says what to do; it changes nothing. The answer is told by one of the four events. A
    node that was empty is not visited again before a later fill of it is heard of. A local node
    may tell of its fills directly, by `listed`: then it comes first again at once. Several pops
    may follow one route at the same time, each for itself.
    """

    def __init__(self, local: int | None = None) -> None:
        self._local = local
        self._last: int | None = None
        # Nodes that may have messages, by the fill that was heard of; and the fills that are over.
        self._open: dict[int, int] = {} if local is None else {local: 0}
        self._emptied: dict[int, int] = {}
        self._untold: dict[int, int] = {}  # of those, what the owner may not know
        self._parked = False

    def next(self) -> Pop | Ask | Park:
        """What to do next."""
        for node in (self._local, self._last, next(iter(self._open), None)):
            if node is not None and node in self._open:
                return Pop(node, self._open[node])
        if self._parked:
            return Park()
        return Ask(tuple(Hint(node, fill) for node, fill in self._untold.items()))

    def found(self, node: int, messages: int) -> None:
        """A node gave messages: it is asked again. Of which fill they were is not known: nothing
        may be said to be over later that was not heard of, as that fill may be yet to come."""
        if messages < 1:
            raise InvalidError(f"{messages} messages are none: the node is empty")
        self._last = node
        self._parked = False
        self._open.setdefault(node, self._emptied.get(node, 0))

    def empty(self, node: int, fill: int) -> None:
        """A node had none: this fill is over. It is the one that was heard of when the node was
        asked, or a later one that the node itself named (0: there was none ever)."""
        fill = max(fill, self._emptied.get(node, fill))
        if self._open.get(node, fill + 1) <= fill:
            del self._open[node]
        self._emptied[node] = self._untold[node] = fill
        self._parked = False

    def unreachable(self, node: int) -> None:
        """A node could not be asked. That says nothing about its messages: it is visited again when
        the owner lists it again."""
        self._open.pop(node, None)
        self._parked = False

    def listed(self, hints: Iterable[Hint]) -> None:
        """What the owner answered, or told later to a consumer that is parked: nodes that have
        messages as far as it knows. None: it has nobody to name, and will tell."""
        self._untold = {}  # what the owner still has wrong is in its answer
        for node, fill in hints:
            over = self._emptied.get(node, _NEVER)
            if fill > over:
                self._open[node] = max(fill, self._open.get(node, fill))
            else:
                self._untold[node] = over
        self._parked = not self._open and not self._untold


class QueueOwner:
    """Which nodes have messages of a queue, on the one node that keeps the list.

    Nodes send notices when their part becomes non-empty or empty; no push or pop waits for them,
    and they may come late, twice and in any order. Consumers that ask say what they found empty,
    which counts like a notice: so nobody is sent where somebody just was for nothing. When a node
    has messages, as many consumers are told as there are messages, not all: a single message would
    have a thousand of them run for it.

    `unheard` are nodes that may have messages without its having heard: all of them, for an owner
    that takes over from another.
    """

    def __init__(self, unheard: Iterable[int] = ()) -> None:
        self._full = dict.fromkeys(unheard, 0)  # by their fill; whom to name first comes first
        self._emptied: dict[int, int] = {}
        self._waiting: dict[int, None] = {}  # a dict for a set, whose order is always the same
        self._told = 0  # how many were told at once, last

    @property
    def owing(self) -> bool:
        """Whether consumers wait although a node is listed: see `more`."""
        return bool(self._full and self._waiting)

    def full_nodes(self) -> list[int]:
        """Nodes that said that they have messages."""
        return [node for node, fill in self._full.items() if fill]

    def filled(self, node: int, fill: int, messages: int = MAX_WAITING) -> list[int]:
        """A node's part became non-empty, with so many messages. As many consumers to tell, who
        wait no more: those that have waited longest."""
        if fill <= max(self._emptied.get(node, _NEVER), self._full.get(node, _NEVER)):
            return []
        self._full[node] = fill
        return self._tell(messages)

    def more(self) -> list[int]:
        """Further consumers to tell, if some still wait although a node is listed: those that were
        told may be gone, or there is more by now than there was. Call it after a moment, again and
        again: each time they are twice as many."""
        return self._tell(2 * self._told) if self._full else []

    def _tell(self, count: int) -> list[int]:
        woken = list(islice(self._waiting, max(count, 1)))
        for consumer in woken:
            del self._waiting[consumer]
        self._told = len(woken)
        return woken

    def emptied(self, node: int, fill: int) -> None:
        """A node's part became empty: this fill is over."""
        self._emptied[node] = max(fill, self._emptied.get(node, fill))
        if self._full.get(node, fill + 1) <= fill:
            del self._full[node]

    def ask(self, consumer: int, emptied: Iterable[Hint] = ()) -> tuple[Hint, ...]:
        """Nodes that have messages, each time another first, so that consumers spread. None: the
        consumer waits, until `filled` names it or `leave`. LimitError if too many wait."""
        for node, fill in emptied:
            self.emptied(node, fill)
        if not self._full:
            if len(self._waiting) >= MAX_WAITING and consumer not in self._waiting:
                raise LimitError(f"{MAX_WAITING:,} consumers wait for messages of one queue")
            self._waiting[consumer] = None
            return ()
        hints = tuple(Hint(node, fill) for node, fill in islice(self._full.items(), MAX_LISTED))
        self._full[hints[0].node] = self._full.pop(hints[0].node)
        return hints

    def leave(self, consumer: int) -> None:
        """A consumer waits no more."""
        self._waiting.pop(consumer, None)

    def keep(self, nodes: Container[int]) -> None:
        """Forgets all other nodes: they own nothing any more. Whatever is heard of one later counts
        as new."""
        for node in {*self._full, *self._emptied}:
            if node not in nodes:
                self._full.pop(node, None)
                self._emptied.pop(node, None)
