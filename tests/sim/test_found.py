"""Defects that the simulator found, each as the smallest case that shows it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.client import ops_push
from penstock.core.changes import Change, Given, Op
from penstock.core.kernel import Kernel
from penstock.core.leases import Leases
from penstock.core.liveness import Liveness
from penstock.core.queue import QueueShard, Totals
from penstock.core.queue_rules import next_given, overdue, settle
from penstock.core.records import Kind, PushMeta, pack_push
from penstock.core.runs import Run
from penstock.errors import LeaseLostError
from penstock.sim.actors import Stage, Stream
from penstock.sim.client import Client, Script, Sleep
from penstock.sim.consumers import Consumer
from penstock.sim.disk import SimDisk
from penstock.sim.history import History
from penstock.sim.host import Host, Size
from penstock.sim.network import Network
from penstock.sim.world import World
from penstock.store.disk import DiskError
from penstock.wire.batch import Batch
from penstock.wire.encode import encode_batch
from penstock.wire.frames import Settle, SettleItem
from penstock.wire.messages import QueueOptions, StreamInfo


def new_queue() -> QueueShard:
    return QueueShard(0, 1, QueueOptions(), Totals(lambda location, size: None))


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
