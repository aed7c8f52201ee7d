"""The workload of a cluster: streams, who works on them, and what is checked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

from penstock.client.aio import AsyncFabric
from penstock.errors import InvalidError
from penstock.sim.actors import Stream
from penstock.sim.check_claims import check_claims
from penstock.sim.check_ends import check_ends
from penstock.sim.check_graphs import check_graph
from penstock.sim.check_keys import check_keys
from penstock.sim.check_queues import check_queue
from penstock.sim.check_staged import check_holds, check_staged
from penstock.sim.check_tables import check_table
from penstock.sim.check_topics import check_commits, check_topic
from penstock.sim.cluster.consumers import Consumer, StayingConsumer, Subscriber, TopicReader
from penstock.sim.cluster.graphs import GraphBuilder, GraphWorker
from penstock.sim.cluster.growth import Grower, KeyPublisher, KeyReader, KeyTransactor
from penstock.sim.cluster.process import Role
from penstock.sim.cluster.producers import IdProducer, NamedProducer, Publisher, QueueProducer
from penstock.sim.cluster.stage import Stage
from penstock.sim.cluster.staged import Committer, KeyCommitter, Reserver
from penstock.sim.cluster.tables import Member, TableClient
from penstock.sim.history import History
from penstock.sim.world import World

Check = Callable[[History, Stream], list[str]]
Make = Callable[..., Any]


class Part(NamedTuple):
    """A stream, the actors on it by the name of their process, and the checks."""

    stream: Stream
    actors: tuple[tuple[str, Make, dict[str, Any]], ...]
    checks: tuple[Check, ...]

    def check(self, history: History) -> list[str]:
        """All promises that were broken."""
        return [problem for check in self.checks for problem in check(history, self.stream)]


def _queue(name: str, *actors: tuple[str, Make], **options: Any) -> Part:
    stream = Stream("queue", name, {"lease": 5.0, "max_deliveries": 0, **options})
    return Part(stream, tuple((who, make, {}) for who, make in actors), (check_queue,))


def _topic(name: str, partitions: int, *actors: tuple[str, Make, dict[str, Any]]) -> Part:
    stream = Stream("topic", name, {"partitions": partitions})
    return Part(stream, actors, (check_topic, check_commits, check_ends, check_claims))


PARTS: dict[str, Part] = {
    "plain": _queue(
        "plain", ("p1", QueueProducer), ("p2", QueueProducer), ("p3", NamedProducer),
        ("c1", Consumer), ("c2", Consumer), ("c3", Subscriber),
    ),
    "ordered": _queue(
        "ordered", ("p1", QueueProducer), ("p3", QueueProducer), ("c1", Consumer),
        ("c3", Consumer), ordered="queue",
    ),
    "keyed": _queue(
        "keyed", ("p2", QueueProducer), ("p4", QueueProducer), ("c2", Consumer),
        ("c4", Consumer), ordered="key",
    ),
    "ids": _queue("ids", ("p1", IdProducer), ("p4", IdProducer), ("c1", Consumer)),
    "written": _queue(
        "written", ("p2", QueueProducer), ("c3", Consumer), durability="written"
    ),
    "memory": _queue("memory", ("p3", QueueProducer), ("c4", Consumer), durability="memory"),
    "moving": _queue(
        "moving", ("p1", QueueProducer), ("p2", QueueProducer), ("c3", StayingConsumer),
        ("c4", StayingConsumer),
    ),
    "topic": _topic(
        "topic", 3, ("p4", Publisher, {}), ("p1", Publisher, {}),
        *((f"c{1 + n}", TopicReader, {"partition": n}) for n in range(3)),
    ),
    "growing": Part(
        Stream("topic", "growing", {"partitions": 2}),
        (
            ("p1", KeyPublisher, {}), ("p3", KeyPublisher, {}), ("p4", KeyTransactor, {}),
            ("c2", Grower, {}), ("c3", KeyReader, {}), ("c4", TopicReader, {"partition": 0}),
        ),
        (check_topic, check_commits, check_ends, check_keys),
    ),
    "claims": _topic(
        "claims", 1, ("p2", Publisher, {}), ("c1", Member, {}), ("c2", Member, {}),
        ("c4", Member, {}),
    ),
    "staged": Part(
        Stream("topic", "staged", {"partitions": 3}),
        (
            ("t1", Committer, {}), ("t2", Committer, {}), ("t3", Committer, {}),
            ("p1", Publisher, {}), ("c1", TopicReader, {"partition": 0}),
        ),
        (check_topic, check_commits, check_ends, check_staged),
    ),
    "staged-queue": Part(
        Stream("queue", "staged-queue", {"lease": 5.0, "max_deliveries": 0}),
        (("t1", Committer, {}), ("t2", Committer, {}), ("c2", Consumer, {})),
        (check_queue, check_staged),
    ),
    "reserved": Part(
        Stream("queue", "reserved", {"lease": 5.0, "max_deliveries": 0}),
        (
            ("p1", QueueProducer, {}), ("p2", QueueProducer, {}), ("t1", Reserver, {}),
            ("t3", Reserver, {}), ("c3", Consumer, {}),
        ),
        (check_queue, check_holds),
    ),
    "staged-growing": Part(
        Stream("topic", "staged-growing", {"partitions": 2}),
        (
            ("t1", KeyCommitter, {}), ("t2", KeyCommitter, {}), ("t3", KeyCommitter, {}),
            ("p2", KeyPublisher, {}), ("c2", Grower, {}), ("c4", KeyReader, {}),
        ),
        (check_topic, check_commits, check_ends, check_keys, check_staged),
    ),
    "graph": Part(
        Stream("queue", "graph", {"lease": 5.0, "max_deliveries": 0}),
        (
            ("p1", GraphBuilder, {}), ("p3", GraphBuilder, {}), ("c1", GraphWorker, {}),
            ("c2", GraphWorker, {}), ("c4", GraphWorker, {}),
        ),
        (check_queue, check_graph),
    ),
    "table": Part(
        Stream("table", "table", {}),
        tuple((name, TableClient, {}) for name in ("t1", "t2", "t3")),
        (check_table,),
    ),
}  # fmt: skip

# Parts that came later go with others: seeds that were run before stay what they were.
LATER = {
    "growing": "topic", "staged": "claims", "staged-queue": "ids", "reserved": "written",
    "staged-growing": "table", "graph": "keyed",
}  # fmt: skip


def chosen_parts(world: World, wanted: str) -> list[str]:
    """The named parts, or two or three by chance; InvalidError for a name that is none."""
    names = list(PARTS)
    if wanted:
        named = names if wanted == "all" else [name for name in wanted.split(",") if name]
        if unknown := [name for name in named if name not in PARTS]:
            raise InvalidError(f"parts {unknown}: use all, or some of {', '.join(PARTS)}")
        return named
    older = [name for name in names if name not in LATER]
    chosen = world.random.sample(older, world.between(2, 3))
    return [name for name in names if LATER.get(name, name) in chosen]


def roles_of(stage: Stage, parts: list[str]) -> dict[str, list[Role]]:
    """What each process does."""
    roles: dict[str, list[Role]] = defaultdict(list)
    for name in parts:
        part = PARTS[name]
        for who, make, given in part.actors:
            roles[who].append(_role(stage, make, part.stream, given))
    return {who: roles[who] for who in sorted(roles)}


def _role(stage: Stage, make: Make, stream: Stream, given: dict[str, Any]) -> Role:
    async def play(fabric: AsyncFabric, name: str) -> None:
        await make(stage, fabric, name, stream, **given).run()

    return play
