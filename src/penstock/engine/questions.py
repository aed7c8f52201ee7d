"""Asks the owners of other shards what transactions, publications and sessions have to know.

Who cannot be asked, or is cut off before the answer, is as good as one that does not answer:
whoever wanted it tries again. Only what is taken back nobody says again: it waits for a link to the
owner, and goes out before anything that is asked after it. So what has been secured once more is
not let go for what was before.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.cluster.map import ClusterMap
from penstock.core import securing as leases
from penstock.core import staged as stages
from penstock.core.fabric import Fabric
from penstock.core.sessions import Binding
from penstock.core.tickets import Tickets
from penstock.engine.outbox_messages import Bind, Secure, SecureStages
from penstock.engine.undos import Undos
from penstock.errors import MovedError, PenstockError

Say = Callable[[int, Bind | Secure | SecureStages], None]


class Questions:
    """All questions of a node. `say` brings one to a node, which may be this one, if that can be
    `reached`."""

    def __init__(self, fabric: Fabric, say: Say, reached: Callable[[int], bool]) -> None:
        self._fabric = fabric
        self._say = say
        self._reached = reached
        self._undos = Undos()

    def advance(self, known: ClusterMap, now_us: int) -> int:
        """Sends what may be sent; how many questions there were."""
        undos = self._undos.take(lambda shard: self._reached(known.owner_of(shard)), now_us)
        for undo in undos:
            self._say(known.owner_of(undo.shard), undo)
        asked = self._ask_homes(known) + self._ask_shards(known, now_us)
        return len(undos) + asked + self._ask_stages(known, now_us)

    def unlinked(self, node: int) -> None:
        """The connection to a node is gone, with all that was on the way."""
        fabric = self._fabric
        for tickets in (
            fabric.sessions.tickets, fabric.securing.tickets, fabric.publishing.tickets
        ):  # fmt: skip
            tickets.unlinked(node)

    def _ask_homes(self, known: ClusterMap) -> int:
        """Whether sessions are there that entries are to be bound to; how many questions."""
        sessions = self._fabric.sessions
        questions, sessions.questions = sessions.questions, []
        for question in questions:
            node = known.owner_of(question.home)
            if self._reached(node):
                sessions.tickets.asked(question.ticket, node)
                self._say(node, Bind(*question))
            else:
                sessions.answered(question.ticket, Binding.MOVED)
        return len(questions)

    def _ask_shards(self, known: ClusterMap, now_us: int) -> int:
        """Whether leases are there that transactions are about to end; how many questions."""
        securing = self._fabric.securing
        questions, securing.questions = securing.questions, []
        until_us = now_us + leases.SECURED_US
        for question in questions:
            self._ask(securing.tickets, Secure(*question), known, until_us)
        return len(questions)

    def _ask_stages(self, known: ClusterMap, now_us: int) -> int:
        """Whether stages are there that are about to be published; how many questions."""
        publishing = self._fabric.publishing
        questions, publishing.questions = publishing.questions, []
        until_us = now_us + stages.SECURED_US
        for question in questions:
            self._ask(publishing.tickets, SecureStages(*question), known, until_us)
        return len(questions)

    def _ask(
        self, tickets: Tickets[int, PenstockError | None], message: Secure | SecureStages,
        known: ClusterMap, until_us: int,
    ) -> None:  # fmt: skip
        """`until_us`: what is secured ends by itself then, and need not be taken back."""
        node = known.owner_of(message.shard)
        if self._reached(node):
            tickets.asked(message.ticket, node)
            self._say(node, message)
        elif message.undo:
            self._undos.keep(message, until_us)
        else:
            error = MovedError(f"node {node}, which owns shard {message.shard}, is away")
            tickets.answered(message.ticket, error)
