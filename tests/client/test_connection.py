"""The blocking connection: lost and restored, shared by threads, closed."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.client.conftest import FaultyTransport, Line

import penstock
from penstock.client.blocking import Fabric, fabric_over
from penstock.client.connection import Connection
from penstock.client.messages import Receipt
from penstock.client.ops_push import push
from penstock.client.requests import Pending, Request
from penstock.client.steps import Steps
from penstock.errors import (
    ClosedError,
    ConflictError,
    DeadlineError,
    ForgottenError,
    LimitError,
    NotFoundError,
    ProtocolError,
    UnavailableError,
)
from penstock.wire.frames import Flag, Verb, frame
from penstock.wire.messages import Welcome, pack

FAULTS = st.lists(st.sampled_from([None, None, None, "before", "after"]), max_size=12)
QUICK = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@QUICK
@given(FAULTS, st.integers(1, 30))
def test_pushes_are_stored_once_whatever_is_lost(make_line, faults, count):
    line = make_line()
    with line.fabric() as fabric:
        queue = fabric.queue("q")
        line.faults[:] = faults
        values = [b"%d" % each for each in range(count)]
        for value in values[: count // 2]:
            queue.push(value)
        receipts = queue.push_many(values[count // 2 :], batch=3)
        line.faults.clear()
        assert receipts.count == count - count // 2
        assert sorted(message.value for message in queue.pop_many()) == sorted(values)


@QUICK
@given(FAULTS)
def test_a_topic_keeps_the_order_whatever_is_lost(make_line, faults):
    line = make_line()
    with line.fabric() as fabric:
        topic = fabric.topic("t", partitions=2)
        line.faults[:] = faults
        topic.publish_many([b"%d" % each for each in range(40)], partition=1, batch=3)
        line.faults.clear()
        values = [value for batch in topic.read(1) for value in batch.values]
        assert values == [b"%d" % each for each in range(40)]


@QUICK
@given(FAULTS)
@example(["after", "after", "after", "after", None, None, None, "before"])  # its cancel is lost
def test_acks_count_once_whatever_is_lost(make_line, faults):
    line = make_line()
    with line.fabric() as fabric:
        queue = fabric.queue("q")
        queue.push_many([b"%d" % each for each in range(50)], batch=7)
        line.faults[:] = faults
        seen = []
        for message in queue.consume(idle_timeout=0.01, prefetch=10):
            seen.append(message.value)
            message.ack()
        line.faults.clear()
        line.clock.advance(31)  # what was delivered into a lost connection comes back
        again = [message.value for message in queue.pop_many()]
        assert sorted(seen + again) == sorted(b"%d" % each for each in range(50))
        assert queue.refused == 0


@QUICK
@given(FAULTS)
def test_transactions_happen_once_whatever_is_lost(make_line, faults):
    line = make_line()
    with line.fabric() as fabric:
        source, target, table = fabric.queue("in"), fabric.queue("out"), fabric.table("t")
        source.push_many([b"a", b"b", b"c"])
        messages = source.pop_many()
        line.faults[:] = faults
        for message in messages:
            with fabric.transaction() as transaction:
                transaction.ack(message)
                transaction.push(target, message.value)
                transaction.put(table, message.value, b"done", if_version=0)
        line.faults.clear()
        assert sorted(message.value for message in target.pop_many()) == [b"a", b"b", b"c"]
        assert source.stats()["messages"] == 0


def meddled(line: Line, meddle: Callable[[], object]) -> Fabric:
    """A fabric; whenever its connection is lost, `meddle` is called before it comes back."""

    def dial(seconds: float) -> FaultyTransport:
        faults, line.faults = line.faults, []
        meddle()
        line.faults = faults
        return line.dial(seconds)

    return fabric_over(dial, 5.0, "default", "meddled")


@QUICK
@given(FAULTS, st.lists(st.sampled_from(["append", "put", "swap", "delete"]), max_size=12))
def test_table_writes_happen_once_whatever_is_lost(make_line, faults, kinds):
    """Another client appends whenever the connection is lost: no write is done again over that."""
    line = make_line()
    with line.fabric() as other:
        theirs = other.table("t")
        marks: list[bytes] = []

        def meddle() -> None:
            marks.append(b"<%d>" % len(marks))
            theirs.append("k", marks[-1])

        with meddled(line, meddle) as fabric:
            table, history = fabric.table("t"), []
            mine = table.put("mine", b"start", if_version=0)
            line.faults[:] = faults
            for number, kind in enumerate(kinds):
                value = b"[%d]" % number
                if kind == "append":
                    table.append("k", value)
                elif kind == "put":
                    table.put("k", value)
                elif kind == "swap":  # nobody else writes it: a conflict would be with itself
                    mine = table.put("mine", value, if_version=mine)
                else:
                    table.delete("k")
                history.append((kind, value, len(marks)))
            line.faults.clear()
            entry = table.entry("mine")
            assert entry is not None
            assert entry.version == mine
            assert (table.get("k") or b"") in explanations(history, marks)


def explanations(history: list[tuple[str, bytes, int]], marks: list[bytes]) -> set[bytes]:
    """All values that the entry may have: each write once, anywhere among the marks made while it
    was under way."""
    found = {(b"".join(marks[:1]), 1)}
    for kind, value, until in history:
        after: set[tuple[bytes, int]] = set()
        for whole, at in found:
            for split in range(at, until + 1):
                base = whole + b"".join(marks[at:split])
                if kind == "append":
                    base += value
                elif kind in ("put", "delete"):
                    base = value if kind == "put" else b""
                after.add((base, split))
        found = after
    return {whole + b"".join(marks[at:]) for whole, at in found}


@pytest.mark.parametrize("fault", ["before", "after"])
def test_a_delete_is_not_done_again_over_what_was_written_since(line, fault):
    with line.fabric() as other:
        theirs = other.table("t")
        with meddled(line, lambda: theirs.put("k", b"theirs")) as fabric:
            table = fabric.table("t")
            line.faults[:] = [fault]
            assert table.delete("k")
            assert table.get("k") == (b"theirs" if fault == "after" else None)
            line.faults[:] = [fault]
            assert not table.delete("absent")


def test_table_writes_go_on_after_a_node_lost_what_was_in_its_memory(line):
    with line.fabric() as fabric:
        table = fabric.table("t")
        before = copy.deepcopy(line.disk)
        for _ in range(5):
            table.append("k", b"x")
        line.rewind(before)
        fabric.stats()
        table.append("k", b"y")
        assert table.get("k") == b"y"


def test_a_resend_is_marked_and_everything_else_is_not(line):
    with line.fabric() as fabric:
        queue = fabric.queue("q")
        line.sent.clear()
        line.faults[:] = ["after", "before"]
        assert queue.push(b"x").duplicate
        pushes = [(flags, request) for verb, flags, request in line.sent if verb == Verb.PUSH]
        assert [flags for flags, _ in pushes] == [0, Flag.RESEND]
        assert len({request for _, request in pushes}) == 1
        assert line.dials == 3


def test_a_full_queue_refuses_and_takes_again(line):
    with line.fabric() as fabric:
        queue = fabric.queue("q", max_messages=2)
        queue.push_many([b"a", b"b"])
        for _ in range(300):  # more than once around all shards
            with pytest.raises(LimitError):
                queue.push(b"c")
        for message in queue.pop_many():
            message.ack(wait=True)
        for _ in range(300):
            queue.push(b"d")
            message = queue.pop()
            assert message is not None
            message.ack(wait=True)


def test_pushes_go_on_after_a_node_lost_what_was_in_its_memory(line):
    with line.fabric() as fabric:
        queue, topic, table = fabric.queue("q"), fabric.topic("t", 1), fabric.table("s")
        before = copy.deepcopy(line.disk)
        queue.push_many([b"x"] * 200, batch=1)
        topic.publish_many([b"x"] * 20, batch=2)
        line.rewind(before)
        fabric.stats()
        for _ in range(200):
            queue.push(b"y")
        topic.publish_many([b"%d" % each for each in range(100)], batch=2)
        with fabric.transaction() as transaction:
            transaction.put(table, "k", b"v")
        assert {message.value for message in queue.pop_many()} == {b"y"}
        stored = [value for batch in topic.read(0) for value in batch.values]
        assert stored == [b"%d" % each for each in range(100)]


def test_a_push_under_way_while_a_node_lost_its_memory_is_reported(line):
    with line.fabric() as fabric:
        queue = fabric.queue("q")
        before = copy.deepcopy(line.disk)
        queue.push_many([b"x"] * 200, batch=1)
        line.rewind(before)
        with pytest.raises(ForgottenError):
            queue.push(b"y")  # for all that is known, it may have been stored and lost again
        queue.push(b"z")


def outcome_of(connection: Connection, steps: Steps[Receipt], pending: Pending) -> Receipt:
    """Carries an operation on that stands at its first answer."""
    while True:
        try:
            try:
                answer = connection.finish(pending)
            except penstock.PenstockError as error:
                step = steps.throw(error)
            else:
                step = steps.send(answer)
        except StopIteration as stop:
            receipt: Receipt = stop.value
            return receipt
        assert isinstance(step, Request)
        pending = connection.start(step)


def test_a_refused_push_does_not_take_others_along(line):
    with line.fabric() as fabric:
        small, large = fabric.queue("small", max_messages=1), fabric.queue("large")
        connection = fabric._connection
        under_way = []
        for each in range(64):  # both queues share the producer, and so the sequences
            steps = push(small if each % 8 == 0 else large, b"x")
            under_way.append((steps, connection.start(next(steps))))
        refused = 0
        for steps, pending in under_way:
            try:
                assert not outcome_of(connection, steps, pending).duplicate
            except LimitError:
                refused += 1
        assert refused == 7
        assert (small.stats()["messages"], large.stats()["messages"]) == (1, 56)


def test_threads_share_a_connection(line):
    with line.fabric() as fabric:
        queue = fabric.queue("q")
        failures: list[BaseException] = []

        def work(name: int) -> None:
            try:
                for each in range(50):
                    queue.push(b"%d/%d" % (name, each))
                    if each % 10 == 0:
                        queue.stats()
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(name,)) for name in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert len({message.value for message in queue.pop_many()}) == 400


def test_a_thread_that_waits_reads_for_the_others(line):
    with line.fabric() as fabric:
        queue = fabric.queue("q")
        popped: list[object] = []
        waiting = threading.Thread(target=lambda: popped.append(queue.pop(timeout=5)))
        waiting.start()
        while not any(verb == Verb.POP for verb, _, _ in line.sent):
            queue.stats()
        queue.push(b"x")
        waiting.join()
        assert isinstance(popped[0], penstock.Message)


def test_without_a_node_a_call_ends_at_its_deadline():
    def dial(seconds: float) -> object:
        raise UnavailableError("nobody there")

    with pytest.raises(DeadlineError, match="nobody there"):
        fabric_over(dial, 0.1, "default", "")  # type: ignore[arg-type]


def test_a_silent_node_is_waited_for_until_the_deadline_and_then_looked_for_anew(line):
    class Silent(type(line.dial(1))):  # type: ignore[misc]
        def receive(self, timeout: float | None, owed: bool = True) -> list[bytearray]:
            frames = super().receive(0.001)
            return [each for each in frames if each[4] not in (Verb.PUSH, Verb.POP)]

    dials: list[Silent] = []

    def dial(seconds: float) -> Silent:
        dials.append(Silent(line))
        return dials[-1]

    with fabric_over(dial, 0.1, "default", "") as fabric:
        queue = fabric.queue("q")
        with pytest.raises(DeadlineError, match="no answer within"):
            queue.push(b"x")
        with pytest.raises(DeadlineError, match="no answer within"):
            queue.pop(timeout=0.05)
        assert queue.stats()["messages"] == 1
        assert len(dials) == 3


class Scripted:
    """Answers HELLO, then says what it is told to."""

    def __init__(self, *answers: bytes, cluster: int = 1) -> None:
        welcome = Welcome(1, "n", cluster, 16, 1 << 20, 100)
        self._answers = [frame(Verb.HELLO, 0, Flag.RESPONSE, pack(welcome)), *answers]

    def send(self, parts: object) -> None:
        pass

    def receive(self, timeout: float | None, owed: bool = True) -> list[bytearray]:
        if not self._answers:
            raise UnavailableError("lost")
        return [bytearray(self._answers.pop(0))]

    def close(self) -> None:
        pass


def dialling(*transports: Scripted) -> Callable[[float], Scripted]:
    left = list(transports)
    return lambda seconds: left.pop(0)


@pytest.mark.parametrize(
    "hostile",
    [frame(Verb.CALL, 99, Flag.RESPONSE), frame(Verb.CALL, 1, Flag.RESPONSE, b"\xc1")],
)
def test_an_answer_that_makes_no_sense_is_an_error_and_not_repeated(hostile):
    fabric = fabric_over(dialling(Scripted(hostile)), 5, "default", "")
    with pytest.raises(ProtocolError):
        fabric.queue("q")
    fabric.close()


def test_a_greeting_that_is_none_is_an_error():
    class Wrong(Scripted):
        def __init__(self) -> None:
            self._answers = [frame(Verb.CALL, 0, Flag.RESPONSE)]

    with pytest.raises(ProtocolError, match="greeting"):
        fabric_over(dialling(Wrong()), 5, "default", "")


def test_another_cluster_under_the_same_address_is_not_taken_for_the_old_one():
    fabric = fabric_over(dialling(Scripted(), Scripted(cluster=2)), 5, "default", "")
    with pytest.raises(ConflictError, match="another cluster"):
        fabric.queue("q")
    with pytest.raises(ConflictError, match="another cluster"):
        fabric.queue("q")
    fabric.close()


def test_after_close_nothing_works(line):
    fabric = line.fabric()
    queue = fabric.queue("q")
    fabric.close()
    with pytest.raises(ClosedError):
        queue.push(b"x")
    with pytest.raises(ClosedError):
        queue.pop()
    fabric.close()


def test_close_ends_calls_under_way(line):
    fabric = line.fabric()
    queue = fabric.queue("q")
    ended: list[BaseException] = []

    def wait() -> None:
        try:
            queue.pop(timeout=5)
        except ClosedError as error:
            ended.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    while not any(verb == Verb.POP for verb, _, _ in line.sent):
        threading.Event().wait(0.001)
    fabric.close()
    waiting.join()
    assert len(ended) == 1


def test_a_subscription_survives_a_lost_connection(line):
    with line.fabric() as fabric:
        queue = fabric.queue("q")
        with queue.consume(idle_timeout=0.05, prefetch=4) as messages:
            queue.push(b"a")
            next(messages).ack(wait=True)
            line.faults[:] = ["after"]
            queue.push(b"b")  # stored, and delivered into the lost connection
            queue.push(b"c")
            message = next(messages)
            assert message.value == b"c"
            message.ack(wait=True)
            line.clock.advance(31)
            again = next(messages)
            assert (again.value, again.deliveries) == (b"b", 2)


def test_a_subscription_to_a_queue_that_is_gone_ends_with_its_error(line):
    with line.fabric() as fabric:
        queue = fabric.queue("q")
        consumer = queue.consume(idle_timeout=1)
        queue.push(b"a")
        next(consumer)
        line.faults[:] = ["before"]
        fabric.delete_queue("q")
        with pytest.raises(NotFoundError):
            next(consumer)


def test_a_full_connection_waits_for_any_answer_not_for_the_oldest(line):
    with line.fabric(timeout=20.0) as fabric, line.fabric() as other:
        queues = [fabric.queue(f"q{number}") for number in range(5)]
        fabric._connection._protocol.limit = 20  # of which 16 are reserved
        with ThreadPoolExecutor(4) as pool:
            parked = []
            for number, queue in enumerate(queues[:4]):
                parked.append(pool.submit(queue.pop, timeout=20.0))
                while len(fabric._connection._protocol.in_flight) <= number:
                    time.sleep(0.001)
            threading.Timer(0.05, other.queue("q3").push, (b"x",)).start()
            queues[4].push(b"y")
            assert not parked[0].done()  # the oldest waits on
            for number in range(3):
                other.queue(f"q{number}").push(b"x")
            assert all(each.result() for each in parked)
