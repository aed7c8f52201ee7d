"""Messages that move: several places are one path or two copies, and the checker knows which."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from penstock.core.changes import Given, pack_grants
from penstock.core.records import (
    Drop,
    Forward,
    Kind,
    Outgoing,
    PushMeta,
    pack_forward,
    pack_outgoing,
    pack_push,
)
from penstock.sim.actors import Stream
from penstock.sim.check_queues import check_queue
from penstock.sim.cluster.moves import Moves
from penstock.sim.history import Delivery, History, Move, Place, Push
from penstock.sim.world import World
from penstock.wire import messages as m
from penstock.wire.entry import Entry

QUEUE = Stream("queue", "q", {"lease": 5.0})
VALUE = b"v"
STREAM = 7
LEASE_US = 5_000_000
KERNEL: Any = SimpleNamespace(streams={STREAM: SimpleNamespace(info=SimpleNamespace(name="q"))})


def seen(at: Place, *given: Delivery, moves: tuple[Move, ...] = ()) -> History:
    """A message that was stored at a place, and came to consumers."""
    history = History(deliveries=list(given), moves=list(moves))
    history.push(Push("q", VALUE, None, "line", 0, 10, stored=True, done_us=20, place=at))
    return history


def given(at: Place, grant: int, us: int, count: int = 1) -> Delivery:
    return Delivery("q", VALUE, *at, grant, count, "synced", "c", us, us + 1, LEASE_US)


def move(source: Place, target: Place, us: int = 100, granted: int = 50, epoch: int = 1) -> Move:
    return Move("q", source, target, 1, us, us + 1, granted, epoch)


def words(history: History, queue: Stream = QUEUE) -> list[str]:
    return [problem.split(":")[0] for problem in check_queue(history, queue)]


# --- the checker ---------------------------------------------------------------------------


def test_two_places_without_a_move_are_two_copies() -> None:
    assert words(seen((0, 5), given((1, 9), 60, 200))) == ["stored twice"]


def test_a_message_that_moved_is_one() -> None:
    first, second = move((0, 5), (1, 9)), move((1, 9), (2, 3), us=300)
    assert words(seen((0, 5), given((1, 9), 1, 200), moves=(first,))) == []
    assert words(seen((0, 5), given((2, 3), 1, 400), moves=(first, second))) == []


def test_a_move_of_another_message_or_queue_excuses_nothing() -> None:
    other = move((0, 5), (1, 9))
    other.queue = "other"
    for unrelated in (move((0, 6), (1, 9)), move((0, 5), (1, 8)), other):
        assert "stored twice" in words(seen((0, 5), given((1, 9), 1, 200), moves=(unrelated,)))


def test_a_message_that_arrives_twice_is_two() -> None:
    moves = (move((0, 5), (1, 9)), move((0, 5), (1, 10)))
    comes = given((1, 9), 1, 200), given((1, 10), 2, 200 + LEASE_US, count=2)
    assert words(seen((0, 5), *comes, moves=moves)) == ["stored twice"]
    assert words(seen((0, 5), comes[1], moves=moves)) == []


def test_what_has_left_is_not_delivered_where_it_was() -> None:
    left = move((0, 5), (1, 9), us=100, granted=50)
    history = seen((0, 5), given((0, 5), 51, 200), moves=(left,))
    history.trouble.power_losses.append(150)
    assert words(history) == ["delivered where it had left at 100"]


def test_what_was_given_does_not_move_unless_that_was_lost() -> None:
    left = move((0, 5), (1, 9), us=100, granted=50)
    history = seen((0, 5), given((0, 5), 50, 40), given((1, 9), 1, 200), moves=(left,))
    assert "moved at 100 though it was given" in words(history)
    history.trouble.power_losses.append(60)
    assert words(history) == []


def test_deliveries_count_along_the_path_though_grants_do_not() -> None:
    """Grants are numbered by each shard: a lower one in the new shard is the later one."""
    comes = given((0, 5), 50, 40), given((1, 9), 2, 200 + LEASE_US, 2), given((1, 9), 1, 200)
    history = seen((0, 5), *comes, moves=(move((0, 5), (1, 9)),))
    history.trouble.power_losses.append(60)
    assert words(history) == []


def test_ordered_queues_do_not_move() -> None:
    ordered = Stream("queue", "q", {"lease": 5.0, "ordered": "queue"})
    history = seen((0, 5), given((1, 9), 1, 200), moves=(move((0, 5), (1, 9)),))
    assert words(history, ordered) == ["moved out of order"]


# --- what is noted of the records ------------------------------------------------------------


def leaves(shard: int, epoch: int, number: int, *positions: int) -> Entry:
    pushes = [m.TxnPush(STREAM, 0, 1, b"") for _ in positions]
    drops = [Drop(STREAM, position, 2) for position in positions]
    record = Outgoing([1] * len(pushes), m.Transact(0, 0, shard, pushes=pushes), drops)
    return Entry(shard, Kind.OUTGOING, epoch, number, pack_outgoing(record))


def arrives(home: int, number: int, index: int, shard: int, base: int) -> Entry:
    push = pack_push(PushMeta(STREAM, 0, base, 2, 0, 0, 0))
    meta = pack_forward(Forward(home, index, number), push)
    return Entry(shard, Kind.PUSH | Kind.FORWARDED, 1, 1, meta)


def grants(shard: int, epoch: int, number: int) -> Entry:
    return Entry(shard, Kind.GRANT, epoch, 1, pack_grants(STREAM, [Given(number, 1, 1, LEASE_US)]))


def noted(*entries: Entry) -> list[tuple[Place, Place, int]]:
    moves = Moves(World(1, 100))
    for entry in entries:
        moves.logged(entry, KERNEL)
    assert all(each.queue == "q" and each.span == 2 for each in moves.done)
    return [(each.source, each.target, each.granted) for each in moves.done]


def test_a_move_is_noted_when_it_arrives() -> None:
    left = leaves(0, 1, 4, 10, 20)
    assert noted(left) == []
    assert noted(left, arrives(0, 4, 1, 1, 90)) == [((0, 20), (1, 90), 0)]


def test_grants_of_that_shard_before_it_are_noted() -> None:
    before, after = [grants(0, 1, 30), grants(1, 1, 99)], grants(0, 1, 31)
    found = noted(*before, leaves(0, 1, 4, 10), after, arrives(0, 4, 0, 1, 90))
    assert found == [((0, 10), (1, 90), 30)]


def test_a_record_that_was_lost_moves_nothing() -> None:
    """Its number is used again, by the next owner; the old one may not have noticed yet."""
    lost, kept = leaves(0, 1, 4, 10), leaves(0, 2, 4, 20)
    for entries in ([lost, kept], [kept, lost]):
        assert noted(*entries, arrives(0, 4, 0, 1, 90)) == [((0, 20), (1, 90), 0)]
    assert noted(lost, leaves(0, 2, 4), arrives(0, 4, 0, 1, 90)) == []
