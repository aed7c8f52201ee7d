"""One run: a node, its clients, faults, the last act, and the checks."""

from __future__ import annotations

from penstock.sim.actors import MakeScript, Process, Stage, Stream
from penstock.sim.check_queues import check_queue
from penstock.sim.check_tables import check_table
from penstock.sim.check_topics import check_commits, check_topic
from penstock.sim.check_transactions import check_transactions
from penstock.sim.client import Client, Script
from penstock.sim.consumers import Consumer, Subscriber, TopicReader
from penstock.sim.disk import SimDisk
from penstock.sim.drain import Drain
from penstock.sim.faults import Faults, Injector
from penstock.sim.history import History
from penstock.sim.host import Host, Size
from penstock.sim.network import Network
from penstock.sim.producers import IdProducer, NamedProducer, Publisher, QueueProducer
from penstock.sim.report import Verdict
from penstock.sim.tables import TableClient, Transactor
from penstock.sim.world import START_US, World

DRAIN_US = 900_000_000
PARTITIONS = 2

PLAIN = Stream("queue", "plain", {"lease": 2.0, "max_deliveries": 0})
WRITTEN = Stream("queue", "written", {"lease": 2.0, "max_deliveries": 6, "durability": "written"})
ORDERED = Stream("queue", "ordered", {"lease": 2.0, "max_deliveries": 0, "ordered": "queue"})
KEYED = Stream("queue", "keyed", {"lease": 2.0, "max_deliveries": 0, "ordered": "key"})
IN = Stream("queue", "in", {"lease": 2.0, "max_deliveries": 0})
OUT = Stream("queue", "out", {"lease": 2.0, "max_deliveries": 0})
TOPIC = Stream("topic", "topic", {"partitions": PARTITIONS})
TABLE = Stream("table", "table", {})
LEDGER = Stream("table", "ledger", {})
STREAMS = (PLAIN, WRITTEN, ORDERED, KEYED, IN, OUT, TOPIC, TABLE, LEDGER)


class Scenario:
    """Everything of one run. Build it, `run` it, read the verdict."""

    def __init__(self, seed: int, minutes: float, faults: str, size: Size | None = None) -> None:
        self.seed = seed
        self.minutes = minutes
        self.faults = faults
        self.world = World(seed)
        self.network = Network(self.world)
        self.disk = SimDisk(self.world)
        self.host = Host(self.world, "node", self.disk, size or Size())
        self.history = History(power_losses=self.host.power_losses)
        self.stage = Stage(self.world, self.network, self.host, self.history)
        self.processes = self._processes()
        self.injector = Injector(
            self.world, Faults.named(faults), self.network, self.host, self.processes
        )
        self.drain = Drain(self.stage, STREAMS, LEDGER.name)

    def _processes(self) -> list[Process]:
        stage = self.stage

        def producer(stream: Stream) -> MakeScript:
            return lambda client: QueueProducer(stage, client, stream).run()

        def consumer(stream: Stream) -> MakeScript:
            return lambda client: Consumer(stage, client, stream).run()

        def reader(partition: int) -> MakeScript:
            return lambda client: TopicReader(stage, client, TOPIC, partition).run()

        def named(stream: Stream) -> MakeScript:
            return lambda client: NamedProducer(stage, client, stream).run()

        def publisher(client: Client) -> Script[None]:
            return Publisher(stage, client, TOPIC).run()

        def with_ids(client: Client) -> Script[None]:
            return IdProducer(stage, client, PLAIN).run()

        def table(client: Client) -> Script[None]:
            return TableClient(stage, client, TABLE).run()

        def transactor(client: Client) -> Script[None]:
            return Transactor(stage, client, IN, OUT, LEDGER).run()

        return [
            Process(stage, "p1", producer(PLAIN), producer(ORDERED), producer(WRITTEN)),
            Process(stage, "p2", producer(PLAIN), producer(KEYED), producer(ORDERED)),
            Process(stage, "p3", named(PLAIN), named(ORDERED), named(TOPIC), with_ids),
            Process(stage, "p4", publisher, producer(IN)),
            Process(stage, "c1", consumer(PLAIN), consumer(ORDERED), consumer(KEYED)),
            Process(stage, "c2", consumer(WRITTEN), consumer(ORDERED), consumer(KEYED)),
            Process(stage, "c3", lambda client: Subscriber(stage, client, PLAIN).run()),
            Process(stage, "c4", *map(reader, range(PARTITIONS))),
            Process(stage, "t1", table, transactor, consumer(OUT)),
            Process(stage, "t2", table, transactor, transactor),
        ]

    def run(self) -> Verdict:
        """Work and faults, then quiet, then the last act."""
        world = self.world
        self.host.start()
        for process in self.processes:
            world.after(world.between(1000, 200_000), process.start)
        self.injector.start()
        work_us = START_US + int(self.minutes * 60e6)
        world.run(work_us, self._broken)
        world.note("the work is over, and nothing breaks any more")
        self.stage.over = True
        self.injector.stop()
        self.rest()
        last = Process(self.stage, "last", self.drain.run)
        world.after(3_000_000, last.start)
        self.processes.append(last)
        world.run(world.now_us + DRAIN_US, lambda: self.drain.done or self._broken())
        return self._verdict()

    def rest(self) -> None:
        """Between the work and the last act."""

    def _broken(self) -> bool:
        return self._breakage() is not None

    def _breakage(self) -> str | None:
        if self.host.broken is not None:
            return self.host.broken
        clients = (process.client for process in self.processes)
        return next((c.broken for c in clients if c is not None and c.broken is not None), None)

    def _verdict(self) -> Verdict:
        problems = self.problems()
        figures = self._figures()
        self.world.note(f"{figures}")
        for problem in problems:
            self.world.note(problem.splitlines()[0])
        return Verdict(
            self.seed, self.faults, self.minutes, problems, self.world.digest, figures,
            list(self.world.trace),
        )  # fmt: skip

    def problems(self) -> list[str]:
        """All promises that were broken."""
        if (breakage := self._breakage()) is not None:
            return [breakage]
        problems: list[str] = []
        if not self.drain.done or self.drain.left is not None:
            problems.append(self.drain.left or "the last act did not end: something hangs")
        for stream in STREAMS:
            if stream.kind == "queue":
                problems += check_queue(self.history, stream)
            elif stream.kind == "topic":
                problems += check_topic(self.history, stream)
        problems += check_commits(self.history)
        problems += check_transactions(self.history)
        problems += check_table(self.history)
        return problems

    def _figures(self) -> dict[str, int]:
        engine = self.host.engine
        maintenance = None if engine is None else engine.maintenance
        return {
            "events": self.world.events,
            "pushes": len(self.history.pushes),
            "deliveries": len(self.history.deliveries),
            "reads": len(self.history.reads),
            "table_calls": len(self.history.table),
            "transactions": len(self.history.transactions),
            "faults": self.injector.injected,
            "crashes": self.host.crashes,
            "power_losses": len(self.host.power_losses),
            "disk_failures": self.disk.failures,
            "recoveries": self.host.recoveries,
            "checkpoints": self.host.checkpoints + (maintenance.checkpoints if maintenance else 0),
            "cleaned_files": self.host.cleaned_files
            + (maintenance.cleaned_files if maintenance else 0),
        }
