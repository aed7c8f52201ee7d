"""Members of a group in this process, over an embedded fabric: moves, guarantees, what they say."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.consumers import clicks

import penstock
from penstock import aio
from penstock.consumers.calls import ErrorPolicy, HandlerError
from penstock.consumers.fragments import Fragment
from penstock.consumers.outlets import Outlet, QueueOutlet, Record
from penstock.consumers.rules import Rules
from penstock.consumers.stateful import About, Completion, FunctionalStateful, Output, Stateful
from penstock.consumers.steps import Limits
from penstock.errors import InvalidError, NotFoundError, UnavailableError

GUARANTEES = ["exactly-once", "at-least-once", "at-most-once"]
QUICK = Rules(
    lease_us=2_000_000, margin_us=400_000, quiet_us=20_000, check_us=100_000, audit_us=2_000_000
)


@pytest.fixture
def fabric(tmp_path: Path) -> Iterator[penstock.Fabric]:
    with penstock.open(str(tmp_path / "data")) as opened:
        yield opened


def member(fabric: penstock.Fabric, **settings: Any) -> penstock.ConsumerGroup:
    given: dict[str, Any] = {
        "group": "g", "topic": "clicks", "handler": clicks.sessions, "to": "queue:sessions",
        "rules": QUICK, "commit_every": 0.1, **settings,
    }  # fmt: skip
    return penstock.ConsumerGroup(fabric, **given)


def until(holds: Callable[[], bool], seconds: float = 30.0) -> None:
    """Waits until something holds that others bring about."""
    ends = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < ends, "it does not come to that"
        time.sleep(0.01)


def owned(*members: penstock.ConsumerGroup) -> list[int]:
    return [len(each.status()["partitions"]) for each in members]


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_one_member_reads_everything_and_leaves(fabric, guarantee):
    topic = fabric.topic("clicks", clicks.PARTITIONS)
    list(clicks.publish(topic))
    group = member(fabric, guarantee=guarantee)
    with group:
        group.run(until_idle=0.2)
    assert clicks.delivered(fabric.queue("sessions")) == clicks.expected()
    assert topic.committed("g") == {n: end for n, (_, end) in enumerate(topic.offsets())}
    status = group.status()
    assert (status["read_again"], status["failures"]) == (0, 0)
    assert all(not claim.owner for claim in topic.claims("g").values())
    assert list(fabric.table("penstock.members").keys()) == []


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_members_come_and_go_and_nothing_is_read_again(fabric, guarantee):
    topic = fabric.topic("clicks", clicks.PARTITIONS)
    feed = clicks.publish(topic)
    next(feed)
    first = member(fabric, guarantee=guarantee, name="first").start()
    until(lambda: owned(first) == [4])
    for _ in range(3):
        next(feed)
    second = member(fabric, guarantee=guarantee, name="second").start()
    until(lambda: owned(first, second) == [2, 2])
    for _ in range(3):
        next(feed)
    first.stop()
    first.wait(20)
    assert owned(second) == [4]
    third = member(fabric, guarantee=guarantee, name="third").start()
    list(feed)
    until(lambda: owned(second, third) == [2, 2])
    until(lambda: sum(claim.lag for claim in topic.claims("g").values()) == 0)
    for each in (second, third):
        each.stop()
    for each in (second, third):
        each.wait(20)
    assert clicks.delivered(fabric.queue("sessions")) == clicks.expected()
    everybody = [each.status() for each in (first, second, third)]
    assert [told["read_again"] for told in everybody] == [0, 0, 0]
    assert [told["handovers"]["count"] for told in everybody] == [0, 4, 2]
    assert [told["resumes"]["count"] for told in everybody] == [0, 0, 0]
    total = sum(end for _, end in topic.offsets())
    assert sum(told["messages"] for told in everybody) == total


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_a_topic_grows_while_members_read_it(fabric, guarantee):
    """Keys move to new partitions, with all that is known of them; nothing is read again."""
    topic = fabric.topic("clicks", clicks.PARTITIONS)
    feed = clicks.publish(topic, 40)
    first = member(fabric, guarantee=guarantee, name="first").start()
    until(lambda: owned(first) == [4])
    for _ in range(8):
        next(feed)
    topic.grow(7)
    for _ in range(8):
        next(feed)
    until(lambda: owned(first) == [7])
    second = member(fabric, guarantee=guarantee, name="second").start()
    topic.grow(12)
    list(feed)
    until(lambda: owned(first, second) == [6, 6])
    until(lambda: sum(claim.lag for claim in topic.claims("g").values()) == 0)
    for each in (first, second):
        each.stop()
    for each in (first, second):
        each.wait(20)
    assert clicks.delivered(fabric.queue("sessions")) == clicks.expected()
    everybody = [each.status() for each in (first, second)]
    assert [told["read_again"] for told in everybody] == [0, 0]
    assert [told["failures"] for told in everybody] == [0, 0]


@pytest.mark.parametrize("start", ["first", "last"])
def test_a_group_that_begins_with_a_topic_that_has_grown(fabric, start):
    topic = fabric.topic("clicks", 2)
    feed = clicks.publish(topic, 40)
    for _ in range(8):
        next(feed)
    topic.grow(5)
    if start == "first":
        list(feed)
    else:
        for _ in range(8):
            next(feed)
    member(fabric, start=start).run(until_idle=0.3)
    ends = {number: end for number, (_, end) in enumerate(topic.offsets())}
    assert topic.committed("g") == ends
    found = clicks.delivered(fabric.queue("sessions"))
    assert found == (clicks.expected() if start == "first" else [])


def test_large_seeds_go_in_pieces(fabric, monkeypatch):
    for place in ("splitting", "saving"):
        monkeypatch.setattr(f"penstock.consumers.{place}.MAX_INLINE_BYTES", 300)
    topic = fabric.topic("words", 1)
    keys = [b"k%d" % number for number in range(60)]
    handler = counting(timeout=100.0, delay=50.0)
    topic.publish_many([b"x"] * 60, keys=keys, timestamps=[1000.0 + n for n in range(60)])
    group = member(fabric, topic="words", handler=handler).start()
    until(lambda: group.status()["messages"] == 60)
    topic.grow(3)
    until(lambda: owned(group) == [3])
    topic.publish_many([b"."] * 60, keys=keys, timestamps=[1070.0] * 60)
    for partition in range(3):
        topic.publish(b"later", key="z", partition=partition, timestamp=2000.0)
    until(lambda: group.status()["results"] == 60)
    group.stop()
    group.wait(20)
    assert said(fabric.queue("sessions")) == sorted(b"%s 2" % key for key in keys)


def test_a_drain_gives_partitions_away_and_ends_the_run(fabric):
    fabric.topic("clicks", clicks.PARTITIONS)
    first, second = (member(fabric, name=name).start() for name in ("first", "second"))
    until(lambda: sorted(owned(first, second)) == [2, 2])
    first.drain(0.2)
    first.wait(20)
    until(lambda: owned(second) == [4])
    second.stop()
    second.wait(20)


def test_weights_and_pins(fabric):
    fabric.topic("clicks", clicks.PARTITIONS)
    first = member(fabric, name="first", weight=3.0, pins=[3]).start()
    second = member(fabric, name="second", weight=1.0).start()
    until(lambda: owned(first, second) == [3, 1])
    assert "3" in first.status()["partitions"]
    assert "pinned" in first.explain(3).why
    for each in (first, second):
        each.stop()
        each.wait(20)


def test_the_asyncio_shell_does_the_same(tmp_path):
    async def run() -> list[Any]:
        async with aio.open(str(tmp_path / "data")) as fabric:
            topic = await fabric.topic("clicks", clicks.PARTITIONS)
            rows = [row for _, row in zip(range(300), clicks.CLICKS.fragments(), strict=False)]
            await topic.publish_many(
                [value for _, value, _ in rows], keys=[key for key, _, _ in rows],
                timestamps=[time_us / 1e6 for _, _, time_us in rows],
            )  # fmt: skip
            group = aio.ConsumerGroup(
                fabric, group="g", topic="clicks", handler=clicks.sessions, to="table:sessions",
                rules=QUICK,
            )  # fmt: skip
            async with group:
                await group.run(until_idle=0.2)
            assert group.status()["messages"] == 300
            return [item async for item in (await fabric.table("sessions")).items()]

    assert len(asyncio.run(run())) > 10


def test_a_cancelled_run_leaves_in_order(tmp_path):
    async def run() -> None:
        async with aio.open(str(tmp_path / "data")) as fabric:
            topic = await fabric.topic("clicks", 2)
            joined = asyncio.Event()
            group = aio.ConsumerGroup(
                fabric, group="g", topic="clicks", handler=clicks.sessions, to="queue:out",
                rules=QUICK,
            )  # fmt: skip
            task = asyncio.create_task(group.run(joined=joined.set))
            await joined.wait()
            for _ in range(1000):
                await asyncio.sleep(0.01)
                if len(group.status()["partitions"]) == 2:
                    break
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            claims = await topic.claims("g")
            assert [claim.owner for claim in claims.values()] == ["", ""]

    asyncio.run(run())


# --- small handlers ------------------------------------------------------------------------


def counting(**settings: Any) -> Stateful[int]:
    """Counts the fragments of a key; `.` ends it."""
    completion = Completion(**{"marker": lambda each: each.value == b".", **settings})

    def finish(state: int, about: About) -> list[Output | bytes]:
        return [b"%s %d" % (about.key, state)]

    return FunctionalStateful(completion, lambda _: 0, lambda state, _: state + 1, finish)


def said(queue: penstock.Queue) -> list[bytes]:
    return sorted(message.value for message in queue.pop_many(1000))


def test_results_go_where_they_say(fabric):
    topic = fabric.topic("words", 2)
    topic.publish_many([b"x", b".", b"."], keys=["a", "a", "b"])

    def finish(state: int, about: About) -> list[Output | bytes]:
        return [b"plain", Output(b"%d" % state, b"total", to="totals")]

    handler = counting()
    handler.finish = finish  # type: ignore[method-assign]
    places = {"words": "queue:words", "totals": "table:totals"}
    member(fabric, topic="words", handler=handler, to=places).run(until_idle=0.1)
    assert said(fabric.queue("words")) == [b"plain", b"plain"]
    assert fabric.table("totals").get("total") in (b"1", b"2")
    ids = {message.headers["result-id"] for message in fabric.queue("words").peek(10)}
    assert len(ids) == 0 or all(ids)


def test_functions_and_outlets_get_results(fabric):
    topic = fabric.topic("words", 1)
    topic.publish_many([b"x", b"."], keys=["a", "a"])
    called: list[bytes] = []
    outlet_got: list[Record] = []

    class Kept(Outlet):
        async def deliver(self, records: Any) -> None:
            outlet_got.extend(records)

    group = member(
        fabric, topic="words", handler=counting(), guarantee="at-least-once",
        to=[lambda result: called.append(result.value), Kept()],
    )  # fmt: skip
    group.run(until_idle=0.1)
    assert called == [b"a 2"]
    assert [record.headers for record in outlet_got] == [{"result-id": b"0-0-0"}]


def test_exactly_once_with_a_function_is_refused_with_an_explanation(fabric):
    with pytest.raises(InvalidError, match=r"cannot be undone.*at-least-once"):
        member(fabric, to=print)
    with pytest.raises(InvalidError, match="queue:NAME"):
        member(fabric, to="nowhere")
    with pytest.raises(InvalidError, match="Stateful"):
        member(fabric, handler=7)
    with pytest.raises(InvalidError, match="weight"):
        member(fabric, weight=0)
    with pytest.raises(NotFoundError):
        member(fabric, topic="nosuch").run()


def test_an_error_of_the_handler_ends_the_run_once_all_else_is_given_up(fabric):
    topic = fabric.topic("words", 2)
    topic.publish_many([b"x", b"bad", b"."], keys=["a", "a", "a"])

    def refuse(state: int, fragment: Fragment) -> int:
        if fragment.value == b"bad":
            raise ValueError("no")
        return state + 1

    handler = counting()
    handler.on_message = refuse  # type: ignore[method-assign]
    with pytest.raises(HandlerError, match="ValueError: no"):
        member(fabric, topic="words", handler=handler).run()
    assert all(not claim.owner for claim in topic.claims("g").values())

    skipping = member(
        fabric, topic="words", handler=handler, on_error=ErrorPolicy("skip"), dead_to="queue:dead"
    )
    skipping.run(until_idle=0.1)
    assert said(fabric.queue("sessions")) == [b"a 2"]
    (dead,) = fabric.queue("dead").pop_many(10)
    assert dead.value == b"bad"
    assert dead.headers["dead-error"] == b"ValueError: no"


def test_late_fragments_go_to_their_place(fabric):
    topic = fabric.topic("words", 1)
    handler = counting(timeout=10.0, late="side")
    topic.publish_many([b"x", b"y", b"old"], keys=["a", "b", "a"], timestamps=[100, 200, 50])
    member(fabric, topic="words", handler=handler, late_to="queue:late").run(until_idle=0.1)
    (late,) = fabric.queue("late").pop_many(10)
    assert (late.key, late.value) == (b"a", b"old")
    assert late.headers["late-offset"] == b"2"


def test_a_new_group_may_start_at_the_end(fabric):
    topic = fabric.topic("words", 1)
    topic.publish_many([b"x", b"."], keys=["a", "a"])
    member(fabric, topic="words", handler=counting(), start="last").run(until_idle=0.1)
    assert topic.committed("g") == {0: 2}
    topic.publish_many([b"x", b"y", b"."], keys=["a", "a", "a"])
    member(fabric, topic="words", handler=counting(), start="last").run(until_idle=0.1)
    assert said(fabric.queue("sessions")) == [b"a 3"]


def test_silence_finishes_objects_by_the_clock(fabric):
    topic = fabric.topic("words", 1)
    topic.publish_many([b"x", b"y"], keys=["a", "a"])
    handler = counting(timeout=0.3, idle_after=0.1)
    group = member(fabric, topic="words", handler=handler).start()
    queue = fabric.queue("sessions")
    assert queue.pop(timeout=20).value == b"a 2"
    group.stop()
    group.wait(20)


def test_more_results_than_a_transaction_takes_are_delivered_once(fabric, monkeypatch):
    monkeypatch.setattr("penstock.consumers.delivery.MAX_COMMIT_RESULTS", 7)
    topic = fabric.topic("words", 1)
    keys = [b"k%03d" % number for number in range(100)]
    topic.publish_many([b"x"] * 100, keys=keys, timestamps=[1000.0] * 100)
    topic.publish(b"late", key="z", timestamp=2000.0)
    handler = counting(timeout=10.0, delay=5.0)
    member(fabric, topic="words", handler=handler).run(until_idle=0.1)
    assert said(fabric.queue("sessions")) == [b"%s 1" % key for key in keys]


class Failing(QueueOutlet):
    """A queue that cannot be had at some attempts."""

    def __init__(self, name: str, fails: set[int]) -> None:
        super().__init__(name)
        self.fails, self.calls = fails, 0

    def add(self, transaction: Any, records: Any) -> None:
        self.calls += 1
        if self.calls in self.fails:
            raise UnavailableError("not now")
        super().add(transaction, records)


@pytest.mark.parametrize("by_clock", [False, True])
@pytest.mark.parametrize("fails", [{1}, {2}, {5, 9}, {3, 4, 11}])
def test_a_failure_between_the_parts_of_a_commit_delivers_nothing_twice(
    fabric, monkeypatch, fails, by_clock
):
    monkeypatch.setattr("penstock.consumers.delivery.MAX_COMMIT_RESULTS", 7)
    topic = fabric.topic("words", 1)
    keys = [b"k%03d" % number for number in range(100)]
    outlet = Failing("sessions", fails)
    if by_clock:  # time goes on without a message, and ends all of them at once
        handler = counting(timeout=0.6, delay=0.1, idle_after=0.1)
        topic.publish_many([b"x"] * 100, keys=keys)
    else:
        handler = counting(timeout=10.0, delay=5.0)
        topic.publish_many([b"x"] * 100, keys=keys, timestamps=[1000.0] * 100)
        topic.publish(b"later", key="z", timestamp=2000.0)
    group = member(fabric, topic="words", handler=handler, to=outlet).start()
    queue = fabric.queue("sessions")
    found: list[bytes] = []
    while len(found) < 100:
        message = queue.pop(timeout=20)
        assert message is not None
        found.append(message.value)
    group.stop()
    group.wait(20)
    assert sorted(found) == [b"%s 1" % key for key in keys]
    assert queue.pop() is None
    assert group.status()["failures"] == len(fails)


def test_large_windows_are_kept_in_snapshots_and_resumed_from_them(fabric):
    """One long object, many short ones, and a list that would not end."""
    topic = fabric.topic("words", 1)
    topic.publish(b"x", key="long")
    for number in range(40):
        topic.publish_many([b"x", b"."], keys=[b"k%d" % number] * 2)
    limits = Limits(ignored=5)
    first = member(fabric, topic="words", handler=counting(), limits=limits)
    first.run(until_idle=0.2)
    table = fabric.table("penstock.states")
    assert any(b"/snapshot/" in key for key, _ in table.items())
    # As after a crash: the position and the progress stay, the dump is gone.
    forget_dump(topic)
    topic.publish_many([b"y", b"."], keys=["long", "long"])
    for number in range(40):
        topic.publish_many([b"x", b"."], keys=[b"l%d" % number] * 2)
    second = member(fabric, topic="words", handler=counting(), limits=limits)
    second.run(until_idle=0.2)
    assert second.status()["read_again"] == 0
    words = [b"%s%d 2" % (name, number) for name in (b"k", b"l") for number in range(40)]
    assert said(fabric.queue("sessions")) == sorted([b"long 3", *words])
    lives = {key.split(b"/")[4] for key, _ in table.items() if b"/snapshot/" in key}
    assert len(lives) <= 1  # those of the first are gone


def forget_dump(topic: penstock.Topic, partition: int = 0) -> None:
    import msgspec

    from penstock.consumers.states import State

    status = topic.claims("g", states=True)[partition]
    state = msgspec.structs.replace(State.decode(status.state), dump=b"", chunks=None)
    assert status.offset is not None
    topic.commit("g", {partition: status.offset}, status.token, {partition: state.encode()})


def test_a_dump_that_does_not_fit_into_the_commit_goes_in_pieces(fabric, monkeypatch):
    monkeypatch.setattr("penstock.consumers.saving.MAX_INLINE_BYTES", 200)
    monkeypatch.setattr("penstock.consumers.storage.CHUNK_BYTES", 100)
    topic = fabric.topic("words", 1)
    topic.publish_many([b"x"] * 50, keys=[b"k%d" % number for number in range(50)])
    first = member(fabric, topic="words", handler=counting())
    first.run(until_idle=0.1)
    table = fabric.table("penstock.states")
    assert sum(b"/dump/" in key for key, _ in table.items()) > 5
    topic.publish_many([b"."] * 50, keys=[b"k%d" % number for number in range(50)])
    second = member(fabric, topic="words", handler=counting())
    second.run(until_idle=0.1)
    assert second.status()["read_again"] == 0
    assert said(fabric.queue("sessions")) == sorted(b"k%d 2" % number for number in range(50))


def test_a_dump_whose_pieces_are_lost_is_read_again(fabric, monkeypatch):
    monkeypatch.setattr("penstock.consumers.saving.MAX_INLINE_BYTES", 200)
    topic = fabric.topic("words", 1)
    topic.publish_many([b"x"] * 50, keys=[b"k%d" % number for number in range(50)])
    member(fabric, topic="words", handler=counting()).run(until_idle=0.1)
    table = fabric.table("penstock.states")
    for key in list(table.keys()):
        table.delete(key)
    topic.publish_many([b"."] * 50, keys=[b"k%d" % number for number in range(50)])
    second = member(fabric, topic="words", handler=counting())
    second.run(until_idle=0.1)
    assert second.status()["read_again"] == 50
    assert said(fabric.queue("sessions")) == sorted(b"k%d 2" % number for number in range(50))


def test_a_turn_that_takes_too_long_is_told(fabric, caplog):
    topic = fabric.topic("words", 1)
    topic.publish_many([b"x", b"."], keys=["a", "a"])
    handler = counting()
    fold = handler.on_message
    handler.on_message = lambda state, each: time.sleep(0.3) or fold(state, each)  # type: ignore
    group = member(fabric, topic="words", handler=handler)
    group.run(until_idle=0.1)
    assert group.status()["slow_turns"] >= 1
    assert "FunctionalStateful took" in caplog.text
