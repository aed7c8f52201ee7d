"""Carries what is in the outboxes of a node's shards to the owners of the targets.

For every pair of home and target there is at most one message on the way, and it begins with the
first part that is not confirmed. So it does not matter how often, how late or to how many owners a
message comes: the target carries out what is above the last part that it knows, and no part before
that can be missing. What is lost, refused or not answered is sent again, to whoever is the owner.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from penstock.cluster.map import ClusterMap
from penstock.core.fabric import Fabric
from penstock.core.publishing import StageQuestion
from penstock.core.securing import ToSecure
from penstock.core.sessions import Binding, Question
from penstock.engine.outbox_messages import (
    Bind,
    Bound,
    Confirmed,
    Forward,
    OutboxMessage,
    Refused,
    Secure,
    Secured,
    SecureStages,
    StagesSecured,
)
from penstock.engine.questions import Questions
from penstock.engine.undos import Undos
from penstock.errors import (
    PenstockError,
    ProtocolError,
    UnavailableError,
    from_code,
)

MOST_PARTS = 1000  # of one message
MOST_BYTES = 1 << 20  # it has one part at least, however large that is
MOST_ON_THE_WAY = 8  # messages to one node
RETRY_US = 50_000  # after a refusal, or while nobody can be reached
PATIENCE_US = 2_000_000  # with an answer

Send = Callable[[int, OutboxMessage], None]
_OfShards = Forward | Confirmed | Refused | Bind | Secure | SecureStages


@dataclass(slots=True)
class _Line:
    """A home and a target with something outstanding. `node` has a message; 0: none has."""

    node: int = 0
    due_us: int | None = None  # when it is tried again, whatever happened


class Outboxes:
    """All outboxes of a node. `ready` says whether the node can take what others send, and
    `version` which definitions of streams it knows."""

    def __init__(
        self, node: int, fabric: Fabric, send: Send, ready: Callable[[], bool],
        version: Callable[[], int],
    ) -> None:  # fmt: skip
        self.node = node
        self._fabric = fabric
        self._send = send
        self._ready = ready
        self._version = version
        self._lines: dict[tuple[int, int], _Line] = {}
        self._idle: dict[tuple[int, int], None] = {}  # lines that may have something to send
        self._linked: set[int] = set()
        self._on_the_way: Counter[int] = Counter()
        self._questions = Questions(fabric, self._say, self._reached)
        self._early = Undos()  # from other nodes, which may know earlier who owns a shard
        self._now_us = 0

    # --- the home's side -------------------------------------------------------------------

    def advance(self, known: ClusterMap, now_us: int) -> bool:
        """Sends what may be sent; whether there was anything to do."""
        self._now_us = now_us
        forwards = self._fabric.forwards
        woken, forwards.woken = forwards.woken, {}
        for home in woken:
            for target in self._fabric.kernel.shards[home].outbox.targets():
                line = self._lines.setdefault((home, target), _Line())
                if line.due_us is None:
                    self._idle[home, target] = None
        sent = [self._send_next(key, known, now_us) for key in list(self._idle)]
        asked = self._questions.advance(known, now_us)
        return bool(self._let_go() or woken or asked or any(sent))

    def _send_next(self, key: tuple[int, int], known: ClusterMap, now_us: int) -> bool:
        home, target = key
        shard, node = self._fabric.kernel.shards[home], known.owner_of(target)
        if node != self.node and self._on_the_way[node] >= MOST_ON_THE_WAY:
            return False
        del self._idle[key]
        parts = shard.outbox.first(target, shard.safe, MOST_PARTS, MOST_BYTES)
        if not parts or not shard.owned:
            del self._lines[key]
            return False
        line = self._lines[key]
        if not self._reached(node):
            line.due_us = now_us + RETRY_US
            return False
        line.node, line.due_us = node, now_us + PATIENCE_US
        if node != self.node:
            self._on_the_way[node] += 1
        self._say(node, Forward(home, target, self._version(), parts))
        return True

    def _answered(self, node: int, message: Confirmed | Refused, now_us: int) -> None:
        """One that comes late is as true as ever; it only says nothing of what is on the way."""
        key = message.home, message.target
        line = self._lines.get(key)
        if line is not None and line.node == node:
            self._arrived(line)
            line.due_us = None if isinstance(message, Confirmed) else now_us + RETRY_US
            if isinstance(message, Confirmed):
                self._idle[key] = None
        if isinstance(message, Confirmed):
            shard = self._fabric.kernel.shards[message.home]
            self._fabric.forwards.confirmed(
                shard, message.target, message.number, message.index
            )

    def _arrived(self, line: _Line) -> None:
        if line.node not in (0, self.node):
            self._on_the_way[line.node] -= 1
        line.node = 0

    # --- the target's side -----------------------------------------------------------------

    def _take(self, node: int, message: Forward) -> None:
        home, target = message.home, message.target
        shard = self._fabric.kernel.shards[target]
        parts = message.parts

        def then(done: bool) -> None:
            last = parts[-1]
            answer = Confirmed(home, target, last.number, last.index) if done else None
            self._say(node, answer or Refused(home, target))

        unknown = message.version > self._version()  # a stream that is too new, perhaps
        if not parts or unknown or not shard.owned or not self._takes_work():
            self._say(node, Refused(home, target))
        else:
            self._fabric.forwards.take(home, shard, parts, then)

    def _takes_work(self) -> bool:
        return self._ready() and self._fabric.kernel.refusing is None

    def _say(self, node: int, message: OutboxMessage) -> None:
        if node == self.node:
            # The core's clock stands still while the disk refuses.
            self.receive(node, message, max(self._now_us, self._fabric.kernel.now_us))
        else:
            self._send(node, message)

    # --- questions -------------------------------------------------------------------------

    def _reached(self, node: int) -> bool:
        return node == self.node or node in self._linked

    def _register(self, node: int, message: Bind) -> None:
        question = Question(message.home, message.session, message.shard, message.ticket)

        def then(answer: Binding) -> None:
            self._say(node, Bound(message.ticket, answer))

        if self._takes_work():
            self._fabric.sessions.register(question, then)
        else:
            then(Binding.MOVED)

    def _let_go(self) -> int:
        """What was taken back before it could be here; how much."""
        undos = self._early.take(self._takes_work_of, self._now_us)
        for undo in undos:
            self._say(self.node, undo)
        return len(undos)

    def _takes_work_of(self, shard: int) -> bool:
        return self._fabric.kernel.shards[shard].owned and self._takes_work()

    def _secure_in_turn(self, node: int, message: Secure | SecureStages) -> None:
        """What is taken back has no other answer than that it is done, be it later."""
        self._let_go()
        if message.undo and not self._takes_work_of(message.shard):
            self._early.keep(message, self._now_us + PATIENCE_US)
        elif isinstance(message, Secure):
            self._secure(node, message)
        else:
            self._secure_stages(node, message)

    def _secure(self, node: int, message: Secure) -> None:
        def then(error: PenstockError | None) -> None:
            code, text = (0, "") if error is None else (error.code, error.message)
            if not message.undo:
                self._say(node, Secured(message.ticket, code, text))

        question = ToSecure(message.ticket, message.shard, message.acks, message.undo)
        self._attempt(lambda: self._fabric.securing.take(question, then), then)

    def _secure_stages(self, node: int, message: SecureStages) -> None:
        def then(error: PenstockError | None) -> None:
            code, text = (0, "") if error is None else (error.code, error.message)
            if not message.undo:
                self._say(node, StagesSecured(message.ticket, code, text))

        question = StageQuestion(message.ticket, message.shard, message.stages, message.undo)
        self._attempt(lambda: self._fabric.publishing.take(question, then), then)

    def _attempt(
        self, act: Callable[[], None], then: Callable[[PenstockError | None], None]
    ) -> None:
        try:
            if not self._takes_work():
                raise UnavailableError("the node has too much to do")
            act()
        except PenstockError as error:
            then(error)

    # --- other nodes, and time -------------------------------------------------------------

    def receive(self, node: int, message: OutboxMessage, now_us: int) -> None:
        """A message of another node, or of this one to itself."""
        self._fabric.kernel.now_us = self._now_us = now_us
        if isinstance(message, Bound):
            self._fabric.sessions.answered(message.ticket, message.answer)
            return
        if isinstance(message, Secured):
            error = from_code(message.code, message.message) if message.code else None
            self._fabric.securing.answered(message.ticket, error)
            return
        if isinstance(message, StagesSecured):
            error = from_code(message.code, message.message) if message.code else None
            self._fabric.publishing.answered(message.ticket, error)
            return
        self._check_shards(message)
        if isinstance(message, Secure | SecureStages):
            self._secure_in_turn(node, message)
        elif isinstance(message, Bind):
            self._register(node, message)
        elif isinstance(message, Forward):
            self._take(node, message)
        else:
            self._answered(node, message, now_us)

    def _check_shards(self, message: _OfShards) -> None:
        """ProtocolError if there are no such shards."""
        shards = len(self._fabric.kernel.shards)
        named = [] if isinstance(message, Secure | SecureStages) else [message.home]
        named += (
            [message.shard]
            if isinstance(message, Secure | SecureStages | Bind)
            else [message.target]
        )
        if not all(0 <= number < shards for number in named):
            raise ProtocolError(f"there are {shards} shards, not {named}")

    def linked(self, node: int) -> None:
        """There is a new connection to a node."""
        self._linked.add(node)

    def unlinked(self, node: int, now_us: int) -> None:
        """The connection to a node is gone, with all that was on the way."""
        self._linked.discard(node)
        for line in self._lines.values():
            if line.node == node:
                line.node, line.due_us = 0, now_us + RETRY_US
        del self._on_the_way[node]
        self._fabric.kernel.now_us = now_us
        self._questions.unlinked(node)

    def tick(self, now_us: int) -> None:
        """Time has passed: what is due is tried again."""
        for key, line in self._lines.items():
            if line.due_us is not None and line.due_us <= now_us:
                self._arrived(line)
                line.due_us = None
                self._idle[key] = None

    def next_due(self) -> int | None:
        """When `tick` should be called although nothing happens."""
        dues = (line.due_us for line in self._lines.values())
        return min((due_us for due_us in dues if due_us is not None), default=None)
