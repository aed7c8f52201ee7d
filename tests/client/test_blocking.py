"""The blocking shell against a real engine in memory, with a clock that is moved by hand."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import pytest

from penstock import LeasedMessage, Refusal
from penstock.client.blocking import fabric_over
from penstock.client.push import WINDOW_BATCHES, PushRequest
from penstock.errors import (
    ConflictError,
    FencedError,
    InvalidError,
    LeaseLostError,
    LimitError,
    NotFoundError,
)


def values(messages: Iterable[LeasedMessage]) -> list[bytes]:
    return [message.value for message in messages]


def pushes_held() -> int:
    """How many are in memory, with their messages."""
    return sum(isinstance(each, PushRequest) for each in gc.get_objects())


class TestQueue:
    def test_a_message_comes_back_as_it_was_pushed(self, fabric):
        queue = fabric.queue("q")
        moment = datetime(2026, 5, 1, tzinfo=UTC)
        receipt = queue.push(b"v", key="k", headers={"h": b"1"}, timestamp=moment)
        message = queue.pop()
        assert (message.value, message.key, message.headers) == (b"v", b"k", {"h": b"1"})
        assert (message.timestamp, message.deliveries) == (moment, 1)
        assert (message.shard, message.position) == (receipt.shard, receipt.position)
        assert (receipt.count, receipt.durability, receipt.duplicate) == (1, "synced", False)

    def test_an_acked_message_is_gone_and_others_come_back(self, line, fabric):
        queue = fabric.queue("q", lease=10)
        queue.push_many([b"a", b"b"])
        first, second = queue.pop_many()
        first.ack(wait=True)
        assert queue.pop() is None
        line.clock.advance(11)
        again = queue.pop()
        assert (again.value, again.deliveries) == (second.value, 2)
        with pytest.raises(LeaseLostError):
            second.ack(wait=True)

    def test_refusals_of_buffered_acks_are_counted_and_told(self, line, fabric):
        queue = fabric.queue("q", lease=10)
        heard: list[Refusal] = []
        queue.on_refused = heard.append
        queue.push(b"a")
        message = queue.pop()
        line.clock.advance(11)
        assert queue.pop().deliveries == 2
        message.ack()
        queue.flush()
        assert queue.refused == 1
        assert [(each.position, type(each.error)) for each in heard] == [
            (message.position, LeaseLostError)
        ]

    def test_nack_extend_and_dead(self, line, fabric):
        queue = fabric.queue("q", lease=10)
        queue.push_many([b"a", b"b", b"c"])
        back, longer, hopeless = queue.pop_many()
        back.nack(delay=5)
        longer.extend(60)
        hopeless.dead()
        queue.flush()
        assert queue.pop() is None
        line.clock.advance(11)
        assert values(queue.pop_many()) == [b"a"]
        assert values(queue.dead.peek(5)) == [b"c"]
        assert queue.dead.redrive() == 1
        assert values(queue.pop_many()) == [b"c"]
        assert queue.dead.purge() == 0

    def test_lists_of_messages_are_acked_and_nacked_together(self, fabric):
        queue, other = fabric.queue("q"), fabric.queue("other")
        queue.push_many([b"%d" % each for each in range(100)], batch=10)
        messages = queue.pop_many(60)
        queue.ack(messages[:50], wait=True)
        queue.nack(messages[50:])
        assert len(queue.pop_many()) == 50
        with pytest.raises(InvalidError, match="not popped from this"):
            other.ack(messages[:1])

    def test_a_delivery_is_settled_as_one(self, fabric):
        queue = fabric.queue("q")
        assert queue.pop_batch() is None
        queue.push_many([b"a", b"b"], keys=["x", None])
        delivery = queue.pop_batch()
        assert (delivery.values, delivery.keys, len(delivery)) == ([b"a", b"b"], [b"x", None], 2)
        delivery.nack()
        again = queue.pop_batch()
        assert again.deliveries == [2, 2]
        again.extend(100)
        again.ack(wait=True)
        assert queue.stats()["messages"] == 0

    def test_peek_leaves_everything_where_it_is(self, fabric):
        queue = fabric.queue("q")
        queue.push_many([b"a", b"b"])
        assert values(queue.peek(5)) == [b"a", b"b"]
        assert not hasattr(queue.peek()[0], "ack")
        assert len(queue.pop_many()) == 2

    def test_delay_priority_and_time_to_live(self, line, fabric):
        queue = fabric.queue("q")
        now = datetime.fromtimestamp(line.clock.now_us() / 1e6, UTC)
        queue.push(b"later", delay=5)
        queue.push(b"at", at=now + timedelta(seconds=8))
        queue.push(b"gone", ttl=1, delay=2)
        queue.push(b"low")
        queue.push(b"high", priority=9)
        assert values(queue.pop_many()) == [b"high", b"low"]
        line.clock.advance(6)
        assert values(queue.pop_many()) == [b"later"]
        line.clock.advance(3)
        assert values(queue.pop_many()) == [b"at"]

    def test_an_id_is_stored_once(self, fabric):
        queue = fabric.queue("q")
        assert not queue.push(b"a", id="one").duplicate
        assert queue.push(b"a", id="one").duplicate
        receipts = queue.push_many([b"b", b"c", b"d"], ids=["one", "two", "two"])
        assert (receipts.count, receipts.duplicates, len(receipts)) == (3, 2, 3)
        assert queue.stats()["messages"] == 2
        queue.push_many([b"e"] * 64)  # ids leave no hole in the sequences

    def test_held_messages_wait_for_their_release(self, fabric):
        queue = fabric.queue("q")
        queue.push(b"a", id="job", hold=True)
        assert queue.pop() is None
        assert queue.release(["job", "what"]) == ["released", "unknown"]
        assert queue.pop().value == b"a"
        with pytest.raises(InvalidError, match="needs an id"):
            queue.push(b"a", hold=True)

    def test_bulk_pushes_tell_of_their_progress(self, fabric):
        queue = fabric.queue("q")
        progress: list[int] = []
        receipts = queue.push_many(
            (b"%d" % each for each in range(250)), batch=100, progress=progress.append
        )
        assert progress == [100, 200, 250]
        assert [receipt.count for receipt in receipts] == [100, 100, 50]
        assert (receipts.count, receipts.duplicates, receipts.durability) == (250, 0, "synced")
        assert len(queue.pop_many()) == 250
        assert queue.push_many([]).durability is None

    @pytest.mark.parametrize("to", ["topic", "ordered queue", "producer"])
    def test_a_bulk_push_that_keeps_an_order_does_not_hold_what_is_stored(self, fabric, to):
        held: list[int] = []

        def progress(messages: int) -> None:
            if messages % 50 == 0:
                held.append(pushes_held() - before)

        push_many = {
            "topic": lambda: fabric.topic("t", partitions=1).publish_many,
            "ordered queue": lambda: fabric.queue("q", ordered=True).push_many,
            "producer": lambda: fabric.queue("q").producer("p").push_many,
        }[to]()
        before = pushes_held()
        push_many([b"x"] * 200, batch=1, progress=progress)
        assert len(held) == 4
        assert max(held) < WINDOW_BATCHES

    def test_a_failed_bulk_push_says_how_far_it_came(self, fabric):
        queue = fabric.queue("q", max_messages=25)
        with pytest.raises(LimitError) as caught:
            queue.push_many([b"x"] * 100, batch=10)
        assert caught.value.__notes__ == ["20 messages were stored before this error"]

    def test_an_ordered_queue_gives_one_at_a_time(self, fabric):
        queue = fabric.queue("q", ordered=True)
        queue.push_many([b"%d" % each for each in range(30)], batch=4)
        seen = []
        for message in queue.consume(idle_timeout=0.01):
            seen.append(message.value)
            message.ack(wait=True)
        assert seen == [b"%d" % each for each in range(30)]

    def test_a_queue_ordered_by_key_keeps_each_keys_order(self, fabric):
        queue = fabric.queue("q", ordered="key")
        pairs = [(b"k%d" % (each % 5), b"%d" % each) for each in range(50)]
        queue.push_many([value for _, value in pairs], keys=[key for key, _ in pairs], batch=7)
        seen: dict[bytes, list[bytes]] = {}
        while messages := queue.pop_many():
            assert len({message.key for message in messages}) == len(messages)
            for message in messages:
                seen.setdefault(message.key, []).append(message.value)
                message.ack(wait=True)
        assert seen == {key: [v for k, v in pairs if k == key] for key, _ in pairs}
        with pytest.raises(InvalidError, match="needs a key"):
            queue.push(b"x")
        with pytest.raises(InvalidError, match="needs a key"):
            queue.push_many([b"x"])

    def test_a_named_producer_goes_on_where_it_was(self, fabric):
        queue = fabric.queue("q")
        first = queue.producer("loader")
        first.push_many([b"a", b"b", b"c"])
        second = queue.producer("loader")
        assert (first.stored, second.stored) == (3, 3)
        with pytest.raises(FencedError):
            first.push(b"x")
        second.push(b"d")
        assert second.stored == 4
        with pytest.raises(InvalidError, match="named producer"):
            second.push(b"x", id="one")

    def test_settings_can_be_read_and_changed(self, fabric):
        queue = fabric.queue("q", lease=5)
        assert queue.options.lease_ms == 5000
        queue.configure(lease=7)
        assert queue.options.lease_ms == 7000
        with pytest.raises(InvalidError):
            queue.configure()

    def test_purge_and_delete(self, fabric):
        queue = fabric.queue("q")
        queue.push_many([b"x"] * 10)
        assert queue.purge() == 10
        assert [info.name for info in fabric.queues()] == ["q"]
        assert queue.delete()
        assert not fabric.delete_queue("q")
        with pytest.raises(NotFoundError):
            queue.push(b"x")

    @pytest.mark.parametrize(
        "call",
        [
            lambda queue: queue.push("text"),
            lambda queue: queue.push(b"x", key=5),
            lambda queue: queue.push(b"x", priority=99),
            lambda queue: queue.push(b"x", durability="paper"),
            lambda queue: queue.push(b"x", compression="rar"),
            lambda queue: queue.push_many(["text"]),
            lambda queue: queue.push_many([b"x"], batch=0),
            lambda queue: queue.pop_many(0),
            lambda queue: queue.pop(timeout=-1),
            lambda queue: queue.pop(lease=0),
            lambda queue: queue.consume(prefetch=0),
            lambda queue: queue.consume(max_messages=0),
        ],
    )
    def test_wrong_input_is_refused_before_anything_is_sent(self, line, fabric, call):
        queue = fabric.queue("q")
        line.sent.clear()
        with pytest.raises(InvalidError):
            call(queue)
        assert line.sent == []
        queue.push(b"x")


class TestConsume:
    def test_all_messages_come_and_acks_are_flushed_at_the_end(self, fabric):
        queue = fabric.queue("q")
        queue.push_many([b"%d" % each for each in range(3000)], batch=100)
        seen = []
        for message in queue.consume(idle_timeout=0.01, prefetch=500):
            seen.append(message.value)
            message.ack()
        assert len(set(seen)) == len(seen) == 3000
        assert (queue.stats()["messages"], queue.refused) == (0, 0)

    def test_what_was_not_handed_out_goes_back_at_once(self, fabric):
        queue = fabric.queue("q")
        queue.push_many([b"%d" % each for each in range(300)], batch=50)
        for taken, message in enumerate(queue.consume(idle_timeout=1), start=1):
            message.ack()
            if taken == 70:
                break
        figures = queue.stats()
        assert (figures["ready"], figures["leased"]) == (230, 0)

    def test_the_message_at_hand_stays_leased_when_the_loop_raises(self, fabric):
        queue = fabric.queue("q")
        queue.push_many([b"a", b"b", b"c"])
        with pytest.raises(KeyError), queue.consume(idle_timeout=1) as messages:  # noqa: PT012
            for _ in messages:
                raise KeyError
        figures = queue.stats()
        assert (figures["ready"], figures["leased"]) == (2, 1)

    def test_at_most_as_many_as_wanted(self, fabric):
        queue = fabric.queue("q")
        queue.push_many([b"%d" % each for each in range(300)], batch=50)
        for message in queue.consume(max_messages=120, prefetch=30):
            message.ack()
        assert queue.stats()["ready"] == 180

    def test_never_more_than_prefetch_is_leased(self, fabric):
        queue = fabric.queue("q")
        queue.push_many([b"%d" % each for each in range(300)], batch=7)
        for message in queue.consume(idle_timeout=0.01, prefetch=20):
            assert queue.stats()["leased"] <= 20 + 10  # half of it is given back as it is used
            message.ack(wait=True)

    def test_deliveries(self, fabric):
        queue = fabric.queue("q")
        queue.push_many([b"%d" % each for each in range(300)], batch=50)
        count = 0
        with queue.consume_batches(idle_timeout=0.01, prefetch=100) as deliveries:
            for delivery in deliveries:
                count += len(delivery.values)
                delivery.ack()
        assert (count, queue.stats()["messages"]) == (300, 0)

    def test_acks_outside_a_loop_are_sent_by_themselves(self, fabric):
        queue = fabric.queue("q")
        queue.push_many([b"a", b"b"])
        for message in queue.pop_many():
            message.ack()
        while queue.stats()["messages"]:
            pass

    def test_closing_the_fabric_sends_what_was_acked(self, line):
        with line.fabric() as fabric:
            queue = fabric.queue("q")
            queue.push(b"a")
            queue.pop().ack()
        with line.fabric() as fabric:
            assert fabric.queue("q").stats()["messages"] == 0


class TestTopic:
    def test_a_key_always_goes_to_its_partition(self, fabric):
        topic = fabric.topic("t", partitions=4)
        receipts = [topic.publish(b"%d" % each, key="k") for each in range(5)]
        assert len({receipt.partition for receipt in receipts}) == 1
        assert [receipt.offset for receipt in receipts] == [0, 1, 2, 3, 4]
        topic.publish_many([b"v"] * 100, keys=[b"%d" % each for each in range(100)])
        assert sum(end for _, end in topic.offsets()) == 105
        assert topic.publish(b"x", partition=3).partition == 3
        with pytest.raises(InvalidError, match="partitions 0 to 3"):
            topic.publish(b"x", partition=4)

    def test_without_keys_batches_go_round(self, fabric):
        topic = fabric.topic("t", partitions=4)
        topic.publish_many([b"v"] * 80, batch=10)
        assert [end for _, end in topic.offsets()] == [20, 20, 20, 20]

    def test_reading_starts_in_the_middle_of_a_batch(self, fabric):
        topic = fabric.topic("t", partitions=1)
        topic.publish_many([b"%d" % each for each in range(100)], batch=30)
        rows = [row for batch in topic.read(0, 45, max_bytes=1) for row in batch]
        assert [row.offset for row in rows] == list(range(45, 100))
        assert rows[0].value == b"45"
        assert list(topic.read(0, "end")) == []
        assert sum(batch.count for batch in topic.read(0, "start")) == 100
        for wrong in ("middle", -1, 1.5):
            with pytest.raises(InvalidError, match="offset"):
                list(topic.read(0, wrong))

    def test_reading_starts_at_a_time(self, line, fabric):
        topic = fabric.topic("t", partitions=1)
        topic.publish(b"old")
        line.clock.advance(10)
        moment = datetime.fromtimestamp(line.clock.now_us() / 1e6, UTC)
        topic.publish(b"new")
        assert topic.offset_at(moment) == [1]
        assert [value for batch in topic.read(0, moment) for value in batch.values] == [b"new"]

    def test_following_waits_for_more(self, line, fabric):
        topic = fabric.topic("t", partitions=1)
        topic.publish(b"a")
        reading = topic.read(0, follow=True)
        assert next(reading).values == [b"a"]
        topic.publish(b"b")
        assert next(reading).values == [b"b"]

    def test_a_group_goes_on_where_it_committed(self, fabric):
        topic = fabric.topic("t", partitions=3)
        topic.publish_many([b"%d" % each for each in range(90)], batch=10)
        first = topic.subscribe("g", idle_timeout=0.01)
        seen = [next(first).value for _ in range(35)]
        first.commit()
        assert first.positions == {}
        first.close()
        assert sum(topic.committed("g").values()) == 35
        second = topic.subscribe("g", idle_timeout=0.01)
        seen += [message.value for message in second]
        assert sorted(seen) == sorted(b"%d" % each for each in range(90))
        second.commit()
        assert topic.committed("g") == {0: 30, 1: 30, 2: 30}
        assert topic.committed("nobody") == {}

    def test_messages_of_a_subscription_know_where_they_are(self, fabric):
        topic = fabric.topic("t", partitions=2)
        topic.publish(b"v", key="k", partition=1, headers={"h": b"1"}, timestamp=5)
        (message,) = topic.subscribe(partitions=[1], idle_timeout=0.01)
        assert (message.partition, message.offset, message.key) == (1, 0, b"k")
        assert (message.headers, message.timestamp_us) == ({"h": b"1"}, 5_000_000)
        ((partition, batch),) = topic.subscribe(idle_timeout=0.01, batches=True)
        assert (partition, batch.values) == (1, [b"v"])
        with pytest.raises(InvalidError, match="only a subscription of a group"):
            topic.subscribe().commit()
        with pytest.raises(InvalidError):
            topic.subscribe(partitions=[1, 1])

    def test_offsets_and_claims(self, line, fabric):
        topic = fabric.topic("t", partitions=2)
        topic.publish_many([b"v"] * 10, partition=0)
        topic.commit("g", {0: 7})
        assert topic.committed("g") == {0: 7}
        mine = topic.claim(0, "g", "me", lease=10)
        assert mine.token
        assert topic.claim(0, "g", "you", lease=10).token == 0
        line.clock.advance(11)
        yours = topic.claim(0, "g", "you", lease=10)
        assert yours.token > mine.token
        with pytest.raises(ConflictError):
            topic.commit("g", {0: 8}, token=mine.token)
        assert not topic.unclaim(0, "g", mine.token)
        assert topic.unclaim(0, "g", yours.token)

    def test_a_named_producer_of_a_partition(self, fabric):
        topic = fabric.topic("t", partitions=2)
        producer = topic.producer("p", 1)
        producer.push_many([b"a", b"b"])
        assert topic.producer("p", 1).stored == 2
        assert topic.offsets() == [(0, 0), (0, 2)]


class TestTable:
    def test_entries_have_versions(self, fabric):
        table = fabric.table("t")
        version = table.put("k", b"1", if_version=0)
        with pytest.raises(ConflictError):
            table.put("k", b"2", if_version=0)
        newer = table.put(b"k", b"2", if_version=version)
        assert table.get("k") == b"2"
        assert table.entry("k").version == newer > version
        assert table.append("k", b"3") > newer
        with pytest.raises(ConflictError):
            table.delete("k", if_version=version)
        assert table.delete("k")
        assert not table.delete("k")
        assert table.get("k") is None
        assert table.entry("k") is None

    def test_scans_go_through_all_pages_in_order(self, fabric):
        table = fabric.table("t")
        wanted = {b"a%04d" % each: b"%d" % each for each in range(1500)}
        with fabric.transaction() as transaction:
            for key, value in wanted.items():
                transaction.put(table, key, value)
        table.put("b", b"x")
        assert list(table.items("a")) == sorted(wanted.items())
        assert list(table.keys()) == [*sorted(wanted), b"b"]

    def test_entries_end_by_time_and_with_their_session(self, line, fabric):
        table = fabric.table("t")
        table.put("short", b"1", ttl=1)
        session = fabric.session(ttl=60)
        table.put("bound", b"1", session=session)
        line.clock.advance(2)
        assert table.get("short") is None
        assert table.get("bound") == b"1"
        session.close()
        assert table.get("bound") is None
        assert not session.alive
        with pytest.raises(NotFoundError):
            table.put("bound", b"1", session=session)

    def test_a_watch_tells_of_changes(self, fabric):
        table = fabric.table("t")
        table.put("a1", b"old")
        with table.watch("a") as changes:
            table.put("b", b"other")
            table.put("a2", b"new")
            table.delete("a1")
            assert next(changes).value == b"new"
            gone = next(changes)
            assert (gone.key, gone.version) == (b"a1", 0)

    def test_a_watch_finds_what_it_missed(self, line, fabric):
        table = fabric.table("t")
        table.put("gone", b"1")
        table.put("kept", b"1")
        with table.watch() as changes, line.fabric() as other:
            line.faults[:] = ["before"]
            elsewhere = other.table("t")  # breaks the other's own connection, not ours
            elsewhere.put("x", b"1")
            assert next(changes).key == b"x"
            line.faults[:] = ["before"]
            table.get("kept")  # breaks ours; what happens next is not heard
            elsewhere.delete("gone")
            elsewhere.put("kept", b"2")
            found = {(entry.key, entry.value) for entry in (next(changes), next(changes))}
            assert found == {(b"gone", b""), (b"kept", b"2")}

    def test_values_must_be_bytes_of_a_size(self, fabric):
        table = fabric.table("t")
        for value in ("text", bytes((1 << 20) + 1)):
            with pytest.raises(InvalidError):
                table.put("k", value)


class TestTransaction:
    def test_all_parts_happen_together(self, fabric):
        source, target = fabric.queue("in"), fabric.queue("out")
        topic, table = fabric.topic("t", partitions=2), fabric.table("s")
        source.push_many([b"a", b"b", b"c"])
        message = source.pop()
        delivery = source.pop_batch()
        with fabric.transaction() as transaction:
            transaction.ack(message, delivery)
            transaction.push(target, b"x", key="k", priority=3)
            transaction.push_many(target, [b"y", b"z"])
            transaction.publish(topic, b"p", key="k")
            transaction.put(table, "state", b"1", if_version=0)
            transaction.commit_offset(topic, "g", 1, 0)
        assert source.stats()["messages"] == 0
        assert sorted(values(target.pop_many())) == [b"x", b"y", b"z"]
        assert sum(end for _, end in topic.offsets()) == 1
        assert table.get("state") == b"1"

    def test_nothing_happens_if_one_part_cannot(self, line, fabric):
        source, target = fabric.queue("in", lease=5), fabric.queue("out")
        source.push(b"a")
        message = source.pop()
        line.clock.advance(6)
        transaction = fabric.transaction()
        transaction.ack(message)
        transaction.push(target, b"x")
        with pytest.raises(LeaseLostError):
            transaction.commit()
        assert target.pop() is None
        with pytest.raises(Exception, match="has ended"):
            transaction.push(target, b"x")

    def test_nothing_is_sent_if_the_block_raises(self, fabric):
        target = fabric.queue("out")
        with pytest.raises(KeyError), fabric.transaction() as transaction:  # noqa: PT012
            transaction.push(target, b"x")
            raise KeyError
        assert target.pop() is None

    def test_the_receipt_names_the_home_shard(self, fabric):
        source = fabric.queue("in")
        source.push(b"a")
        message = source.pop()
        transaction = fabric.transaction()
        transaction.push(source, b"b")
        transaction.ack(message)
        assert transaction.commit().home == message.shard
        assert fabric.transaction().commit() is None

    def test_a_refused_transaction_leaves_the_sequence_whole(self, fabric):
        table, queue = fabric.table("t"), fabric.queue("q")
        table.put("k", b"1")
        for _ in range(3):
            transaction = fabric.transaction()
            transaction.put(table, "k", b"2", if_version=0)
            with pytest.raises(ConflictError):
                transaction.commit()
        queue.push_many([b"x"] * 100, batch=1)
        with fabric.transaction() as transaction:
            transaction.put(table, "new", b"2", if_version=0)
        assert table.get("new") == b"2"


def test_the_fabric_lists_and_deletes(fabric):
    fabric.queue("q")
    fabric.topic("t", partitions=2)
    fabric.table("s")
    names = [[info.name for info in found()] for found in (fabric.queues, fabric.topics)]
    assert names == [["q"], ["t"]]
    assert [info.kind for info in fabric.tables()] == ["table"]
    assert (fabric.delete_topic("t"), fabric.delete_table("s")) == (True, True)
    assert fabric.stats()["queues"] == 1


def test_a_namespace_has_names_of_its_own(line):
    with (
        fabric_over(line.dial, 5, "one", "") as one,
        fabric_over(line.dial, 5, "two", "") as two,
    ):
        one.queue("q").push(b"x")
        assert two.queue("q").pop() is None
        assert values(one.queue("q").pop_many()) == [b"x"]


class TestRows:
    def test_some_rows_of_a_delivery_are_acked_and_others_given_back(self, fabric):
        queue = fabric.queue("q")
        queue.push_many([b"%d" % each for each in range(100)], batch=40)
        delivery = queue.pop_batch(100)
        values = delivery.values
        even = list(range(0, len(delivery), 2))
        delivery.ack(wait=True, rows=even)
        delivery.nack(rows=[row for row in range(len(delivery)) if row % 2])
        left = sorted(message.value for message in queue.pop_many(200))
        assert left == sorted({b"%d" % each for each in range(100)} - {values[r] for r in even})

    def test_rows_that_are_not_there_are_refused(self, fabric):
        queue = fabric.queue("q")
        queue.push(b"one")
        delivery = queue.pop_batch()
        with pytest.raises(InvalidError, match="rows"):
            delivery.ack(rows=[1])
