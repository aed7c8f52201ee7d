"""The blocking client against nodes that move, die and fall silent."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
from tests.client.fake_cluster import SHARDS, FakeCluster, hurry
from tests.node.test_cluster import wait_for

import penstock
from penstock.client.consume import ConsumeState
from penstock.client.inputs import addresses_of
from penstock.client.producer import shard_of
from penstock.errors import (
    ClosedError,
    DeadlineError,
    ForgottenError,
    InvalidError,
    NotFoundError,
)
from penstock.wire.frames import Flag, Verb


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    hurry(monkeypatch)
    made = FakeCluster()
    yield made
    made.close()


@pytest.fixture
def fabric(cluster: FakeCluster) -> Iterator[penstock.Fabric]:
    with penstock.connect(cluster.url, timeout=10.0) as connected:
        yield connected


class Meanwhile:
    """Does something again and again in another thread, until the block is left."""

    def __init__(self, act: Callable[[int], None], pause_s: float) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, args=(act, pause_s), daemon=True)

    def _work(self, act: Callable[[int], None], pause_s: float) -> None:
        turn = 0
        while not self._stop.wait(pause_s):
            act(turn)
            turn += 1

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def values(count: int) -> list[bytes]:
    return [b"%d" % each for each in range(count)]


def stored(cluster: FakeCluster) -> int:
    kernel = cluster.inline.engine.fabric.kernel
    return sum(stream.totals.messages for stream in kernel.streams.values())


def test_pushes_go_to_the_owners_of_their_shards(cluster, fabric):
    queue = fabric.queue("q")
    receipts = [queue.push(b"x") for _ in range(256)]
    assert {each.shard for each in receipts} == set(range(SHARDS))
    counts = cluster.count(Verb.PUSH)
    assert sum(counts.values()) == 256
    assert min(counts.values()) >= 5 * 256 // SHARDS - 16
    assert stored(cluster) == 256


def test_what_has_moved_is_sent_to_the_new_owner_under_the_same_number(cluster, fabric):
    queue = fabric.queue("q")
    queue.push_many(values(64), batch=1)
    cluster.move(range(SHARDS), to=2)
    receipts = queue.push_many(values(64), batch=1)
    assert receipts.count == 64
    assert not any(each.duplicate for each in receipts)
    assert stored(cluster) == 128


def test_order_is_kept_while_partitions_move(cluster, fabric):
    topic = fabric.topic("t", partitions=2)
    with Meanwhile(lambda turn: cluster.move(range(SHARDS), turn % 3 + 1), 0.02):
        for start in range(0, 600, 200):
            topic.publish_many(values(600)[start : start + 200], partition=1, batch=2)
    found = [value for batch in topic.read(1) for value in batch.values]
    assert found == values(600)


def test_a_lost_answer_is_asked_for_again_and_nothing_is_stored_twice(cluster, fabric):
    queue = fabric.queue("q")

    def lose(turn: int) -> None:
        cluster.nodes[turn % 3 + 1].lose_answers = 1
        cluster.move([turn % SHARDS], turn % 2 + 1)

    with Meanwhile(lose, 0.05):
        receipts = queue.push_many(values(2000), batch=1)
    for node in cluster.nodes.values():
        node.lose_answers = 0
    assert receipts.count == 2000
    assert stored(cluster) == 2000
    assert any(flags & Flag.RESEND for node in cluster.nodes.values() for _, flags in node.seen)


@pytest.mark.parametrize("what", ["push", "append", "commit"])
def test_what_no_node_may_recognise_again_is_not_sent_again(cluster, fabric, monkeypatch, what):
    monkeypatch.setattr("penstock.client.aio_lines.FORGOTTEN_AFTER_S", 0.0)
    queue, table = fabric.queue("q"), fabric.table("kv")
    transaction = fabric.transaction()
    transaction.push(queue, b"once")
    acts = {
        "push": lambda: queue.push(b"once"),
        "append": lambda: table.append("k", b"once"),
        "commit": transaction.commit,
    }
    for node in cluster.nodes.values():
        node.lose_answers = 1
    with pytest.raises(ForgottenError):
        acts[what]()
    for node in cluster.nodes.values():
        node.lose_answers = 0
    if what == "append":
        assert table.get("k") == b"once"
    else:
        assert stored(cluster) == 1


def test_a_node_dies_and_another_takes_over(cluster, fabric):
    queue = fabric.queue("q")
    queue.push_many(values(50), batch=1)
    threading.Timer(0.05, lambda: cluster.fail_over(3, to=1)).start()
    receipts = queue.push_many(values(1500), batch=1)
    assert receipts.count == 1500
    assert stored(cluster) == 1550


def test_a_node_that_comes_back_is_waited_for(cluster, fabric):
    topic = fabric.topic("t", partitions=1)
    owner = cluster.map.owner_of(topic.info.placement[0])
    topic.publish(b"before")
    cluster.nodes[owner].kill()
    threading.Timer(0.3, cluster.nodes[owner].revive).start()
    topic.publish_many(values(20), batch=1)
    found = [value for batch in topic.read(0) for value in batch.values]
    assert found == [b"before", *values(20)]


def test_a_silent_node_is_left_when_another_has_taken_over(cluster, fabric):
    queue = fabric.queue("q", ordered=True)
    owner = cluster.map.owner_of(shard_of(b"q", SHARDS))
    queue.push(b"before")
    cluster.nodes[owner].silent = True
    threading.Timer(0.2, lambda: cluster.move(range(SHARDS), owner % 3 + 1)).start()
    assert queue.push(b"after").count == 1
    assert stored(cluster) == 2


def test_a_pop_leaves_a_silent_node_when_others_have_taken_over(cluster, fabric):
    queue = fabric.queue("q")
    queue.push_many(values(5), batch=1)
    assert queue.pop() is not None
    silent = fabric._routes.pop_order(queue.info.id)[0]
    cluster.nodes[silent].silent = True
    cluster.move(cluster.owned(silent), silent % 3 + 1)
    assert len(queue.pop_many(5)) == 4


def test_deadlines_hold_for_calls_to_all_nodes(cluster):
    with penstock.connect(cluster.url, timeout=0.4) as fabric:
        queue = fabric.queue("q")
        assert queue.stats()["ready"] == 0
        for act in (lambda: setattr(cluster.nodes[2], "silent", True), cluster.nodes[2].kill):
            act()
            began = time.monotonic()
            with pytest.raises(DeadlineError):
                queue.stats()
            assert time.monotonic() - began < 5.0


def test_deadlines_hold_when_nobody_owns_a_shard(cluster):
    with penstock.connect(cluster.url, timeout=0.4) as fabric:
        queue = fabric.queue("q", ordered=True)
        owner = cluster.map.owner_of(shard_of(b"q", SHARDS))
        cluster.nodes[owner].kill()
        began = time.monotonic()
        with pytest.raises(DeadlineError):
            queue.push(b"x")
        assert time.monotonic() - began < 5.0


def test_the_first_seed_that_answers_counts(cluster):
    cluster.nodes[1].kill()
    cluster.move(cluster.owned(1), to=2)
    with penstock.connect(cluster.url, timeout=5.0) as fabric:
        assert fabric.queue("q").push_many(values(40), batch=1).count == 40


def test_no_seed_answers(cluster):
    for node in cluster.nodes.values():
        node.kill()
    with pytest.raises(DeadlineError):
        penstock.connect(cluster.url, timeout=0.3)


def test_a_pop_finds_the_node_that_has_messages_and_goes_there_first_next_time(cluster, fabric):
    queue = fabric.queue("q")
    queue.push_many(values(3), batch=1)
    for number, node in cluster.nodes.items():
        node.has_messages = number == 3
    first = queue.pop()
    assert first is not None
    asked = cluster.count(Verb.POP)
    assert queue.pop() is not None
    assert cluster.count(Verb.POP) == {**asked, 3: asked[3] + 1}
    assert len(queue.peek(5)) == 1


def test_a_pop_waits_on_all_nodes_at_once(cluster, fabric):
    queue = fabric.queue("q")
    assert queue.pop() is None
    for number, node in cluster.nodes.items():
        node.has_messages = number == 2
    timer = threading.Timer(0.2, lambda: queue.push(b"x"))
    timer.start()
    message = queue.pop(timeout=5.0)
    assert message is not None
    message.ack(wait=True)
    wait_for(lambda: cluster.count(Verb.CANCEL)[1] == 1)  # which nobody answers: it may come later
    assert queue.pop(timeout=0.05) is None


def test_a_waiting_pop_hears_of_a_new_owner(cluster, fabric):
    queue = fabric.queue("q")
    cluster.move(range(SHARDS), to=1)
    queue.push(b"x")
    for number, node in cluster.nodes.items():
        node.has_messages = number == 2
    threading.Timer(0.2, lambda: cluster.move(range(SHARDS), to=2)).start()
    message = queue.pop(timeout=8.0)
    assert message is not None


def test_acks_go_where_the_shard_is_now(cluster, fabric):
    queue = fabric.queue("q")
    queue.push_many(values(100), batch=1)
    messages = queue.pop_many()
    cluster.move(range(SHARDS), to=3)
    for message in messages[:50]:
        message.ack()
    queue.flush()
    queue.ack(messages[50:], wait=True)
    assert queue.refused == 0
    assert stored(cluster) == 0


def test_acks_survive_lost_connections(cluster, fabric):
    queue = fabric.queue("q")
    queue.push_many(values(400), batch=1)
    messages = queue.pop_many()

    def lose(turn: int) -> None:
        cluster.nodes[turn % 3 + 1].break_connections()
        cluster.move([turn % SHARDS], turn % 3 + 1)

    with Meanwhile(lose, 0.03):
        for at in range(0, 400, 10):
            queue.ack(messages[at : at + 10], wait=True)
    assert queue.refused == 0
    assert stored(cluster) == 0


def test_a_consumer_gets_everything_from_all_nodes(cluster, fabric):
    queue = fabric.queue("q")
    queue.push_many(values(500), batch=5)
    seen = []
    for message in queue.consume(idle_timeout=0.3):
        seen.append(message.value)
        message.ack()
    assert sorted(seen) == sorted(values(500))
    queue.flush()
    assert (queue.refused, stored(cluster)) == (0, 0)


def test_a_consumer_takes_no_more_than_it_wants(cluster, fabric):
    queue = fabric.queue("q")
    queue.push_many(values(50), batch=1)
    with queue.consume(max_messages=7, prefetch=4) as consumer:
        for message in consumer:
            message.ack()
    assert stored(cluster) == 43
    assert len(queue.pop_many()) == 43


def test_one_node_with_messages_is_enough(cluster, fabric):
    queue = fabric.queue("q")
    for number, node in cluster.nodes.items():
        node.has_messages = number == 2
    queue.push_many(values(300), batch=3)
    with queue.consume(max_messages=300, prefetch=8, idle_timeout=3.0) as consumer:
        assert len([message.ack() for message in consumer]) == 300


def test_a_consumer_that_grows_slow_is_not_left_without_credit(cluster, fabric, monkeypatch):
    """What it holds at nodes without messages must not keep it from the one that has some."""
    monkeypatch.setattr("penstock.client.aio_watch._TICK_S", 1000.0)
    monkeypatch.setattr("penstock.client.consume._QUICK_S", 1000.0)
    queue = fabric.queue("q")
    for number, node in cluster.nodes.items():
        node.has_messages = number == 2
    queue.push_many(values(200), batch=1)
    seen = 0
    with queue.consume(max_messages=200, idle_timeout=3.0) as consumer:
        for message in consumer:
            message.ack()
            seen += 1
            if seen == 60:
                monkeypatch.setattr("penstock.client.consume._QUICK_S", -1.0)
                monkeypatch.setattr("penstock.client.consume._SLOW_S", -1.0)
    assert seen == 200


def test_a_consumer_follows_the_map(cluster, fabric):
    cluster.move(range(SHARDS), to=1)
    queue = fabric.queue("q")
    cluster.nodes[2].has_messages = False
    cluster.nodes[3].has_messages = False
    queue.push_many(values(10), batch=1)
    seen = 0
    with queue.consume(idle_timeout=6.0, max_messages=30) as consumer:
        for message in consumer:
            message.ack()
            seen += 1
            if seen == 10:
                cluster.nodes[3].has_messages = True
                cluster.fail_over(1, to=3)
                queue.push_many(values(20), batch=1)
    assert seen == 30


def test_a_queue_that_was_deleted_ends_its_consumers(cluster, fabric):
    queue = fabric.queue("q")
    threading.Timer(0.2, queue.delete).start()
    with pytest.raises(NotFoundError), queue.consume(idle_timeout=9.0) as consumer:
        next(consumer)


def test_a_table_is_read_as_a_whole(cluster, fabric):
    table = fabric.table("t")
    for key in values(60):
        table.put(key, b"v" + key)
    cluster.move(range(4), to=2)
    assert list(table.items()) == [(key, b"v" + key) for key in sorted(values(60))]
    assert list(table.keys("1")) == sorted(key for key in values(60) if key.startswith(b"1"))
    assert table.get("7") == b"v7"
    assert table.delete("7")
    assert table.get("7") is None


def test_a_watch_sees_changes_on_all_nodes(cluster, fabric):
    table = fabric.table("t")
    with table.watch() as watcher:
        table.put("k", b"v")
        seen = [next(watcher) for _ in range(3)]  # each node stands before the same engine
    assert {(each.key, each.value) for each in seen} == {(b"k", b"v")}


def test_topics_in_a_cluster(cluster, fabric):
    topic = fabric.topic("t", partitions=6)
    topic.publish_many(values(60), keys=values(60))
    bounds = topic.offsets()
    assert sum(end for _, end in bounds) == 60
    cluster.move(range(SHARDS), to=2)
    topic.commit("g", {partition: end for partition, (_, end) in enumerate(bounds)})
    assert topic.committed("g") == {at: end for at, (_, end) in enumerate(bounds)}
    found = [message.value for message in topic.subscribe(idle_timeout=0.3)]
    assert sorted(found) == sorted(values(60))
    claim = topic.claim(1, "g", "me", 30)
    assert topic.unclaim(1, "g", claim.token)
    producer = topic.producer("p", 2)
    assert producer.push(b"x").partition == 2


def test_commits_are_split_by_node(cluster, fabric):
    topic = fabric.topic("t", partitions=6)
    topic.publish_many(values(60), keys=values(60))
    offsets = {partition: end for partition, (_, end) in enumerate(topic.offsets())}
    topic.commit("g", offsets)
    assert topic.committed("g") == offsets
    cluster.move(range(0, SHARDS, 2), to=2)
    assert topic.committed("g") == offsets
    assert topic.offset_at(0.0) == [0] * 6
    assert [each["end"] for each in topic.stats()["partitions"]] == list(offsets.values())


def test_queue_calls_are_split_and_joined(cluster, fabric):
    queue = fabric.queue("q", max_deliveries=1)
    for key in ("a", "b", "c", "d"):
        queue.push(b"x", id=key, hold=True)
    assert queue.release(["d", "zz", "a"]) == ["released", "unknown", "released"]
    assert queue.release(["b", "a"]) == ["released", "done"]
    for message in queue.pop_many():
        message.nack()
    queue.flush()
    assert queue.dead.redrive(2) == 2
    assert queue.purge() == 2
    assert queue.dead.purge() == 1
    assert fabric.stats()["node"] == "cluster"
    assert len(fabric.stats()["nodes"]) == 3


def test_transactions_go_to_the_shard_of_their_input(cluster, fabric):
    source, target, table = fabric.queue("in"), fabric.queue("out"), fabric.table("t")
    source.push(b"x")
    message = source.pop()
    assert message is not None
    home = message._granted.shard
    keys = {cluster.map.owner_of(shard_of(key, SHARDS)): key for key in values(30)}
    with fabric.transaction() as transaction:
        transaction.ack(message)
        transaction.put(table, keys[cluster.map.owner_of(home) % 3 + 1], b"v")
        transaction.push_many(target, values(5))
        transaction.push(target, b"one")
    assert table.get(keys[cluster.map.owner_of(home) % 3 + 1]) == b"v"
    pushed = target.pop_many()
    assert len(pushed) == 6
    assert {each._granted.shard for each in pushed} == {home}, "what may be anywhere stays there"


def test_sessions(fabric):
    table = fabric.table("t")
    with fabric.session() as session:
        table.put("k", b"v", session=session)
        assert table.get("k") == b"v"
    assert table.get("k") is None


def test_threads_share_a_cluster(cluster, fabric):
    queue = fabric.queue("q")
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for each in values(50):
                queue.push(each)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    with Meanwhile(lambda turn: cluster.move(range(8), turn % 3 + 1), 0.02):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == []
    assert stored(cluster) == 200


def test_values_may_come_from_the_fabric_itself(cluster, fabric):
    source, target = fabric.queue("in"), fabric.queue("out")
    source.push_many(values(30), batch=1)
    moved = target.push_many(
        (message.value for message in source.consume(idle_timeout=0.3)), batch=4
    )
    assert moved.count == 30


def test_a_closed_fabric_says_so(cluster):
    fabric = penstock.connect(cluster.url)
    queue = fabric.queue("q")
    fabric.close()
    with pytest.raises(ClosedError):
        queue.push(b"x")
    fabric.close()


def test_several_addresses():
    found = addresses_of("penstock://a:1,b:2, c")
    assert found == [("a", 1), ("b", 2), ("c", 7411)]
    assert addresses_of("a:1,[::1]:2") == [("a", 1), ("::1", 2)]
    with pytest.raises(InvalidError):
        addresses_of("a:1,,b")


def test_the_last_messages_do_not_come_one_at_a_time(cluster, fabric, monkeypatch):
    """A consumer of a bounded number has given all its credit away, most of it where no messages
    are: the node that has them is told often enough, and for enough of them."""
    told = []
    credit = ConsumeState.credit

    def counted(state):
        given = credit(state)
        told.extend([given] if given else [])
        return given

    monkeypatch.setattr(ConsumeState, "credit", counted)
    queue = fabric.queue("q")
    for number, node in cluster.nodes.items():
        node.has_messages = number == 2
    queue.push_many(values(600), batch=3)
    with queue.consume(max_messages=600, prefetch=60, idle_timeout=3.0) as consumer:
        assert len([message.ack() for message in consumer]) == 600
    assert len(told) < 150


def test_claims_of_nodes_that_do_not_answer_are_left_out(cluster, fabric):
    topic = fabric.topic("t", partitions=6)
    tokens = {each: topic.claim(each, "g", "me", 30).token for each in range(6)}
    away = {each for each in range(6) if topic.info.placement[each] in cluster.owned(2)}
    assert 0 < len(away) < 6
    cluster.nodes[2].silent = True
    there = {each: True for each in range(6) if each not in away}
    assert topic.renew("g", "me", tokens, within=0.3) == there
    assert set(topic.claims("g", within=0.3)) == set(there)
    assert set(topic.claims("g", states=True, within=0.3)) == set(there)
    cluster.nodes[2].kill()
    assert topic.renew("g", "me", tokens, within=0.3) == there
    cluster.move(cluster.owned(2), to=3)
    assert topic.renew("g", "me", tokens) == dict.fromkeys(range(6), True)
    assert [each.owner for each in topic.claims("g").values()] == ["me"] * 6
    fabric.close()
    with pytest.raises(ClosedError):
        topic.claims("g", within=0.3)
