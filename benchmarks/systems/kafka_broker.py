"""One broker of Kafka that is its own controller (KRaft); confluent-kafka, acks=all."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.install import Needs, jars_folder
from benchmarks.servers import Server, free_port
from benchmarks.system import MIB, Body, Client, Sink, System, chunks

TOPIC, GROUP = "q", "g"
VERSION = "4.1.0"
CLUSTER = "AAAAAAAAAAAAAAAAAAAAAQ"  # any id of 16 bytes
# As Kafka's own start scripts.
HEAP = ("-Xmx1g", "-Xms1g")
COLLECTOR = (
    "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent",
)  # fmt: skip
LARGEST = 8 * MIB
IDLE_SECONDS = 0.05
FIRST_USE_SECONDS = 20
POLLED, PRODUCED, ACKED = 5000, 500, 5000
# As they come, the library pauses for a second whenever 100,000 messages wait in it.
FETCHED = {"queued.min.messages": 1_000_000, "fetch.queue.backoff.ms": 1}

_DURABLE = {
    "default": "handed to the kernel, synced when it sees fit; Kafka counts on its replicas",
    "flush": "on disk: synced before it is confirmed",
}
_FLUSH = {
    "default": "flush.messages as it comes (never)",
    "flush": "flush.messages 1",
}


class KafkaBroker(System):
    """The broker's defaults but for sizes, replicas of its own topics, and the flush."""

    module = "kafka_broker"
    needs = Needs(
        python=("confluent-kafka>=2.5,<3",),
        jars=("org.apache.kafka", "kafka_2.13", VERSION),
        programs=("java",),
    )
    library = "confluent-kafka"
    max_queues = 1000  # every topic is a folder with files that are open

    @property
    def durable(self) -> str:
        return _DURABLE[self.variant]

    @property
    def settings(self) -> str:
        return (
            f"one KRaft broker, acks all, {_FLUSH[self.variant]}, "
            f"offset commits without linger, {' '.join(HEAP)}, G1"
        )

    def _java(self, main: str, *arguments: str | Path) -> list[str | Path]:
        return ["java", *HEAP, *COLLECTOR, "-cp", f"{jars_folder(self.module)}/*", main, *arguments]

    def start(self, fresh: bool = True) -> None:
        folder, port = self.place(fresh)
        config = folder / "server.properties"
        if fresh:
            config.write_text(self._properties(folder, port, free_port()))
            argv = self._java("kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", config)
            subprocess.run(argv, check=True, capture_output=True, timeout=60)
        server = Server(self._java("kafka.Kafka", config), folder / "log")
        self.servers.append(server)
        self.endpoint = f"127.0.0.1:{port}"
        server.await_port(port)

    def _properties(self, folder: Path, port: int, controller: int) -> str:
        flush = "log.flush.interval.messages=1\n" if self.variant == "flush" else ""
        return f"""process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
log.dirs={folder}/data
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
group.coordinator.append.linger.ms=0
message.max.bytes={LARGEST}
auto.create.topics.enable=false
{flush}"""

    def version(self) -> str:
        return f"Apache Kafka {VERSION}"


class KafkaClient(Client):
    """Partitions are assigned by hand, one to each consumer; an ack is a commit of offsets."""

    _producer: Any = None
    _consumer: Any = None
    _errors = 0

    async def open(self) -> None:
        import confluent_kafka
        from confluent_kafka.admin import AdminClient

        self._library = confluent_kafka
        server = {"bootstrap.servers": self.place.endpoint}
        self._server = {**server, "broker.address.family": "v4", "log_level": 0}
        self._admin = AdminClient(self._server)
        self._admin.list_topics(timeout=10)  # connects, or raises
        self._produce_with(linger=5)

    def _produce_with(self, linger: int) -> None:
        settings = {
            "acks": "all", "linger.ms": linger, "message.max.bytes": LARGEST,
            "delivery.report.only.error": True,
            "queue.buffering.max.messages": 1_000_000,
        }  # fmt: skip
        self._linger = linger
        self._producer = self._library.Producer({**self._server, **settings})

    async def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    async def reset(self) -> None:
        if TOPIC in self._admin.list_topics(timeout=10).topics:
            self._admin.delete_topics([TOPIC])[TOPIC].result(30)
        await self._make(TOPIC, self.place.consumers)

    async def _make(self, name: str, partitions: int) -> None:
        from confluent_kafka.admin import NewTopic

        # A name that was just deleted is free only after a moment.
        for attempt in range(100):
            try:
                made = self._admin.create_topics([NewTopic(name, partitions, 1)])
                made[name].result(30)
                return
            except self._library.KafkaException:
                if attempt == 99:
                    raise
            self._admin.poll(0.1)

    def _confirmed(self, error: Any, _message: Any) -> None:
        self._errors += error is not None

    def _produce(self, name: str, bodies: Sequence[bytes]) -> None:
        left = [{"value": body} for body in bodies]
        while left:
            self._producer.produce_batch(name, left, on_delivery=self._confirmed)
            left = [{"value": each["value"]} for each in left if "_error" in each]
            if left:  # there was no room for these
                self._producer.poll(0.1)

    def _finish(self) -> None:
        if self._producer.flush(60) or self._errors:
            raise RuntimeError("messages were not confirmed")

    async def push_all(self, bodies: Iterable[bytes]) -> int:
        count = 0
        for chunk in chunks(bodies, self.window(PRODUCED)):
            self._produce(TOPIC, chunk)
            count += len(chunk)
            self._producer.poll(0)
        self._finish()
        return count

    async def push_one(self, body: bytes) -> None:
        await self.push_to(TOPIC, body)

    async def push_due(self, bodies: list[bytes]) -> None:
        if self._linger:
            self._produce_with(linger=0)
        self._produce(TOPIC, bodies)
        self._producer.poll(0)

    async def prepare(self) -> None:
        partition = self._library.TopicPartition(TOPIC, self.place.number)
        self._consumer = self._library.Consumer({
            **self._server, "group.id": GROUP, "enable.auto.commit": False,
            "auto.offset.reset": "earliest", **FETCHED,
        })  # fmt: skip
        self._begin = await self._first_use(partition)
        self._consumer.get_watermark_offsets(partition, timeout=FIRST_USE_SECONDS)  # connects

    async def _first_use(self, partition: Any) -> Any:
        """Where the group is. Its first use takes long, and the broker may not answer for it yet:
        an assignment that has to ask for itself waits for a second."""
        until = time.monotonic() + FIRST_USE_SECONDS
        while True:
            try:
                [begin] = self._consumer.committed([partition], timeout=FIRST_USE_SECONDS)
                begin.offset = max(begin.offset, 0)
                return begin
            except self._library.KafkaException:
                if time.monotonic() > until:
                    raise
            await asyncio.sleep(0.1)

    async def _listen(self) -> Any:
        if self._consumer is None:
            await self.prepare()
        if not self._consumer.assignment():
            self._consumer.assign([self._begin])
        return self._consumer

    async def pop_one(self) -> Body:
        consumer = await self._listen()
        message = consumer.poll(10.0)
        if message is None or message.error():
            raise RuntimeError("no message")
        consumer.commit(message, asynchronous=False)
        body: bytes = message.value()
        return body

    async def consume(self, sink: Sink) -> None:
        consumer = await self._listen()
        wanted, acked = True, 0
        while wanted:
            first = consumer.poll(IDLE_SECONDS)
            # With a time-out, `consume` would wait for all of them: take what is there already.
            polled = [first, *consumer.consume(POLLED, 0)] if first is not None else []
            found = [each for each in polled if not each.error()]
            wanted = sink([each.value() for each in found])
            acked += len(found)
            if acked and (acked >= ACKED or not found):  # often makes it slow: it is a message, too
                consumer.commit(asynchronous=True)
                acked = 0
        reached = consumer.position(consumer.assignment())
        if reached[0].offset >= 0:  # something came
            consumer.commit(offsets=reached, asynchronous=False)

    async def make_queue(self, name: str) -> None:
        await self._make(name, 1)

    async def push_to(self, name: str, body: bytes) -> None:
        if self._linger:
            self._produce_with(linger=0)
        self._produce(name, [body])
        self._finish()


SYSTEM = KafkaBroker
CLIENT = KafkaClient
