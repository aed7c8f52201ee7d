"""The owner's side of a shard, step by step."""

from __future__ import annotations

from penstock.cluster.commands import GrowInSync
from penstock.cluster.map import ShardPlace
from penstock.cluster.replication.messages import Accepted, Confirm, Confirmed, Position
from penstock.cluster.replication.owner import Out, Owned
from penstock.core.epochs import Epochs
from penstock.core.records import Kind
from penstock.core.shard import CONTROL
from penstock.wire.durability import Durability
from penstock.wire.entry import Entry


def barrier() -> Entry:
    return Entry(CONTROL, Kind.BARRIER, 0, 0, b"", None, Durability.REPLICATED, None)


def owner_with_a_follower_that_has_all() -> tuple[Owned, Out]:
    """Node 1 owns the shard; node 2 is in sync and gone, node 3 has caught up."""
    out = Out()
    owned = Owned(0, 2, 1, 0, Epochs(), out)
    owned.linked(3, 0)
    owned.placed(ShardPlace(2, (1, 2, 3), (1,), 0, 1), 0, (1, 3))
    owned.positioned(3, Position(0, 2, 1, 0, 0), 0)
    owned.accepted(3, Accepted(0, 2, 1, 0, 0), 0)
    return owned, out


def confirms(out: Out) -> list[tuple[int, int]]:
    return [(node, each.number) for node, each in out.messages if isinstance(each, Confirm)]


def test_a_barrier_asks_also_who_is_about_to_be_in_sync():
    owned, out = owner_with_a_follower_that_has_all()
    (grow,) = out.commands
    assert isinstance(grow, GrowInSync)
    waits = barrier()
    owned.barrier(waits)
    assert confirms(out) == [(3, 1)]
    owned.placed(ShardPlace(2, (1, 2, 3), (1, 3), 0, 2), 0, (1, 3))
    assert out.committed == []
    owned.confirmed(3, Confirmed(0, 2, 1))
    assert out.committed == [waits]


def test_who_comes_into_the_set_later_is_asked_what_barriers_wait_for():
    out = Out()
    owned = Owned(0, 2, 1, 0, Epochs(), out)
    owned.linked(3, 0)
    owned.placed(ShardPlace(2, (1, 2, 3), (1, 2), 0, 1), 0, (1, 2))
    owned.positioned(3, Position(0, 2, 1, 0, 0), 0)
    owned.accepted(3, Accepted(0, 2, 1, 0, 0), 0)
    waits = barrier()
    owned.barrier(waits)
    assert confirms(out) == [(2, 1)]
    owned.placed(ShardPlace(2, (1, 2, 3), (1,), 0, 2), 0, (1, 3))
    assert out.committed == [waits], "nobody else is in sync"
    waits = barrier()
    owned.barrier(waits)
    assert confirms(out)[-1] == (3, 2), "it is about to be"


def test_a_node_that_is_taken_for_down_is_proposed_once_it_is_up():
    out = Out()
    owned = Owned(0, 2, 1, 0, Epochs(), out)
    owned.linked(3, 0)
    place = ShardPlace(2, (1, 2, 3), (1,), 0, 1)
    owned.placed(place, 0, (1, 3), down={3})
    owned.positioned(3, Position(0, 2, 1, 0, 0), 0)
    owned.accepted(3, Accepted(0, 2, 1, 0, 0), 0)
    owned.tick(500_000)
    assert out.commands == []
    owned.placed(place, 0, (1, 3))
    assert out.commands == [GrowInSync(0, 2, 1, 3, 1)]
