"""Defects that the simulator found, each as the smallest case that shows it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.client import ops_group, ops_push
from penstock.core.changes import Change, Given, Op
from penstock.core.effects import Send
from penstock.core.fabric import Fabric
from penstock.core.kernel import Kernel
from penstock.core.leases import Leases
from penstock.core.liveness import Liveness
from penstock.core.queue import QueueShard, Totals
from penstock.core.queue_rules import next_given, overdue, settle
from penstock.core.records import Kind, PushMeta, pack_push
from penstock.core.runs import Run
from penstock.core.shard import Replayed
from penstock.errors import LeaseLostError
from penstock.sim import host
from penstock.sim.actors import Actor, Stage, Stream
from penstock.sim.client import Client, Script, Sleep
from penstock.sim.consumers import Consumer
from penstock.sim.disk import SimDisk
from penstock.sim.history import History
from penstock.sim.host import Host, Size
from penstock.sim.network import Network
from penstock.sim.world import World
from penstock.store.disk import DiskError
from penstock.wire import messages as m
from penstock.wire.batch import Batch
from penstock.wire.encode import encode_batch
from penstock.wire.entry import Entry
from penstock.wire.frames import Settle, SettleItem
from penstock.wire.messages import QueueOptions, StreamInfo


def new_queue() -> QueueShard:
    return QueueShard(0, 1, QueueOptions(), Totals(lambda places: None))


def store(queue: QueueShard, rows: int = 1, *, priority: int = 0, due_us: int = 0) -> int:
    base = queue.lane(priority).tail
    batch = Batch.parse(
        encode_batch([b"x"] * rows, timestamp_us=1, priority=priority, due_us=due_us)
    )
    header = batch.header._replace(base=base, arrived_us=1)
    queue.lane(priority).tail += rows
    queue.stored(header, 100 + base % 1000, 64, None, None)
    return base


def give(queue: QueueShard, messages: int = 100) -> Given:
    found = next_given(queue, messages, 1 << 20, 1000)
    assert found is not None
    queue.granted(found[0], 0)
    return found[0]


def test_a_delayed_batch_that_ends_before_an_older_one_does_not_hang_the_queue() -> None:
    queue = new_queue()
    store(queue)
    delayed = store(queue, due_us=50)
    give(queue)
    for run in queue.delayed.due(100):
        queue.returned.add(run)
    given = give(queue)
    assert given.position == delayed
    queue.changed(Change(Op.ACK, 1, given.number, delayed), 100)
    last = store(queue)
    assert queue.first_ready() == last


def test_rows_are_found_live_although_another_priority_has_leases() -> None:
    kernel = Kernel(1, 0)
    kernel.define(StreamInfo(1, "queue", "q", "default", {}))
    queue = kernel.shards[0].queue(1)
    store(queue, priority=9)
    give(queue)
    base = store(queue, 4, priority=0)
    first = give(queue, 2)
    queue.changed(Change(Op.ACK, 1, first.number, first.position), 0)
    meta = pack_push(PushMeta(1, 0, base, 4, 0, 0, 0))
    stored = queue.find(base)
    assert stored is not None
    assert Liveness(kernel).live_mask(0, Kind.PUSH, meta, stored) == 0b1110


def test_a_lease_that_is_extended_twice_at_once_runs_out_once() -> None:
    queue = new_queue()
    store(queue, 2)
    given = give(queue)
    for position in (given.position, given.position + 1):
        queue.changed(Change(Op.EXTEND, 1, given.number, position, 500), 0)
    changes = overdue(queue, 10_000)
    assert [change.op for change in changes] == [Op.EXPIRE]


def test_a_resent_ack_is_known_although_the_lease_was_partly_given_back() -> None:
    queue = new_queue()
    store(queue, 2)
    given = give(queue)
    for op, position in ((Op.ACK, given.position), (Op.NACK, given.position + 1)):
        queue.changed(Change(op, 1, given.number, position), 0)
    ack = SettleItem(int(Settle.ACK), 0, 1, given.number, given.position, 0)
    assert settle(queue, ack, 0) is None, "done before"
    for other in (ack._replace(position=given.position + 1), ack._replace(count=2)):
        with pytest.raises(LeaseLostError):
            settle(queue, other, 0)


def test_grants_after_a_restart_are_above_all_that_may_be_lost() -> None:
    leases = Leases()
    leases.give(5, Run(10, 1), 1000, 0)
    leases.restart(0, 1 << 24)
    assert leases.next_number == 1 << 24


class Machine:
    """A node without random faults, and one client that runs a script."""

    def __init__(self, disk: Callable[[World], SimDisk] = SimDisk) -> None:
        self.world = World(1)
        self.disk = disk(self.world)
        self.network = Network(self.world)
        self.host = Host(self.world, "node", self.disk, Size())
        self.stage = Stage(self.world, self.network, self.host, History())
        self.client = Client(self.world, self.network, self.host, "client")

    def run(self, script: Callable[[Client], Script[None]], seconds: float = 30.0) -> None:
        self.host.start()
        self.world.run(self.world.now_us + 200_000)
        ended: list[bool] = []

        def all_of_it(client: Client) -> Script[None]:
            yield from script(client)
            ended.append(True)

        self.client.start(all_of_it)
        self.world.run(self.world.now_us + int(seconds * 1e6), lambda: bool(ended))
        assert self.host.broken is None, self.host.broken
        assert self.client.broken is None
        assert ended, "the script did not come to its end"

    def consumer(self, **options: object) -> Consumer:
        return Consumer(self.stage, self.client, Stream("queue", "q", {"lease": 2.0, **options}))


class FailingOnce(SimDisk):
    """One call of a kind fails, when it is armed."""

    armed = ""

    def sync(self, name: str) -> None:
        if self.armed == "sync" and name.startswith("j-"):
            self.armed = ""
            self._keep_some(self._inode(name))
            raise DiskError("sync")
        super().sync(name)

    def rename(self, old: str, new: str) -> None:
        if self.armed == "rename" and new.startswith("r-"):
            self.armed = ""
            raise DiskError("rename")
        super().rename(old, new)


def test_a_checkpoint_does_not_keep_places_that_a_failed_sync_gave_up() -> None:
    machine = Machine(FailingOnce)
    actor = machine.consumer(durability="written")
    taken: list[bytes] = []

    def script(_: Client) -> Script[None]:
        queue = yield from actor.open_queue()
        yield from ops_push.push(queue, b"first", durability="synced")
        yield Sleep(1_000_000)
        for number in range(5):
            yield from ops_push.push(queue, b"%d" % number + b"." * 3000)
        assert machine.host.engine is not None
        machine.disk.armed = "sync"  # type: ignore[attr-defined]
        machine.host.engine.maintenance.want_checkpoint()
        yield Sleep(5_000_000)
        assert machine.host.engine.maintenance.checkpoints
        machine.host.crash(power_loss=True, down_us=1000)
        yield Sleep(2_000_000)
        for _attempt in range(6):
            popped = yield from actor.pop(queue, 10, 0.0)
            taken.extend(delivery.value for _message, delivery in popped)

    machine.run(script)
    assert sorted(taken) == [b"0", b"1", b"2", b"3", b"4", b"first"]


def fill_and_empty(machine: Machine, actor: Consumer) -> Script[None]:
    """Enough for several segments; a little is left in all of them until the end."""
    queue = yield from actor.open_queue()
    for messages in [4] * 30 + [100]:
        if messages == 100:
            yield Sleep(1_000_000)
        else:
            yield from ops_push.push_many(queue, [b"." * 4000] * 5, batch=1)
        popped = yield from actor.pop(queue, messages, 0.0)
        yield from actor.settle(queue, popped, Settle.ACK)
    yield Sleep(2_000_000)


@pytest.mark.parametrize("failure", ["rename", ""])
def test_maintenance_survives_a_failed_rename_and_sleeps_afterwards(failure: str) -> None:
    machine = Machine(FailingOnce)
    machine.disk.armed = failure  # type: ignore[attr-defined]
    actor = machine.consumer()

    def script(_: Client) -> Script[None]:
        yield from fill_and_empty(machine, actor)
        yield Sleep(10_000_000)
        yield from fill_and_empty(machine, actor)

    machine.run(script, 120)
    assert machine.disk.armed == ""  # type: ignore[attr-defined]
    assert machine.host.engine is not None
    assert machine.host.engine.maintenance.checkpoints > 1


def test_files_dropped_after_the_checkpoint_do_not_stop_maintenance_after_a_restart() -> None:
    machine = Machine()
    actor = machine.consumer()

    def script(_: Client) -> Script[None]:
        for _restart in range(3):
            yield from fill_and_empty(machine, actor)
            machine.host.crash(power_loss=True, down_us=1000)
            yield Sleep(1_000_000)

    machine.run(script, 120)
    assert not any("maintenance failed" in line for line in machine.world.trace)


def test_a_lease_lasts_although_the_clock_was_set_back_while_the_node_was_down() -> None:
    machine = Machine()
    actor = machine.consumer()
    accepted: list[bool | None] = []

    def script(_: Client) -> Script[None]:
        queue = yield from actor.open_queue()
        yield from ops_push.push(queue, b"message")
        popped = yield from actor.pop(queue, 1, 0.0)
        machine.host.crash(power_loss=False, down_us=1000)
        machine.host.jump_clock(-20_000_000)
        yield Sleep(500_000)
        yield from actor.settle(queue, popped, Settle.ACK)
        accepted.extend(each.accepted for each in popped[0][1].settlements)

    machine.run(script)
    assert accepted == [True]


def test_a_push_to_memory_is_answered_once_although_the_disk_is_full() -> None:
    machine = Machine()
    actor = machine.consumer(durability="memory")
    levels: list[str] = []

    def script(_: Client) -> Script[None]:
        queue = yield from actor.open_queue()
        machine.disk.full_until_us = machine.world.now_us + 1_000_000
        receipt = yield from ops_push.push(queue, b"message")
        levels.append(receipt.durability)
        yield Sleep(3_000_000)

    machine.run(script)
    assert levels == ["memory"]


def test_what_is_not_written_yet_is_delivered_together_with_what_must_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host, "WRITE_US", 100_000)
    machine = Machine(lambda world: SimDisk(world, slow_reads=1.0))
    actor = machine.consumer(durability="memory")
    taken: list[bytes] = []

    def script(_: Client) -> Script[None]:
        queue = yield from actor.open_queue()
        yield from ops_push.push(queue, b"old", durability="synced")
        machine.host.crash(power_loss=False, down_us=1000)  # it is not in the node's memory now
        yield Sleep(2_000_000)
        yield from ops_push.push(queue, b"new")
        popped = yield from actor.pop(queue, 2, 0.0)
        taken.extend(delivery.value for _message, delivery in popped)

    machine.run(script)
    assert sorted(taken) == [b"new", b"old"]


def test_a_token_of_a_claim_is_not_given_again_after_a_power_loss() -> None:
    machine = Machine()
    actor = Actor(machine.stage, machine.client, Stream("topic", "t", {"partitions": 1}))
    tokens: list[int] = []

    def script(_: Client) -> Script[None]:
        topic = yield from actor.open_topic()
        for member in range(12):
            info = yield from ops_group.claim(topic, 0, "group", f"member-{member}", 0.01)
            tokens.append(info.token)
            machine.host.crash(power_loss=True, down_us=1000)
            yield Sleep(1_000_000)

    machine.run(script)
    assert tokens == list(range(1, 13))


def appended(fabric: Fabric) -> list[Entry]:
    """What the core wants to log, taken out of its effects."""
    return [effect for effect in fabric.take_effects() if isinstance(effect, Entry)]


def fabric_with_a_session() -> tuple[Fabric, int, list[Entry]]:
    """One entry, bound to a session; and all that was logged for it."""
    fabric = Fabric(1, 0)
    fabric.connections[1] = {}
    info, _ = fabric.control.open(m.Open("table", "t"))
    number, _ = fabric.tables.begin(m.SessionOpen(1000))
    fabric.tables.put(m.Put(info.id, b"key", b"value", session=number))
    entries = appended(fabric)
    fabric.committed(entries, 0)
    return fabric, number, entries


def test_nobody_hears_of_the_end_of_a_session_before_it_is_safe() -> None:
    fabric, number, _ = fabric_with_a_session()
    fabric.tables.end(number)
    entries = appended(fabric)
    calls: list[m.Request] = [m.SessionKeep(number), m.SessionClose(number)]
    for request, call in enumerate(calls):
        fabric.calls.run(1, request, call)
    effects = fabric.take_effects()
    assert not [effect for effect in effects if isinstance(effect, Send)]
    entries += [effect for effect in effects if isinstance(effect, Entry)]
    fabric.committed(entries, 0)
    assert len([each for each in fabric.take_effects() if isinstance(each, Send)]) == 2


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_a_session_does_not_outlive_its_entries(kept: int) -> None:
    """A crash after any of the records that end it."""
    fabric, number, entries = fabric_with_a_session()
    fabric.tables.end(number)
    ending = [entry for entry in appended(fabric) if entry.kind != Kind.BARRIER]
    assert len(ending) == 2
    again = Fabric(1, 0)
    for each in (*entries, *ending[:kept]):
        again.replay(Replayed(each.shard, each.kind, each.number, each.meta, None, 0, 0), 0)
    again.restart(0)
    there = any(shard.table(1).cells for shard in again.kernel.shards)
    assert there == (number in again.tables.sessions) == (kept == 0)
