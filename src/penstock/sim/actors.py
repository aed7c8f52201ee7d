"""What actors share: a client process with scripts, and small steps that all of them use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.client import ops_fabric
from penstock.client.state import QueueState, TableState, TopicState
from penstock.errors import PenstockError
from penstock.sim.client import Client, Script, Sleep
from penstock.sim.history import History
from penstock.sim.network import Listener, Network
from penstock.sim.world import World
from penstock.wire.messages import StreamInfo

RETRY_US = 100_000


@dataclass(frozen=True)
class Stream:
    """A queue, topic or table of the scenario."""

    kind: str
    name: str
    options: dict[str, Any]

    @property
    def level(self) -> str:
        """What an acknowledgement means."""
        level: str = self.options.get("durability", "synced")
        return level

    @property
    def lease_us(self) -> int:
        """How long messages are leased."""
        return int(self.options.get("lease", 30.0) * 1e6)

    @property
    def ordered(self) -> str:
        """The order that is promised."""
        ordered: str = self.options.get("ordered", "no")
        return ordered


@dataclass
class Stage:
    """What every actor can see."""

    world: World
    network: Network
    node: Listener
    history: History
    half: bool = False  # half of the work is done
    over: bool = False  # no new work


@dataclass
class Actor:
    """One script of one life of a process."""

    stage: Stage
    client: Client
    stream: Stream

    @property
    def world(self) -> World:
        """The world."""
        return self.stage.world

    @property
    def history(self) -> History:
        """Where everything is noted."""
        return self.stage.history

    @property
    def busy(self) -> bool:
        """Whether to go on."""
        return not self.stage.over

    def rest(self, typical_us: int) -> Script[None]:
        """A pause of a random length."""
        yield Sleep(self.world.latency(typical_us))

    def open(self) -> Script[StreamInfo]:
        """The stream, made if it is not there; tried until it works."""
        assert self.client.fabric is not None
        kind, name, options = self.stream.kind, self.stream.name, self.stream.options
        while True:
            try:
                steps = ops_fabric.open_stream(self.client.fabric, kind, name, options)
                return (yield from steps)
            except PenstockError:
                yield Sleep(RETRY_US)

    def open_queue(self) -> Script[QueueState]:
        """The stream as a queue of this client."""
        info = yield from self.open()
        assert self.client.fabric is not None
        queue = QueueState(self.client.fabric, info)
        self.client.attend(queue._settler)
        return queue

    def open_topic(self) -> Script[TopicState]:
        """The stream as a topic of this client."""
        info = yield from self.open()
        assert self.client.fabric is not None
        return TopicState(self.client.fabric, info)

    def open_table(self) -> Script[TableState]:
        """The stream as a table of this client."""
        info = yield from self.open()
        assert self.client.fabric is not None
        return TableState(self.client.fabric, info)


MakeScript = Callable[[Client], Script[None]]


class Process:
    """A client that may die and come back, with a new connection and a new producer."""

    def __init__(self, stage: Stage, name: str, *scripts: MakeScript) -> None:
        self.stage = stage
        self.name = name
        self.scripts = scripts
        self.lives = 0
        self.client: Client | None = None

    def start(self) -> None:
        """A new life."""
        self.lives += 1
        stage = self.stage
        name = f"{self.name}.{self.lives}"
        self.client = Client(stage.world, stage.network, stage.node, name)
        self.client.start(*self.scripts)

    def crash(self, down_us: int) -> None:
        """The process dies and is started again later."""
        if self.client is None or not self.client.alive:
            return
        self.stage.world.note(f"{self.client.name} dies")
        self.client.kill()
        self.stage.world.after(down_us, self.start)
