"""A whole Fabric against a small model of a queue: random verbs, lazy commits, crashes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.core.canonical import state_of
from tests.core.harness import Node, Settled, Snapshot, read_settled
from tests.core.queue_model import Message, QueueModel

from penstock.core.records import Kind
from penstock.errors import LeaseLostError, LimitError
from penstock.wire import messages as m
from penstock.wire.frames import Flag, PopMode, PushExtra, Settle, SettleItem, Verb, pack_settle

LEASE_MS = 30_000
MAX_MESSAGES = 40
LONGEST_DELAY_MS = 3000  # of a nack
IDS = st.sampled_from([b"a", b"b", b"c"])
KEYS = st.sampled_from([b"k0", b"k1", b"k2"])
PEEKS = {
    "ready": PopMode.PEEK,
    "dead": PopMode.PEEK_DEAD,
    "delayed": PopMode.PEEK_DELAYED,
    "leased": PopMode.PEEK_LEASED,
    "held": PopMode.PEEK_HELD,
}


def _until_us(message: Message) -> int:
    """What a look at a message tells instead of a grant."""
    times = {"delayed": message.due_us, "leased": message.deadline_us, "held": 1}
    return times.get(message.state, 0)


class QueueMachine(RuleBasedStateMachine):
    """Messages carry unique values, so that the model and the node can be compared one by one."""

    ordered = "no"

    @initialize(lazy=st.booleans(), durability=st.sampled_from(["synced", "written"]))
    def start(self, lazy: bool, durability: str) -> None:
        self.node = Node(3, lazy=lazy)
        self.queue = self.node.open(
            "queue", "q", ordered=self.ordered, max_deliveries=3, max_messages=MAX_MESSAGES,
            lease_ms=LEASE_MS, durability=durability,
        )  # fmt: skip
        self.node.commit()
        self.model = QueueModel(self.ordered, 3, MAX_MESSAGES, LEASE_MS * 1000)
        self.coming: list[tuple[int, list[Message]]] = []
        self.sequences: dict[int, int] = {}
        self.sent: list[tuple[int, dict[str, Any], list[bytes]]] = []
        self.ids: dict[bytes, int] = {}
        self.serial = 0
        self.snapshot: Snapshot = {}

    # --- pushing ---------------------------------------------------------------------------

    def _place(self, shard: int, key: bytes | None) -> int:
        kernel = self.node.fabric.kernel
        if self.ordered == "queue":
            return kernel.shard_of(b"q").id
        return shard if key is None else kernel.shard_of(key).id

    def _push(
        self, shard: int, count: int, extra: PushExtra | None = None, key: bytes | None = None,
        delay_us: int = 0, ttl_ms: int = 0, priority: int = 0,
    ) -> None:  # fmt: skip
        node = self.node
        node.tick(1)
        self.model.pass_time(node.now_us)
        values = [b"%d" % (self.serial + n) for n in range(count)]
        self.serial += count
        terms: dict[str, Any] = {"due_us": -delay_us, "ttl_ms": ttl_ms, "priority": priority}
        if key is not None:
            terms["keys"] = [key] * count
        if extra is None:
            terms["producer"], terms["sequence"] = 77, self.sequences.get(shard, 0)
        request = node.push(self.queue, values, shard, extra=extra, **terms)
        coming = sum(len(messages) for _, messages in self.coming)
        if extra is not None and extra.id in self.ids:
            node.commit()
            self._see()
            assert node.receipt(request).duplicate
        elif self.model.unfinished + coming + count > MAX_MESSAGES:
            with pytest.raises(LimitError):
                node.receipt(request)
        else:
            self._accepted(request, shard, values, extra, terms, delay_us)

    def _accepted(
        self, request: int, shard: int, values: list[bytes], extra: PushExtra | None,
        terms: dict[str, Any], delay_us: int,
    ) -> None:  # fmt: skip
        now_us = self.node.now_us
        held = extra is not None and extra.hold
        state = "held" if held else "delayed" if delay_us else "ready"
        ttl_us = terms["ttl_ms"] * 1000
        messages = [
            Message(
                value, shard, terms["priority"], now_us, terms.get("keys", [None])[0], state,
                due_us=now_us + delay_us, expires_us=now_us + ttl_us if ttl_us else 0,
                id=None if extra is None else extra.id, alone=len(values) == 1,
            )
            for value in values
        ]  # fmt: skip
        self.coming.append((request, messages))
        if extra is not None and extra.id is not None:
            self.ids[extra.id] = now_us
        if extra is None:
            self.sent.append((shard, terms, values))
            self.sequences[shard] = terms["sequence"] + len(values)
        self._see()

    def _see(self) -> None:
        """Takes in pushes that are answered by now."""
        while self.coming and self.node.has_answer(self.coming[0][0]):
            request, messages = self.coming.pop(0)
            assert self.node.receipt(request).count == len(messages)
            self.model.add(messages)
        self.model.pass_time(self.node.now_us)

    @rule(shard=st.integers(0, 2), count=st.integers(1, 6), key=KEYS)
    def push(self, shard: int, count: int, key: bytes) -> None:
        used = key if self.ordered == "key" else None
        self._push(self._place(shard, used), count, key=used)

    @precondition(lambda self: self.ordered == "no")
    @rule(
        shard=st.integers(0, 2), count=st.integers(1, 4), priority=st.integers(0, 15),
        delay_ms=st.sampled_from([0, 0, 2000, 50_000]), ttl_ms=st.sampled_from([0, 0, 5000]),
    )  # fmt: skip
    def push_special(
        self, shard: int, count: int, priority: int, delay_ms: int, ttl_ms: int
    ) -> None:
        self._push(shard, count, None, None, delay_ms * 1000, ttl_ms, priority)

    @rule(shards=st.lists(st.integers(0, 2), min_size=2, max_size=6))
    def push_singles(self, shards: list[int]) -> None:
        """Batches of one message: one grant may cover several that are neighbours."""
        for shard in shards:
            used = b"k%d" % shard if self.ordered == "key" else None
            self._push(self._place(shard, used), 1, key=used)

    @precondition(lambda self: self.ordered == "no")
    @rule(key=IDS, hold=st.booleans(), delay_ms=st.sampled_from([0, 2000, 50_000]))
    def push_with_id(self, key: bytes, hold: bool, delay_ms: int) -> None:
        delay_us = 0 if hold else delay_ms * 1000
        place = self.node.fabric.kernel.shard_of(key).id
        self._push(place, 1, PushExtra(key, hold), delay_us=delay_us)

    @precondition(lambda self: self.sent)
    @rule(back=st.integers(0, 5))
    def resend_push(self, back: int) -> None:
        shard, terms, values = self.sent[-1 - min(back, len(self.sent) - 1)]
        before = state_of(self.node.fabric)["totals"]
        request = self.node.push(self.queue, values, shard, flags=Flag.RESEND, **terms)
        assert state_of(self.node.fabric)["totals"] == before
        self.node.commit()
        receipt = self.node.receipt(request)
        assert receipt.duplicate
        assert receipt.shard == shard
        self._see()

    @rule(count=st.integers(1, 5))
    def commit(self, count: int) -> None:
        self.node.commit(count)
        self._see()

    # --- popping ---------------------------------------------------------------------------

    @rule(
        messages=st.integers(1, 8), lease_ms=st.sampled_from([0, 0, 1000, 100_000]),
        max_bytes=st.sampled_from([0, 0, 1, 400]),
    )  # fmt: skip
    def pop(self, messages: int, lease_ms: int, max_bytes: int) -> None:
        self._commit_all()
        wanted = self.model.available()
        got = self.node.popped(self.queue, messages, lease_ms=lease_ms, max_bytes=max_bytes)
        known = {message.value: message for message in wanted}
        assert {one.value for one in got} <= set(known), "only what is ready is delivered, once"
        taken = [known[one.value] for one in got]
        assert len(taken) == len({id(message) for message in taken})
        ranks = [message.rank for message in wanted]
        assert [message.rank for message in taken] == ranks[: len(got)]
        if self.ordered != "no":
            assert taken == wanted[: len(got)]
        if self.ordered == "queue":
            assert bool(got) == bool(wanted)
        elif not max_bytes:
            assert len(got) == min(messages, len(wanted))
        else:
            assert bool(got) == bool(wanted)
        for one, message in zip(got, taken, strict=True):
            lease_us = lease_ms * 1000 or self.model.lease_us
            self.model.lease(message, one.grant, one.position, lease_us, self.node.now_us)
            assert (one.shard, one.deliveries) == (message.shard, message.deliveries)

    @rule(state=st.sampled_from(list(PEEKS)), messages=st.sampled_from((1, 5, 1000)))
    def peek(self, state: str, messages: int) -> None:
        self._commit_all()
        got = self.node.popped(self.queue, messages, mode=PEEKS[state])
        wanted = self.model.all(state)
        assert {one.value for one in got} <= {message.value for message in wanted}
        if state != "ready" or self.ordered != "key":
            assert len({one.value for one in got}) == min(messages, len(wanted))
        until = {message.value: _until_us(message) for message in wanted}
        assert all(one.grant == until[one.value] for one in got)

    # --- settling --------------------------------------------------------------------------

    def _settle(
        self, op: int, messages: list[Message], arg: int = 0, merged: bool = False
    ) -> Settled:
        self.node.tick(0)
        items = [SettleItem(op, one.shard, 1, one.grant, one.position, arg) for one in messages]
        if merged:
            items = _merged(items)
        request = self.node.send(Verb.SETTLE, pack_settle(self.queue, items))
        self.node.commit()
        self._see()
        return read_settled(self.node.answer(request).body)

    def _choose(self, data: Any, state: str = "leased") -> list[Message]:
        lists = st.lists(st.sampled_from(self.model.all(state)), max_size=5, unique=True)
        chosen: list[Message] = data.draw(lists)
        return chosen

    @precondition(lambda self: self.model.all("leased"))
    @rule(data=st.data(), twice=st.booleans(), merged=st.booleans())
    def ack(self, data: Any, twice: bool, merged: bool) -> None:
        chosen = self._choose(data)
        assert self._settle(Settle.ACK, chosen, 0, merged) == Settled(len(chosen), {})
        for message in chosen:
            message.state, message.acked_by = "gone", message.grant
        if twice:
            assert self._settle(Settle.ACK, chosen, 0, merged) == Settled(len(chosen), {})

    @precondition(lambda self: any(one.acked_by for one in self.model.messages))
    @rule(data=st.data())
    def resend_ack(self, data: Any) -> None:
        """Whatever happened since: the ack of a lease is accepted again, without effect."""
        acked = [message for message in self.model.messages if message.acked_by]
        chosen = data.draw(st.sampled_from(acked))
        assert self._settle(Settle.ACK, [chosen]) == Settled(1, {})

    @precondition(lambda self: self.model.all("leased"))
    @rule(data=st.data(), delay_ms=st.sampled_from([0, 0, LONGEST_DELAY_MS]), merged=st.booleans())
    def nack(self, data: Any, delay_ms: int, merged: bool) -> None:
        chosen = self._choose(data)
        assert self._settle(Settle.NACK, chosen, delay_ms, merged) == Settled(len(chosen), {})
        for message in chosen:
            self.model.give_back(message, delay_ms * 1000, self.node.now_us)
        self._refuses_acks(chosen)

    @precondition(lambda self: self.model.all("leased"))
    @rule(data=st.data(), delay_ms=st.sampled_from([0, 0, LONGEST_DELAY_MS]), merged=st.booleans())
    def return_unseen(self, data: Any, delay_ms: int, merged: bool) -> None:
        chosen = self._choose(data)
        assert self._settle(Settle.RETURN, chosen, delay_ms, merged) == Settled(len(chosen), {})
        for message in chosen:
            self.model.return_unseen(message, delay_ms * 1000, self.node.now_us)
        self._refuses_acks(chosen)

    def _refuses_acks(self, chosen: list[Message]) -> None:
        lost = self._settle(Settle.ACK, chosen)
        assert lost == Settled(0, dict.fromkeys(range(len(chosen)), LeaseLostError.code))

    @precondition(lambda self: self.model.all("leased"))
    @rule(data=st.data())
    def bury(self, data: Any) -> None:
        chosen = self._choose(data)
        assert not self._settle(Settle.DEAD, chosen).refused
        for message in chosen:
            message.state = "dead"

    @precondition(lambda self: self.model.all("leased"))
    @rule(data=st.data(), lease_ms=st.integers(1, 60_000))
    def extend(self, data: Any, lease_ms: int) -> None:
        chosen = self._choose(data)
        assert not self._settle(Settle.EXTEND, chosen, lease_ms).refused
        for one in chosen:
            deadline_us = self.node.now_us + lease_ms * 1000
            lease = (one.shard, one.grant)
            covered = [m for m in self.model.all("leased") if (m.shard, m.grant) == lease]
            if one.alone and len(covered) > 1:  # it must not end the lease of the others
                deadline_us = max(deadline_us, one.deadline_us)
            for message in covered:
                message.deadline_us = deadline_us

    # --- by hand ---------------------------------------------------------------------------

    @rule()
    def purge(self) -> None:
        self._call_purge(False, "ready", "delayed")

    @rule()
    def purge_dead(self) -> None:
        self._call_purge(True, "dead")

    def _call_purge(self, dead: bool, *states: str) -> None:
        self.node.tick(0)
        wanted = self.model.all(*states)
        assert self.node.call(m.Purge(self.queue, dead)) == len(wanted)
        for message in wanted:
            message.state = "gone"
        self._see()

    @precondition(lambda self: self.model.all("dead"))
    @rule()
    def redrive(self) -> None:
        queues = self.node.fabric.queues.view(self.queue).shards.values()
        values = {
            (queue.shard, position): turn
            for turn, (queue, position) in enumerate((q, p) for q in queues for p in q.dead)
        }
        dead = self.model.all("dead")
        assert self.node.call(m.Redrive(self.queue, 1000)) == len(dead)
        order = sorted(dead, key=lambda one: (values.get((one.shard, one.position), 0), one.turn))
        self.model.redrive(1000, order)
        self._see()

    @precondition(lambda self: self.ordered == "no")
    @rule(key=IDS)
    def release(self, key: bytes) -> None:
        self._commit_all()
        kept = [message for message in self.model.all("held", "delayed") if message.id == key]
        expected = "released" if kept else "done" if key in self.ids else "unknown"
        assert self.node.call(m.Release(self.queue, [key])) == [expected]
        for message in kept:
            message.state = "ready"

    # --- time and crashes ------------------------------------------------------------------

    def _commit_all(self) -> None:
        self.node.commit()
        self.node.tick(0)
        self._see()

    @rule(after_ms=st.sampled_from([1, 500, 2000, 6000, 31_000]))
    def wait(self, after_ms: int) -> None:
        self._commit_all()
        self.node.tick(after_ms * 1000)
        self.model.pass_time(self.node.now_us)
        self._see()

    @rule(shards=st.sets(st.integers(0, 2)))
    def take_snapshot(self, shards: set[int]) -> None:
        self.snapshot = self.node.snapshot(sorted(shards))

    @rule()
    def crash(self) -> None:
        """All that was logged survives: what was not answered yet counts too."""
        self._commit_all()
        self.node = self.node.crash(self.snapshot)
        self.snapshot = {}
        for message in self.model.all("leased"):
            message.deadline_us = self._grant_of(message).deadline_us
        self.node.tick(LONGEST_DELAY_MS * 1000)  # the delays of nacks may have begun anew
        self.model.pass_time(self.node.now_us)
        self._see()

    def _grant_of(self, message: Message) -> Any:
        queue = self.node.fabric.kernel.shards[message.shard].queues[self.queue]
        return queue.leases.grants[message.grant]

    @invariant()
    def counts_are_equal(self) -> None:
        if not hasattr(self, "node"):
            return
        self.node.tick(0)
        figures = self.node.call(m.StreamStats(self.queue))
        self._see()
        expected = self.model.counts()
        if self.ordered == "key":
            del expected["ready"], expected["leased"]
        assert {name: figures[name] for name in expected} == expected
        if not self.node.pending:
            assert figures["messages"] == self.model.unfinished

    @invariant()
    def state_holds_together(self) -> None:
        if hasattr(self, "node"):
            state_of(self.node.fabric)
            self.node.check()

    def teardown(self) -> None:
        """The log alone gives the same state as the life that wrote it."""
        if not hasattr(self, "node"):
            return
        self.node.commit()
        self.node.tick(0)
        self.node.commit()
        again = self.node.crash(self.snapshot)
        again.tick(0)
        again.commit()
        changes = [r for r in again.journal[len(self.node.journal) :] if r.kind != Kind.NOTE]
        assert not changes, "recovery has nothing left to decide"
        assert state_of(again.fabric, timed=False) == state_of(self.node.fabric, timed=False)


def _merged(items: list[SettleItem]) -> list[SettleItem]:
    """One item for every lease, with a mask."""
    grants: dict[tuple[int, int], list[SettleItem]] = {}
    for item in items:
        grants.setdefault((item.shard, item.grant), []).append(item)
    merged = []
    for found in grants.values():
        first = min(item.position for item in found)
        mask = sum(1 << item.position - first for item in found)
        merged.append(found[0]._replace(position=first, count=mask.bit_length(), mask=mask))
    return merged


class OrderedMachine(QueueMachine):
    ordered = "queue"


class KeyedMachine(QueueMachine):
    ordered = "key"


@pytest.mark.parametrize("machine", [QueueMachine, OrderedMachine, KeyedMachine])
def test_queue(machine: type[QueueMachine]) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=60,
            stateful_step_count=30,
            deadline=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
