"""Sessions of a cluster: their entries go when they end, in whatever shard, and only then."""

from __future__ import annotations

from contextlib import suppress

import msgspec
import pytest
from tests.cluster.outbox.fabric import SHARDS, Fabric, place_of

from penstock.core.fabric import Fabric as Core
from penstock.core.records import Written
from penstock.errors import NotFoundError
from penstock.wire import messages as m
from penstock.wire.sessions import home_of

TTL_MS = 3_000


class Client:
    """Opens sessions, writes entries, and keeps what it has not given up."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self.table = fabric.table("t")
        self._sequence = 0

    def open(self, shard: int, ttl_ms: int = TTL_MS) -> int:
        return int(msgspec.msgpack.decode(self.fabric.ask(shard, m.SessionOpen(ttl_ms, shard))))

    def keep(self, session: int) -> bool:
        home = home_of(session)
        assert home is not None
        return bool(msgspec.msgpack.decode(self.fabric.ask(home, m.SessionKeep(session))))

    def close(self, session: int) -> bool:
        home = home_of(session)
        assert home is not None
        return bool(msgspec.msgpack.decode(self.fabric.ask(home, m.SessionClose(session))))

    def put(self, key: bytes, session: int) -> None:
        self._sequence += 1
        call = m.Put(
            self.table, key, b"v", session=session, producer=9000 + self._sequence, sequence=0
        )
        self.fabric.ask(place_of(key), call)

    def has(self, key: bytes) -> bool:
        return self.fabric.get(self.table, key) is not None

    def keep_for(self, session: int, span_us: int) -> None:
        end_us = self.fabric.now_us + span_us
        while self.fabric.now_us < end_us:
            assert self.keep(session), "it was kept"
            self.fabric.run(TTL_MS * 1000 // 4)


def keys_of(fabric: Fabric) -> list[bytes]:
    """One of every shard."""
    return [fabric.key_in(shard) for shard in range(SHARDS)]


def test_entries_of_all_shards_go_when_it_is_closed():
    fabric = Fabric()
    client = Client(fabric)
    session, other = client.open(fabric.shard_of(1)), client.open(fabric.shard_of(2))
    keys = keys_of(fabric)
    for key in keys:
        client.put(key, session)
        client.put(key + b"-x", other)
    assert all(client.has(key) for key in keys)
    assert client.close(session)
    assert not client.close(session)
    assert client.keep(other)
    fabric.calm()
    assert not any(client.has(key) for key in keys)
    with pytest.raises(NotFoundError):
        client.put(keys[0], session)
    assert not client.keep(session)


def test_it_ends_when_nobody_keeps_it_and_not_before():
    fabric = Fabric()
    client = Client(fabric)
    kept, left = client.open(fabric.shard_of(1)), client.open(fabric.shard_of(1))
    keys = keys_of(fabric)
    for key in keys[::2]:
        client.put(key, kept)
    for key in keys[1::2]:
        client.put(key, left)
    client.keep_for(kept, 2 * TTL_MS * 1000)
    assert all(client.has(key) for key in keys[::2])
    assert not any(client.has(key) for key in keys[1::2])
    assert not client.keep(left)


def test_it_lives_on_when_its_home_dies_and_time_starts_anew():
    fabric = Fabric()
    client = Client(fabric)
    home = fabric.shard_of(1)
    session = client.open(home)
    keys = keys_of(fabric)
    for key in keys:
        client.put(key, session)
    fabric.run(TTL_MS * 700)
    fabric.kill(1)
    assert client.keep(session)
    fabric.run(TTL_MS * 500)
    assert client.keep(session)
    assert all(client.has(key) for key in keys)
    fabric.run(2 * TTL_MS * 1000)
    fabric.calm()
    assert not any(client.has(key) for key in keys)


def test_a_shard_that_cannot_be_reached_is_told_later():
    fabric = Fabric()
    client = Client(fabric)
    session = client.open(fabric.shard_of(1))
    keys = [fabric.key_in(fabric.shard_of(node)) for node in (1, 2, 3)]
    for key in keys:
        client.put(key, session)
    fabric.kill(2)
    assert client.close(session)
    fabric.calm()
    assert not any(client.has(key) for key in keys)


def test_a_write_whose_session_is_cut_off_is_answered_at_once():
    fabric = Fabric()
    client = Client(fabric)
    session, key = client.open(fabric.shard_of(1), 60_000), fabric.key_in(fabric.shard_of(2))
    answers: list[bytes | None] = []
    put = m.Put(client.table, key, b"v", session=session, producer=77, sequence=0)
    fabric.send_call(2, put, answers.append)
    while not fabric.member(2).engine.fabric.sessions.tickets._waiting:
        fabric.run(20)
    fabric.part((1, 2))
    fabric.run(20_000)
    assert len(answers) == 1
    fabric.part()
    fabric.ask(place_of(key), put)
    assert client.has(key)
    assert client.close(session)
    fabric.calm()
    assert not client.has(key)


QUICK = range(2, 16, 6)
STEPS = [pytest.param(n, marks=[] if n in QUICK else [pytest.mark.slow]) for n in range(16)]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("victim", [1, 2])
def test_no_entry_outlives_its_session_whoever_dies(step: int, victim: int):
    """The session ends while an entry is on its way into it, and an owner dies meanwhile."""
    fabric = Fabric(step)
    client = Client(fabric)
    home, away = fabric.shard_of(1), fabric.shard_of(2)
    session, key = client.open(home, 60_000), fabric.key_in(away)
    answers: list[bytes | None] = []
    put = m.Put(client.table, key, b"v", session=session, producer=77, sequence=0)
    fabric.send_call(2, put, answers.append)
    fabric.run(step * 700)
    fabric.send_call(1, m.SessionClose(session), answers.append)
    fabric.after(fabric.random.randint(0, 12_000), lambda: fabric.kill(victim))
    fabric.run(4_000_000)
    client.close(session)
    with suppress(NotFoundError):  # if it was written before the end, the answer is that it was
        fabric.ask(away, put)
    fabric.calm()
    assert not client.has(key)
    assert not client.keep(session)


def test_what_a_restart_forgets_is_told_again():
    fabric = Fabric()
    client = Client(fabric)
    session = client.open(fabric.shard_of(1), 60_000)
    key = fabric.key_in(fabric.shard_of(2))
    client.put(key, session)
    for number in (1, 2, 3):
        fabric.lose_power(number)
    fabric.calm()
    fabric.run(10_000_000)
    assert client.has(key)
    client.put(key + b"-again", session)
    assert client.close(session)
    fabric.calm()
    assert not client.has(key)
    assert not client.has(key + b"-again")


@pytest.mark.parametrize("known", [True, False])
def test_entries_of_a_node_that_stood_alone_go_unless_it_still_has_the_session(known: bool):
    core = Core(2, 0)
    core.control.adopt(m.StreamInfo(3, "table", "t", "default", {"durability": "synced"}))
    if known:
        core.tables.began(5, 1_000_000)
    core.kernel.shared = True
    shard = core.kernel.shards[0]
    core.end_shard(shard)
    shard.noted(Written(3, b"k", b"v", session=5), 1, 0)
    core.begin_shard(shard, 1, 1)
    assert (b"k" in shard.tables[3].cells) == known
