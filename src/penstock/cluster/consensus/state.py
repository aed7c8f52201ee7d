"""What all parts of one node's consensus share."""

from __future__ import annotations

import enum

from penstock.cluster.consensus.log import Log
from penstock.cluster.consensus.messages import HardState, Message
from penstock.cluster.consensus.settings import MAX_OUTBOX, Settings


class Role(enum.Enum):
    """What a node does in its term."""

    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"  # asks whether an election could be won
    CANDIDATE = "candidate"
    LEADER = "leader"


class State:
    """Term, vote, role and log; and messages that wait for the next Ready."""

    def __init__(self, node: int, log: Log, hard: HardState, settings: Settings) -> None:
        self.node = node
        self.log = log
        self.settings = settings
        self.term, self.vote = hard.term, hard.vote
        self.role = Role.FOLLOWER
        self.leader: int | None = None
        self.now_us = 0
        self.messages: list[Message] = []
        self.after_persist: list[Message] = []

    @property
    def hard_state(self) -> HardState:
        """What must be on disk before this node promises anything more."""
        return HardState(self.term, self.vote)

    @property
    def is_voter(self) -> bool:
        """As far as the own log says."""
        return self.node in self.log.membership.voters

    def send(self, message: Message) -> None:
        """It promises nothing that a crash could take back."""
        if len(self.messages) < MAX_OUTBOX:
            self.messages.append(message)

    def promise(self, message: Message) -> None:
        """It may leave only when all that the node knows now is on its disk."""
        if len(self.after_persist) < MAX_OUTBOX:
            self.after_persist.append(message)
