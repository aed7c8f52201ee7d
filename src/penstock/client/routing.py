"""Which node of a cluster a request goes to: pure policy, no I/O, no clock, no chance.

The shells hold one `Routes` each. The map in it is replaced as a whole, so that any thread may
look something up while the shell takes a newer one over.
"""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from penstock.client.requests import ANY, Pending, Request, Resend
from penstock.cluster.map import ClusterMap, NodeInfo, patch, read_delta, read_map
from penstock.errors import ProtocolError

MAX_LINKS = 64  # connections to nodes, at once
MAX_STANDING = 48  # nodes that are waited on at once: the others are left for requests
FEW_NODES = 8  # so many are all asked, and all subscribed to; with more, a queue's list says which
_CALM_S = 3.0  # without trouble for so long: what comes then is a new one
_OPENED_S = 3.0  # so long a node may not have heard yet of a stream that another has created

T = TypeVar("T")


class Routes:
    """The map of a cluster, and what was learnt on the way."""

    def __init__(self, timeout_s: float, turn: int = 0) -> None:
        """`turn`: a number by chance, so that clients do not all begin at the same node."""
        self.timeout_s = timeout_s
        self.local: int | None = None  # the node that the client was told to connect to
        self.changed = Pending(0, Request(0, [], Resend.ANEW), [])  # done with the next map
        self._turn = turn
        self._map: ClusterMap | None = None
        self._placed: ClusterMap | None = None
        self._owned: dict[int, tuple[int, ...]] = {}
        self._owners: tuple[int, ...] = ()
        self._anyone = 0
        self._trouble: dict[int, tuple[int, float]] = {}  # shard or node: strikes, and when
        self._full: dict[int, int] = {}  # stream: the last node that had messages
        self._opened_s = float("-inf")

    # --- the map -----------------------------------------------------------------------------

    @property
    def map(self) -> ClusterMap:
        """The newest map that is known."""
        assert self._map is not None
        return self._map

    @property
    def placed(self) -> ClusterMap:
        """The first of the maps that say the same as the newest of who owns what, and of weights:
        there are many more maps than that."""
        assert self._placed is not None
        return self._placed

    @property
    def version(self) -> int:
        """Of the map; 0 before there is one."""
        return 0 if self._map is None else self._map.version

    def learn(self, answer: bytes) -> bool:
        """Takes in what a node answered to `ClusterMap`; whether it was news.

        ProtocolError if it is no map, ConflictError if it is a change of another version.
        """
        if not answer:
            return False
        kind, body = answer[:1], memoryview(answer)[1:]
        if kind == b"m":
            found = read_map(body)
        elif kind == b"d":
            found = patch(self.map, read_delta(body))
        else:
            raise ProtocolError(f"{kind!r} is neither a map nor a change of one")
        if not found.newer_than(self._map):
            return False
        self._adopt(found)
        return True

    def _adopt(self, found: ClusterMap) -> None:
        owned: dict[int, list[int]] = {}
        for shard, place in enumerate(found.shards):
            owned.setdefault(place.owner, []).append(shard)
        if self._placed is None or _places_of(self._placed) != _places_of(found):
            self._placed = found
        self._map = found
        self._owned = {node: tuple(shards) for node, shards in owned.items()}
        order = sorted(owned)
        at = self._turn % len(order) if order else 0
        self._owners = (*order[at:], *order[:at])
        known, self.changed = self.changed, Pending(0, Request(0, [], Resend.ANEW), [])
        known.settle(bytearray(), None)

    # --- who is asked ------------------------------------------------------------------------

    def node(self, number: int) -> NodeInfo | None:
        """A node by its id."""
        return self.map.node(number)

    def owner(self, shard: int) -> int:
        """The node that owns a shard; of `ANY`, the one that is asked for what all can answer."""
        if shard == ANY:
            return self._anyone if self._is_up(self._anyone) else self._choose(())
        return self.map.owner_of(shard)

    def owners(self) -> tuple[int, ...]:
        """All nodes that own a shard."""
        return self._owners

    def groups(self, shards: Iterable[int]) -> dict[int, list[int]]:
        """Shards by the node that owns them; nodes and shards keep the order given."""
        groups: dict[int, list[int]] = {}
        for shard in shards:
            groups.setdefault(self.map.owner_of(shard), []).append(shard)
        return groups

    def owned_by(self, node: int) -> Sequence[int]:
        """The shards that a node owns."""
        return self._owned.get(node, ())

    def avoid(self, node: int) -> None:
        """What all can answer is asked of another node from now on, if there is one."""
        if self._anyone == node or not self._anyone:
            self._choose((node,))

    def _choose(self, without: Iterable[int]) -> int:
        up = [node.id for node in self.map.nodes if self._is_up(node.id)]
        liked = [node for node in up if node not in without] or up or list(self._owners)
        self._turn += 1
        self._anyone = liked[self._turn % len(liked)]
        return self._anyone

    def _is_up(self, number: int) -> bool:
        node = self.map.node(number)
        return node is not None and node.status in ("up", "draining") and node.port > 0

    def to_ask(self, linked: Iterable[int], without: int) -> list[int]:
        """Who may know a newer map, the best first: nodes that are linked, then the others."""
        everyone = [*linked, *self._owners, *(node.id for node in self.map.nodes)]
        found = [node for node in dict.fromkeys(everyone) if node != without and self._is_up(node)]
        return [*found, without] if self._is_up(without) else found

    # --- queues ------------------------------------------------------------------------------

    def pop_order(self, stream: int) -> list[int]:
        """The nodes that may have messages of a queue: first the last that had some."""
        last = self._full.get(stream)
        if last not in self._owned:
            return list(self._owners)
        return [last, *(node for node in self._owners if node != last)]

    def had_messages(self, stream: int, node: int) -> None:
        """A pop found messages there."""
        self._full[stream] = node

    # --- trouble -----------------------------------------------------------------------------

    def strike(self, key: int, now_s: float) -> int:
        """A shard (or, below 0, a node) made trouble: how often in a row, for the pause."""
        strikes, last_s = self._trouble.get(key, (0, now_s))
        strikes = strikes + 1 if now_s - last_s < _CALM_S else 1
        self._trouble[key] = (strikes, now_s)
        return strikes

    def calm(self, key: int) -> None:
        """It made no trouble: the next is the first again."""
        self._trouble.pop(key, None)

    def opened(self, now_s: float) -> None:
        """A stream was opened: the other nodes may hear of it a little later."""
        self._opened_s = now_s

    def may_be_new(self, now_s: float) -> bool:
        """Whether a stream that a node does not know may be too new for it."""
        return now_s - self._opened_s < _OPENED_S


def _places_of(found: ClusterMap) -> tuple[list[int], list[tuple[int, int]]]:
    owners = [place.owner for place in found.shards]
    return owners, [(node.id, node.weight) for node in found.nodes]


class Line:
    """What waits for one shard: requests to be sent again, by age, before those never sent."""

    __slots__ = ("_again", "blamed", "refused", "waiting")

    def __init__(self) -> None:
        self.blamed = 0  # the node that sent something back, or was lost with it
        self.refused = False  # it sent it back
        self._again: list[Pending] = []
        self.waiting: OrderedDict[Any, Request] = OrderedDict()  # by whom to tell of the outcome

    def __bool__(self) -> bool:
        return bool(self._again or self.waiting)

    @property
    def again(self) -> bool:
        """Whether something must be sent again."""
        return bool(self._again)

    def put_back(self, pending: Pending) -> None:
        """A request was sent and must be sent again."""
        insort(self._again, pending, key=lambda each: each.order)

    def has_before(self, order: int) -> bool:
        """Whether something that was sent before this one must be sent again."""
        return bool(self._again) and self._again[0].order < order

    def take_again(self) -> Pending | None:
        """The oldest of those to be sent again."""
        return self._again.pop(0) if self._again else None

    def drop(self, pending: Pending) -> None:
        """Nobody waits for it any more."""
        if pending in self._again:
            self._again.remove(pending)

    def drop_old(self, before_s: float) -> list[Pending]:
        """Takes out what was first sent so long ago that no node may recognise it."""
        marked = [each for each in self._again if each.request.resend is Resend.MARKED]
        old = [each for each in marked if each.since_s < before_s]
        for each in old:
            self._again.remove(each)
        return old


class Pool(Generic[T]):
    """At most so many things by key; the one that was not used for longest makes room."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept: OrderedDict[int, T] = OrderedDict()

    def get(self, key: int) -> T | None:
        """What has this key; it counts as used."""
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
        return found

    def values(self) -> list[T]:
        """All of them."""
        return list(self._kept.values())

    def surplus(self, is_idle: Callable[[T], bool]) -> T | None:
        """What has to go before another can come; None if there is room.

        LookupError if there is neither room nor anything idle.
        """
        if len(self._kept) < self._limit:
            return None
        for each in self._kept.values():
            if is_idle(each):
                return each
        raise LookupError

    def add(self, key: int, value: T) -> None:
        """One more; as the last that was used."""
        self._kept[key] = value

    def remove(self, key: int, value: T) -> bool:
        """It is gone; False if it was not there, or another has taken its place."""
        if self._kept.get(key) is not value:
            return False
        del self._kept[key]
        return True


def share_credit(outstanding: Mapping[int, int], allowed: int) -> dict[int, int]:
    """How much more credit each node gets so that `allowed` is divided evenly among them.

    Every node has some, even if that is more than allowed in all: messages may be on any of them.
    """
    if not outstanding:
        return {}
    share, more = divmod(max(allowed, 0), len(outstanding))
    room = allowed - sum(max(each, 0) for each in outstanding.values())
    grants: dict[int, int] = {}
    for at, (node, has) in enumerate(outstanding.items()):
        missing = min(share + (at < more) - max(has, 0), room)
        if missing <= 0 and has <= 0:
            missing = 1
        if missing > 0:
            # What a node sent beyond its credit it counts against what follows.
            grants[node] = missing - min(has, 0)
            room -= missing
    return grants
