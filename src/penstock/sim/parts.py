"""The parts of the workload: streams, who works on them, and what is checked. A seed has some."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

from penstock.errors import InvalidError
from penstock.sim.actors import MakeScript, Process, Stage, Stream
from penstock.sim.check_claims import check_claims
from penstock.sim.check_gangs import check_gangs
from penstock.sim.check_graphs import check_graph
from penstock.sim.check_keys import check_keys
from penstock.sim.check_latest import check_latest
from penstock.sim.check_queues import check_queue
from penstock.sim.check_sessions import check_sessions
from penstock.sim.check_staged import check_holds, check_staged
from penstock.sim.check_tables import check_table
from penstock.sim.check_terms import check_terms
from penstock.sim.check_topics import check_commits, check_topic
from penstock.sim.check_transactions import check_transactions
from penstock.sim.check_upkeep import check_upkeep
from penstock.sim.check_watches import check_watches
from penstock.sim.claims import Member
from penstock.sim.client import Client, Script
from penstock.sim.consumers import Consumer, Subscriber, TopicReader
from penstock.sim.gangs import GangProducer, GangTaker
from penstock.sim.graph_actors import GraphBuilder, GraphWorker
from penstock.sim.graphs import ENTRIES
from penstock.sim.growth import Grower, KeyPublisher, KeyReader
from penstock.sim.history import History
from penstock.sim.producers import IdProducer, NamedProducer, Publisher, QueueProducer
from penstock.sim.retention import LatestPublisher, LatestReader, TrimmedReader
from penstock.sim.sessions import SessionHolder, SessionLooker
from penstock.sim.staged import Committer, KeyCommitter, Reserver
from penstock.sim.tables import TableClient, Transactor
from penstock.sim.terms import (
    ExpiringProducer,
    FailingConsumer,
    HoldProducer,
    Releaser,
    ScheduledProducer,
    SharedIdProducer,
    SlowConsumer,
    UrgentProducer,
)
from penstock.sim.upkeep import Peeker, Purger, Redriver
from penstock.sim.watches import TableWatcher
from penstock.sim.world import World

Role = Callable[[Stage, Client], Script[None]]
Check = Callable[[History, Stream], list[str]]


class Part(NamedTuple):
    """Some streams, the roles that processes play on them, and the checks of each stream."""

    streams: tuple[Stream, ...]
    roles: tuple[tuple[str, Role], ...]  # the name of a process, and what it does
    checks: tuple[tuple[Check, Stream], ...] = ()

    def check(self, history: History) -> list[str]:
        """All promises of its streams that were broken."""
        found: list[str] = []
        for stream in self.streams:
            for check in _CHECKS.get(stream.kind, ()):
                found += check(history, stream)
        for check, stream in self.checks:
            found += check(history, stream)
        return found


_CHECKS: dict[str, tuple[Check, ...]] = {
    "queue": (check_queue, check_terms, check_upkeep),
    "topic": (check_topic, check_commits),
}


def _plays(actor: Callable[..., Any], *given: object) -> Role:
    def role(stage: Stage, client: Client) -> Script[None]:
        script: Script[None] = actor(stage, client, *given).run()
        return script

    return role


def _queue(name: str, **options: Any) -> Stream:
    return Stream("queue", name, {"lease": 2.0, "max_deliveries": 0, **options})


def _simple(
    stream: Stream, producer: Callable[..., Any], consumer: Callable[..., Any], *others: Any
) -> Part:
    """Two producers and two consumers of a queue, and others beside them."""
    roles = [("p1", producer), ("p2", producer), ("c1", consumer), ("c2", consumer)]
    roles += [("k1", other) for other in others]
    return Part((stream,), tuple((name, _plays(actor, stream)) for name, actor in roles))


PLAIN = _queue("plain")
ORDERED = _queue("ordered", ordered="queue")
KEYED = _queue("keyed", ordered="key")
WRITTEN = _queue("written", durability="written", max_deliveries=6)
MEMORY = _queue("memory", durability="memory")
IN, OUT, LEDGER = _queue("in"), _queue("out"), Stream("table", "ledger", {})
TOPIC = Stream("topic", "topic", {"partitions": 2})
TABLE = Stream("table", "table", {})
WATCHED = Stream("table", "watched", {})
SESSIONS = Stream("table", "sessions", {})
CLAIMED = Stream("topic", "claimed", {"partitions": 1})
STAGED = Stream("topic", "staged", {"partitions": 2})
STAGED_QUEUE, RESERVED = _queue("staged-queue"), _queue("reserved")
STAGED_GROWING = Stream("topic", "staged-growing", {"partitions": 2})
AGED = Stream("topic", "aged", {"partitions": 2, "retention_ms": 2500})
SIZED = Stream("topic", "sized", {"partitions": 1, "retention_bytes": 6000})
GROWING = Stream("topic", "growing", {"partitions": 2})
LATEST = Stream("topic", "latest", {"partitions": 1, "keep": "latest"})
GRAPH = _queue("graph")
GANGS = _queue("gangs", gangs=True)

PARTS: dict[str, Part] = {
    "plain": Part(
        (PLAIN,),
        (
            ("p1", _plays(QueueProducer, PLAIN)),
            ("p2", _plays(QueueProducer, PLAIN)),
            ("p3", _plays(NamedProducer, PLAIN)),
            ("p3", _plays(IdProducer, PLAIN)),
            ("c1", _plays(Consumer, PLAIN)),
            ("c3", _plays(Subscriber, PLAIN)),
        ),
    ),
    "ordered": Part(
        (ORDERED, KEYED),
        (
            ("p1", _plays(QueueProducer, ORDERED)),
            ("p2", _plays(QueueProducer, ORDERED)),
            ("p2", _plays(QueueProducer, KEYED)),
            ("p3", _plays(NamedProducer, ORDERED)),
            ("c1", _plays(Consumer, ORDERED)),
            ("c1", _plays(Consumer, KEYED)),
            ("c2", _plays(Consumer, ORDERED)),
            ("c2", _plays(Consumer, KEYED)),
        ),
    ),
    "topic": Part(
        (TOPIC,),
        (
            ("p3", _plays(NamedProducer, TOPIC)),
            ("p4", _plays(Publisher, TOPIC)),
            ("c4", _plays(TopicReader, TOPIC, 0)),
            ("c4", _plays(TopicReader, TOPIC, 1)),
        ),
    ),
    "table": Part(
        (TABLE,),
        (("t1", _plays(TableClient, TABLE)), ("t2", _plays(TableClient, TABLE))),
        ((check_table, TABLE),),
    ),
    "transactions": Part(
        (IN, OUT, LEDGER),
        (
            ("p4", _plays(QueueProducer, IN)),
            ("t1", _plays(Transactor, IN, OUT, LEDGER)),
            ("t2", _plays(Transactor, IN, OUT, LEDGER)),
            ("t2", _plays(Transactor, IN, OUT, LEDGER)),
            ("t1", _plays(Consumer, OUT)),
        ),
        ((check_transactions, LEDGER),),
    ),
    "written": _simple(WRITTEN, QueueProducer, Consumer, Subscriber),
    "memory": _simple(MEMORY, QueueProducer, Consumer),
    "held": _simple(_queue("held"), HoldProducer, Consumer, Releaser, Peeker),
    "ids": _simple(_queue("ids"), SharedIdProducer, Consumer),
    "expiring": _simple(_queue("expiring", ttl=5.0), ExpiringProducer, SlowConsumer),
    "scheduled": _simple(_queue("scheduled"), ScheduledProducer, Consumer, Peeker),
    "urgent": _simple(_queue("urgent"), UrgentProducer, SlowConsumer, Peeker),
    "bounded": _simple(_queue("bounded", max_messages=25), QueueProducer, SlowConsumer),
    "purged": _simple(_queue("purged"), QueueProducer, SlowConsumer, Purger, Peeker),
    "dead": _simple(
        _queue("dead", max_deliveries=2), QueueProducer, FailingConsumer, Redriver, Peeker
    ),
    "staged": Part(
        (STAGED, STAGED_QUEUE),
        (
            ("t1", _plays(Committer, STAGED)),
            ("t2", _plays(Committer, STAGED)),
            ("p3", _plays(Publisher, STAGED)),
            ("c4", _plays(TopicReader, STAGED, 0)),
            ("c4", _plays(TopicReader, STAGED, 1)),
            ("t1", _plays(Committer, STAGED_QUEUE)),
            ("t2", _plays(Committer, STAGED_QUEUE)),
            ("c1", _plays(Consumer, STAGED_QUEUE)),
        ),
        ((check_staged, STAGED), (check_staged, STAGED_QUEUE)),
    ),
    "staged-growing": Part(
        (STAGED_GROWING,),
        (
            ("t1", _plays(KeyCommitter, STAGED_GROWING)),
            ("t2", _plays(KeyCommitter, STAGED_GROWING)),
            ("p3", _plays(KeyPublisher, STAGED_GROWING)),
            ("k1", _plays(Grower, STAGED_GROWING)),
            ("c3", _plays(KeyReader, STAGED_GROWING)),
        ),
        ((check_keys, STAGED_GROWING), (check_staged, STAGED_GROWING)),
    ),
    "reserved": Part(
        (RESERVED,),
        (
            ("p1", _plays(QueueProducer, RESERVED)),
            ("p2", _plays(QueueProducer, RESERVED)),
            ("t1", _plays(Reserver, RESERVED)),
            ("t2", _plays(Reserver, RESERVED)),
            ("c2", _plays(SlowConsumer, RESERVED)),
        ),
        ((check_holds, RESERVED),),
    ),
    "watches": Part(
        (WATCHED,),
        (
            ("t1", _plays(TableClient, WATCHED)),
            ("t2", _plays(TableClient, WATCHED)),
            ("k1", _plays(TableWatcher, WATCHED)),
            ("c4", _plays(TableWatcher, WATCHED)),
        ),
        ((check_watches, WATCHED),),
    ),
    "sessions": Part(
        (SESSIONS,),
        (
            ("t1", _plays(SessionHolder, SESSIONS)),
            ("t2", _plays(SessionHolder, SESSIONS)),
            ("k1", _plays(SessionLooker, SESSIONS)),
        ),
        ((check_sessions, SESSIONS),),
    ),
    "claims": Part(
        (CLAIMED,),
        (
            ("p4", _plays(Publisher, CLAIMED)),
            ("c1", _plays(Member, CLAIMED)),
            ("c2", _plays(Member, CLAIMED)),
            ("c3", _plays(Member, CLAIMED)),
        ),
        ((check_claims, CLAIMED),),
    ),
    "retention": Part(
        (AGED, SIZED),
        (
            ("p4", _plays(Publisher, AGED)),
            ("p3", _plays(Publisher, SIZED)),
            ("c4", _plays(TrimmedReader, AGED, 0)),
            ("c4", _plays(TrimmedReader, AGED, 1)),
            ("c3", _plays(TrimmedReader, SIZED, 0)),
        ),
    ),
    "latest": Part(
        (LATEST,),
        (
            ("p3", _plays(LatestPublisher, LATEST)),
            ("p4", _plays(LatestPublisher, LATEST)),
            ("c4", _plays(LatestReader, LATEST)),
        ),
        ((check_latest, LATEST),),
    ),
    "growing": Part(
        (GROWING,),
        (
            ("p3", _plays(KeyPublisher, GROWING)),
            ("p4", _plays(KeyPublisher, GROWING)),
            ("k1", _plays(Grower, GROWING)),
            ("c3", _plays(KeyReader, GROWING)),
            ("c4", _plays(TopicReader, GROWING, 0)),
        ),
        ((check_keys, GROWING),),
    ),
    "graph": Part(
        (GRAPH, ENTRIES),
        (
            ("p1", _plays(GraphBuilder, GRAPH)),
            ("p2", _plays(GraphBuilder, GRAPH)),
            ("c1", _plays(GraphWorker, GRAPH)),
            ("c2", _plays(GraphWorker, GRAPH)),
            ("c3", _plays(GraphWorker, GRAPH)),
        ),
        ((check_graph, GRAPH),),
    ),
    "gangs": Part(
        (GANGS,),
        (
            ("p1", _plays(GangProducer, GANGS)),
            ("p2", _plays(GangProducer, GANGS)),
            *((f"c{number}", _plays(GangTaker, GANGS)) for number in range(1, 6)),
        ),
        ((check_gangs, GANGS),),
    ),
}
# Parts that came later go with others: seeds that were run before stay what they were.
LATER = {"graph": "transactions", "gangs": "ordered"}
SHARE = 0.3  # of all parts that a seed has, roughly


def chosen_parts(world: World, wanted: str) -> list[str]:
    """The named parts, or those that chance chooses; InvalidError for a name that is none."""
    names = list(PARTS) if wanted == "all" else [name for name in wanted.split(",") if name]
    if unknown := [name for name in names if name not in PARTS]:
        raise InvalidError(f"parts {unknown}: use all, or some of {', '.join(PARTS)}")
    if names:
        return names
    older = [name for name in PARTS if name not in LATER]
    chosen = [name for name in older if world.chance(SHARE)] or [world.random.choice(older)]
    return [name for name in PARTS if LATER.get(name, name) in chosen]


def processes_of(stage: Stage, parts: list[str]) -> list[Process]:
    """The processes that play the parts; each of them plays in several."""
    scripts: dict[str, list[MakeScript]] = defaultdict(list)
    for part in parts:
        for name, role in PARTS[part].roles:
            scripts[name].append(_script(stage, role))
    return [Process(stage, name, *scripts[name]) for name in sorted(scripts)]


def _script(stage: Stage, role: Role) -> MakeScript:
    return lambda client: role(stage, client)
