"""What a queue is, in the simplest words: a list of messages, each in one state."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(eq=False)
class Message:
    value: bytes
    shard: int
    priority: int
    arrived_us: int
    key: bytes | None = None
    state: str = "ready"  # or leased, delayed, held, dead, gone
    deliveries: int = 0
    due_us: int = 0
    expires_us: int = 0
    id: bytes | None = None
    grant: int = 0
    position: int = 0
    deadline_us: int = 0
    acked_by: int = 0  # the grant whose ack was accepted
    turn: int = 0  # place in the line of its key
    ahead: bool = False  # of that line: it has been out, and nothing passes it
    alone: bool = False  # it was pushed as a batch of its own

    @property
    def rank(self) -> tuple[int, int]:
        """What decides who is first: the higher priority, then the older batch."""
        return -self.priority, self.arrived_us


@dataclass
class QueueModel:
    """The messages of one queue on one node."""

    ordered: str
    max_deliveries: int
    max_messages: int
    lease_us: int
    messages: list[Message] = field(default_factory=list)
    turns: int = 0

    def add(self, messages: Iterable[Message]) -> None:
        for message in messages:
            self.turns += 1
            message.turn = self.turns
            self.messages.append(message)

    def all(self, *states: str) -> list[Message]:
        return [message for message in self.messages if message.state in states]

    @property
    def unfinished(self) -> int:
        return sum(message.state != "gone" for message in self.messages)

    def counts(self) -> dict[str, int]:
        """As the node's figures name them."""
        names = ("ready", "leased", "delayed", "held", "dead")
        figures = {name: len(self.all(name)) for name in names}
        if self.ordered == "key":
            figures["ready"] = len(self.available())
        return figures

    def available(self) -> list[Message]:
        """Messages that the next pop may get, first of all first."""
        ready = sorted(self.all("ready"), key=lambda message: (message.rank, message.turn))
        if self.ordered == "queue":
            return [] if self.all("leased", "delayed") else ready
        if self.ordered == "key":
            return [message for message in ready if self.first_of(message.key) is message]
        return ready

    def first_of(self, key: bytes | None) -> Message | None:
        """The only message of a key that may be out."""
        line = [one for one in self.all("ready", "leased", "delayed") if one.key == key]
        return min(line, key=lambda message: (not message.ahead, message.turn), default=None)

    def lease(
        self, message: Message, grant: int, position: int, lease_us: int, now_us: int
    ) -> None:
        message.state, message.grant, message.position = "leased", grant, position
        message.deliveries += 1
        message.ahead = True
        message.deadline_us = now_us + lease_us

    def give_back(self, message: Message, delay_us: int, now_us: int) -> None:
        """After a nack, or when the lease ran out."""
        if message.deliveries >= self.max_deliveries:
            message.state = "dead"
        elif delay_us:
            message.state, message.due_us = "delayed", now_us + delay_us
        else:
            message.state = "ready"

    def return_unseen(self, message: Message, delay_us: int, now_us: int) -> None:
        """Nobody has looked at it: as if it had not been delivered."""
        message.deliveries -= 1
        message.state, message.due_us = ("delayed", now_us + delay_us) if delay_us else ("ready", 0)

    def redrive(self, limit: int, order: list[Message]) -> None:
        """A younger one of the same key makes way if it waits, and nobody had it: one that was
        returned unseen has been out, and is passed only by what comes back after that."""
        for message in order[:limit]:
            first = self.first_of(message.key)
            if first is not None and first.state == "ready" and not first.deliveries:
                first.ahead = False
            message.state, message.deliveries, message.ahead = "ready", 0, False

    def pass_time(self, now_us: int) -> None:
        for message in self.all("leased"):
            if message.deadline_us <= now_us:
                if message.expires_us < message.deadline_us:  # it came while somebody had it
                    message.expires_us = 0
                self.give_back(message, 0, now_us)
        for message in self.all("delayed"):
            if message.due_us <= now_us:
                message.state = "ready"
        for message in self.messages:  # a time-to-live ends once, for what waits then
            if message.expires_us and message.expires_us <= now_us:
                message.expires_us = 0
                if message.state in ("ready", "delayed"):
                    message.state = "gone"
