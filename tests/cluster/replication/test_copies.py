"""Nothing acknowledged is lost, whatever breaks. Broken versions of the rules are caught."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cluster.replication.world import World

from penstock.cluster.replication.follower import Followed
from penstock.cluster.replication.messages import (
    Accepted,
    Confirm,
    Confirmed,
    Message,
    Position,
    Probe,
    Record,
    Records,
    Stale,
    pack,
    unpack,
)
from penstock.cluster.replication.owner import Out, Owned
from penstock.cluster.replication.tail import MAX_TAIL_RECORDS, Tail
from penstock.core.epochs import Epochs
from penstock.errors import ProtocolError

STEPS = 1500


def run(seed: int, steps: int = STEPS) -> World:
    world = World(seed)
    for _ in range(steps):
        world.step()
    world.heal()
    return world


@pytest.mark.parametrize("seed", range(60))
def test_nothing_acknowledged_is_lost(seed: int):
    assert run(seed).check() == []


@pytest.mark.parametrize("seed", [149, 265, 474, 578, 998, 1002])
def test_seeds_that_failed_once(seed: int):
    assert run(seed).check() == []


def test_the_runs_are_worth_something():
    worlds = [run(seed) for seed in range(20)]
    assert sum(world.promotions for world in worlds) > 20
    assert sum(len(world.acknowledged) for world in worlds) > 1000


def _no_waiting_for_new_members(owned: Owned, command: object, now_us: int) -> None:
    owned._out.commands.append(command)  # type: ignore[arg-type]


def _received_counts_as_synced(real: Callable[..., None]) -> Callable[..., None]:
    def accepted(owned: Owned, node: int, message: Accepted, now_us: int) -> None:
        real(owned, node, message._replace(synced=message.received), now_us)

    return accepted


BROKEN = {
    "new members are not waited for": (Owned, "_ask", _no_waiting_for_new_members),
    "logs always agree": (Epochs, "agrees", lambda *_: True),
    "what was received counts as synced": (
        Owned, "accepted", _received_counts_as_synced(Owned.accepted),
    ),
}  # fmt: skip


def test_an_old_owner_is_told_so_and_not_listened_to():
    out = Out()
    followed = Followed(7, 3, 5, 2, out)
    followed.probed(1, Probe(7, 2, 1))
    followed.asked(1, Confirm(7, 2, 1))
    assert followed.offered(1, Records(7, 2, 0, [Record(1, 2, 6, b"", None)])) == []
    assert out.messages == [(1, Stale(7, 3))] * 3
    assert followed.received == 5


@pytest.mark.parametrize("name", BROKEN)
def test_broken_rules_are_caught(name: str, monkeypatch: pytest.MonkeyPatch):
    owner, method, broken = BROKEN[name]
    monkeypatch.setattr(owner, method, broken)
    assert any(run(seed).check() for seed in range(300))


# --- messages ------------------------------------------------------------------------------

numbers = st.integers(0, 2**64 - 1)
shards, epochs = st.integers(0, 2**16 - 1), st.integers(0, 2**32 - 1)
records = st.builds(
    Record, st.integers(0, 255), epochs, numbers, st.binary(max_size=20),
    st.none() | st.binary(max_size=40).map(bytearray),
)  # fmt: skip
messages = (
    st.builds(Probe, shards, epochs, numbers)
    | st.builds(Position, shards, epochs, numbers, numbers, numbers)
    | st.builds(Accepted, shards, epochs, numbers, numbers, numbers)
    | st.builds(Stale, shards, epochs)
    | st.builds(Confirm, shards, epochs, numbers)
    | st.builds(Confirmed, shards, epochs, numbers)
    | st.builds(Records, shards, epochs, numbers, st.lists(records, max_size=5))
)


@given(messages)
def test_a_message_arrives_as_it_was_sent(message: Message):
    assert unpack(memoryview(b"".join(pack(message)))) == message


@given(messages, st.data())
def test_hostile_bytes_are_refused_or_read(message: Message, data: st.DataObject):
    packed = bytearray(b"".join(pack(message)))
    at = data.draw(st.integers(0, len(packed) - 1))
    packed[at] = data.draw(st.integers(0, 255))
    cut = packed[: data.draw(st.integers(0, len(packed)))]
    try:
        unpack(memoryview(cut))
    except ProtocolError:
        return


# --- the tail and the history --------------------------------------------------------------


def test_a_tail_keeps_what_is_not_committed_and_forgets_the_oldest():
    tail = Tail(5)
    for number in range(6, 6 + 2 * MAX_TAIL_RECORDS):
        tail.append(Record(1, 1, number, b"", None), committed=number - 100)
    assert tail.first > 6
    assert tail.after(5, 1 << 20) is None
    newest = tail.after(tail.last - 3, 1 << 20)
    assert newest is not None
    assert [record.number for record in newest] == [tail.last - 2, tail.last - 1, tail.last]
    stuck = Tail(0)
    for number in range(1, 3 * MAX_TAIL_RECORDS):
        stuck.append(Record(1, 1, number, b"", None), committed=0)
    assert stuck.first == 1


def test_logs_agree_up_to_the_end_of_a_common_epoch():
    history = Epochs()
    for epoch, first in ((1, 1), (3, 11), (4, 21)):
        history.began(epoch, first)
    assert history.agrees(0, 0)
    assert history.agrees(10, 1)
    assert not history.agrees(11, 1)
    assert not history.agrees(5, 2)
    assert history.agrees(11, 3)
    assert history.agrees(99, 4)
    assert not history.agrees(20, 4)
