"""Who takes part, and how that may change: one node at a time, as a learner first."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Annotated

import msgspec

from penstock.cluster.consensus.settings import MAX_LEARNERS, MAX_VOTERS
from penstock.errors import (
    ConflictError,
    ExistsError,
    InvalidError,
    NotFoundError,
    PenstockError,
    ProtocolError,
    TooLargeError,
)

MAX_NODE = (1 << 63) - 1
NodeId = Annotated[int, msgspec.Meta(ge=1, le=MAX_NODE)]


class Change(enum.Enum):
    """A step from one membership to the next."""

    ADD_LEARNER = "add learner"
    PROMOTE = "promote"  # a learner that has caught up becomes a voter
    DEMOTE = "demote"  # a voter becomes a learner
    REMOVE = "remove"


class Membership(msgspec.Struct, frozen=True, array_like=True):
    """Voters decide; learners only receive. It holds from the moment that its entry is in the log,
    committed or not."""

    voters: tuple[NodeId, ...] = ()
    learners: tuple[NodeId, ...] = ()

    def __contains__(self, node: object) -> bool:
        return node in self.voters or node in self.learners

    @property
    def nodes(self) -> tuple[int, ...]:
        """Voters, then learners."""
        return self.voters + self.learners

    @property
    def majority(self) -> int:
        """How many voters decide."""
        return len(self.voters) // 2 + 1

    def agreed(self, value_of: Callable[[int], int]) -> int:
        """The highest value that a majority of the voters has reached."""
        values = sorted(map(value_of, self.voters), reverse=True)
        return values[self.majority - 1] if values else 0

    def check(self) -> None:
        """InvalidError unless every node is there once and the limits are kept."""
        if len(self.voters) > MAX_VOTERS:
            raise TooLargeError(
                f"{len(self.voters)} voters; consensus has at most {MAX_VOTERS}",
                advice="Remove a voter first; any node can follow as a learner.",
            )
        if len(self.learners) > MAX_LEARNERS:
            raise TooLargeError(
                f"{len(self.learners)} learners; consensus has at most {MAX_LEARNERS}",
                advice="Remove a learner first.",
            )
        if len(set(self.nodes)) != len(self.nodes):
            raise InvalidError("a node is a member twice")

    def changed(self, change: Change, node: int) -> Membership:
        """The membership after a change; an error that says why it cannot be made."""
        if change is Change.ADD_LEARNER:
            after = self._with_learner(node)
        elif node not in self:
            raise NotFoundError(f"node {node} is not a member")
        elif change is Change.PROMOTE:
            after = self._promoted(node)
        elif change is Change.DEMOTE:
            after = self._demoted(node)
        else:
            after = self._without(node)
        after.check()
        return after

    def _with_learner(self, node: int) -> Membership:
        if not 1 <= node <= MAX_NODE:
            raise InvalidError(f"{node} is no id of a node: ids are positive and have 63 bits")
        if node in self:
            raise ExistsError(f"node {node} is a member already")
        return Membership(self.voters, (*self.learners, node))

    def _promoted(self, node: int) -> Membership:
        if node in self.voters:
            raise ExistsError(f"node {node} is a voter already")
        return Membership((*self.voters, node), _without(self.learners, node))

    def _demoted(self, node: int) -> Membership:
        if node in self.learners:
            raise ExistsError(f"node {node} is a learner already")
        return self._without(node)._with_learner(node)

    def _without(self, node: int) -> Membership:
        if self.voters == (node,):
            raise ConflictError("the last voter cannot be removed")
        return Membership(_without(self.voters, node), _without(self.learners, node))


def _without(nodes: tuple[int, ...], node: int) -> tuple[int, ...]:
    return tuple(each for each in nodes if each != node)


pack_membership = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Membership).decode


def unpack_membership(data: bytes) -> Membership:
    """The membership in an entry; ProtocolError if it is none, or nobody could ever decide."""
    try:
        membership = _decode(data)
        membership.check()
    except (msgspec.MsgspecError, PenstockError, ValueError) as error:
        raise ProtocolError(f"an entry holds no membership: {error}") from error
    if not membership.voters:
        raise ProtocolError("an entry holds a membership without voters")
    return membership
